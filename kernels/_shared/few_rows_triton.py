"""Triton device functions for launches of few rows: a program per row, which the grid of tokens and samples names.

Such a launch takes one to four microseconds, and much of it passes before the first load: in a cold instruction cache every 128 bytes of
code wait for the L2. So no division stands before it (the grid gives token and sample), offsets have 32 bits where the tensors allow it,
one tile holds the row, and loads carry no cache policy. Compiled for sm_90, the norm of a row of 1024 asks for x in its 13th instruction;
in `modulated_norm_triton` it is the 48th.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl

from .modulation import CHANNEL as _CHANNEL
from .modulation import SCALAR as _SCALAR

SCALAR = tl.constexpr(_SCALAR)
CHANNEL = tl.constexpr(_CHANNEL)


@triton.jit
def place(SAMPLES: tl.constexpr, WIDE: tl.constexpr):
    """(token, sample) of a program; integers of 64 bits with WIDE, see `wide`."""
    token = tl.program_id(0)
    sample = token * 0
    if SAMPLES:
        sample = tl.program_id(1)
    if WIDE:
        token = token.to(tl.int64)
        sample = sample.to(tl.int64)
    return token, sample


@triton.jit
def load_row(pointer, columns, mask, token, sample, sample_stride, token_stride, SAMPLES: tl.constexpr):
    """A row `[1, BLOCK]` in its own dtype, zero past the mask."""
    offset = token * token_stride
    if SAMPLES:
        offset += sample * sample_stride
    return tl.load(pointer + (columns + offset), mask=mask, other=0.0)


@triton.jit
def load_modulated(
    pointer, columns, mask, token, sample, sample_stride, group_stride, rows_per_group, ADDRESSING: tl.constexpr, SAMPLES: tl.constexpr
):
    """The values of a modulation for a row: a scalar, or `[1, BLOCK]`; a zero that is never used where ADDRESSING is negative."""
    values = 0.0
    if ADDRESSING == SCALAR:
        values = tl.load(pointer)
    elif ADDRESSING == CHANNEL:
        values = tl.load(pointer + columns, mask=mask, other=0.0)
    elif ADDRESSING >= 0:
        values = load_row(pointer, columns, mask, token // rows_per_group, sample, sample_stride, group_stride, SAMPLES)
    return values


def undivided(at: tuple[int, int, int]) -> tuple[int, int, int]:
    """A modulation's `address` whose rows per group is 1 where the group does not matter: Triton compiles no division by 1."""
    return at if at[1] else (at[0], 0, 1)


def wide(tokens: int, samples: int, hidden: int, *strides: Sequence[int]) -> bool:
    """Whether an offset passes 31 bits; strides: (sample stride, token stride) of each tensor."""
    return any((samples - 1) * sample + (tokens - 1) * token + hidden > 2**31 for sample, token, *_ in strides)
