"""Device functions in Triton for norms over whole rows: tiles of a row, their statistics, and where a row's modulation lies.

A program holds `[ROWS, D]` as one or two tiles, `head` and `tail`, because a Triton tile's width is a power of two: D = 3072 is
2048 + 1024, with no idle lane. TAIL = 0 means that the head holds the whole row, masked beyond D. Callers without a tail pass the head in
its place, and it is not read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .modulation import ROW as _ROW
from .modulation import SCALAR as _SCALAR

SCALAR = tl.constexpr(_SCALAR)
ROW = tl.constexpr(_ROW)


@triton.jit
def tile_mask(rows, columns, row_count, D: tl.constexpr, ROWS: tl.constexpr):
    """Which elements of a tile exist: rows `[ROWS, 1]` below row_count, columns `[1, BLOCK]` below D."""
    mask = columns < D
    if ROWS > 1:
        mask = mask & (rows < row_count)
    return mask


@triton.jit
def row_statistics(head, tail, head_columns, tail_columns, eps, D: tl.constexpr, TAIL: tl.constexpr, LAYER: tl.constexpr):
    """Mean (0 for an RMS norm) and reciprocal deviation of each row, `[ROWS, 1]` each, in two passes over registers.

    head, tail: float32, zero past D.
    eps: Inductor passes a Python float in float64 (torch 2.13 at least; pytorch pull request 190340), which would take the whole row along.
    """
    mean = tl.zeros([head.shape[0], 1], dtype=tl.float32)
    if LAYER:
        total = tl.sum(head, axis=1)
        if TAIL:
            total += tl.sum(tail, axis=1)
        mean = (total / D)[:, None]
        head = tl.where(head_columns < D, head - mean, 0.0)
        if TAIL:
            tail = tl.where(tail_columns < D, tail - mean, 0.0)
    squares = tl.sum(head * head, axis=1)
    if TAIL:
        squares += tl.sum(tail * tail, axis=1)
    return mean, tl.rsqrt(squares / D + tl.cast(eps, tl.float32))[:, None]


@triton.jit
def normalise(x, mean, inverse, weight, bias, LAYER: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr):
    """One tile normalised in float32; weight and bias are tiles that broadcast against x."""
    if LAYER:
        x = x - mean
    x = x * inverse
    if WEIGHT:
        x = x * weight
    if BIAS:
        x = x + bias
    return x


@triton.jit
def whole(stride, UNIT: tl.constexpr):
    """A stride that UNIT divides (see `stride_unit`), in a form from which the compiler knows it."""
    if UNIT > 1:
        stride = stride // UNIT * UNIT
    return stride


@triton.jit
def row_pointer(pointer, batch, token, batch_stride, token_stride, UNIT: tl.constexpr):
    """Pointer(s) to the row of (batch, token); UNIT divides both strides."""
    # 64-bit: rows x D passes 2^31 elements on long videos.
    return pointer + batch.to(tl.int64) * whole(batch_stride, UNIT) + token.to(tl.int64) * whole(token_stride, UNIT)


def stride_unit(*strides: int) -> int:
    """8 where it divides all strides and 16 does not; else 1.

    Triton tells its compiler of an argument whether 16 divides it, and no more. Rows of D = 3032 in 16 bits start on 16 bytes, and without
    this were loaded 2 bytes at a time.
    """
    return 8 if all(stride % 8 == 0 for stride in strides) and any(stride % 16 for stride in strides) else 1


@triton.jit
def modulation_row(pointer, batch, token, batch_stride, group_stride, rows_per_group, ADDRESSING: tl.constexpr, UNIT: tl.constexpr = 1):
    """Pointer(s) to the values of a modulation for (batch, token), which are scalars or `[ROWS, 1]`; see _shared/modulation.py."""
    if ADDRESSING == ROW:  # in steps of this order, on which the measured machine code depends
        pointer = (
            pointer + batch.to(tl.int64) * whole(batch_stride, UNIT) + (token // rows_per_group).to(tl.int64) * whole(group_stride, UNIT)
        )
    return pointer


@triton.jit
def load_modulation(pointer, columns, mask, ADDRESSING: tl.constexpr, PER_ROW: tl.constexpr, D: tl.constexpr):
    """Values for a tile in their own dtype: a scalar, `[1, BLOCK]` where the tile's rows share them, or `[ROWS, BLOCK]` with PER_ROW."""
    if ADDRESSING == SCALAR:
        values = tl.load(pointer)
    elif PER_ROW:
        values = tl.load(pointer + columns, mask=mask, other=0.0)
    else:
        values = tl.load(pointer + columns, mask=columns < D, other=0.0)
    return values


@triton.jit
def load_parameter(pointer, columns, PRESENT: tl.constexpr, D: tl.constexpr):
    """A norm's weight or bias for a tile, `[1, BLOCK]` in float32; a zero that is never used where there is none."""
    values = 0.0
    if PRESENT:
        values = tl.load(pointer + columns, mask=columns < D, other=0.0).to(tl.float32)
    return values
