"""Device code of rotary_embedding in Triton: the rotation stage of qknorm_rope's tile, over tensors of any form that the op accepts.

Every product is rounded, so all launches agree bit for bit with each other and with the rotation in torch operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from fusebench import launchable
from fusebench.registry.layouts import check_device

from ..qknorm_rope._triton import process_heads
from ._plan import OP, Heads, Plan
from ._tiles import Tile, programs
from .op import Arguments


@triton.jit
def _rotary(
    first_ptr,
    second_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    tokens,
    first_batch_stride,
    first_token_stride,
    second_batch_stride,
    second_token_stride,
    position_offset,
    FIRST_HEADS: tl.constexpr,
    SECOND_HEADS: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    JOINT: tl.constexpr,
    POSITIONS: tl.constexpr,
    PER_TOKEN: tl.constexpr,
):
    """One program: BLOCK_H heads of one token, of one of the two tensors; with PER_TOKEN, all heads of a token, of both.

    Grid: tokens of all samples, x blocks of heads without PER_TOKEN.  SECOND_HEADS is 0 where there is one tensor.
    """
    FIRST_BLOCKS: tl.constexpr = (FIRST_HEADS + BLOCK_H - 1) // BLOCK_H
    SECOND_BLOCKS: tl.constexpr = (SECOND_HEADS + BLOCK_H - 1) // BLOCK_H
    HALF: tl.constexpr = R // 2
    program = tl.program_id(0)
    row = program if PER_TOKEN else program // (FIRST_BLOCKS + SECOND_BLOCKS)
    sample = row // tokens
    token = row - sample * tokens
    position = token.to(tl.int64)
    if POSITIONS:
        position = tl.load(positions_ptr + row).to(tl.int64)
    position += position_offset
    if JOINT:
        cos_row = cos_ptr + position * R
        sin_row = cos_row + HALF
    else:
        cos_row = cos_ptr + position * HALF
        sin_row = sin_ptr + position * HALF
    # 64-bit: tokens x a packed projection's width passes 2^31 elements on long videos.
    first_row = first_ptr + sample.to(tl.int64) * first_batch_stride + token.to(tl.int64) * first_token_stride
    second_row = second_ptr + sample.to(tl.int64) * second_batch_stride + token.to(tl.int64) * second_token_stride
    if PER_TOKEN:
        for start in range(0, FIRST_HEADS, BLOCK_H):
            process_heads(
                first_row, first_ptr, cos_row, sin_row, start, 0.0,
                FIRST_HEADS, D, R, BLOCK_H, INTERLEAVED, False, True, False, False,
            )  # fmt: skip
        for start in range(0, SECOND_HEADS, BLOCK_H):
            process_heads(
                second_row, second_ptr, cos_row, sin_row, start, 0.0,
                SECOND_HEADS, D, R, BLOCK_H, INTERLEAVED, False, True, False, False,
            )  # fmt: skip
    else:
        block = program % (FIRST_BLOCKS + SECOND_BLOCKS)
        if block < FIRST_BLOCKS:
            process_heads(
                first_row, first_ptr, cos_row, sin_row, block * BLOCK_H, 0.0,
                FIRST_HEADS, D, R, BLOCK_H, INTERLEAVED, False, True, False, False,
            )  # fmt: skip
        elif SECOND_HEADS > 0:
            process_heads(
                second_row, second_ptr, cos_row, sin_row, (block - FIRST_BLOCKS) * BLOCK_H, 0.0,
                SECOND_HEADS, D, R, BLOCK_H, INTERLEAVED, False, True, False, False,
            )  # fmt: skip


UNCONTRACTED = {"enable_fp_fusion": False}
"""Compile options of a version. Contraction of a * b - c * d would leave one of the products unrounded."""


def rotated(call: Arguments, plan: Plan) -> list[tuple[torch.Tensor, Heads]]:
    """The call's q, and k if given, each with its strides."""
    return [(call.q, plan.q)] if call.k is None or plan.k is None else [(call.q, plan.q), (call.k, plan.k)]


def launch(
    call: Arguments, plan: Plan, tile: Tile, options: Mapping[str, Any], *parts: tuple[torch.Tensor, Heads], per_token: bool = False
) -> None:
    """One launch that rotates one or two tensors in place.

    Args:
        tile, options: the split of heads into programs, and Triton's compile options. They belong to the version that launches.
        parts: q, k or both, with their strides.
        per_token: a program takes all heads of a token.
    """
    first, first_heads = parts[0]
    check_device(OP, "q", first, interpreted=True)
    second, second_heads = parts[1] if len(parts) > 1 else (first, Heads(0, 0, 0))
    grid = plan.rows if per_token else programs(plan.rows, tile.block_heads, first_heads, second_heads)
    if grid == 0:
        return
    kernel: Any = launchable(_rotary)
    kernel[(grid,)](
        first,
        second,
        call.cos_cache,
        call.cos_cache if call.sin_cache is None else call.sin_cache,
        first if call.positions is None else call.positions,  # never read without POSITIONS
        plan.tokens,
        first_heads.batch_stride,
        first_heads.token_stride,
        second_heads.batch_stride,
        second_heads.token_stride,
        call.position_offset,
        FIRST_HEADS=first_heads.heads,
        SECOND_HEADS=second_heads.heads,
        D=plan.head_dim,
        R=plan.rotary,
        BLOCK_H=tile.block_heads,
        INTERLEAVED=call.layout == "interleaved",
        JOINT=call.sin_cache is None,
        POSITIONS=call.positions is not None,
        PER_TOKEN=per_token,
        num_warps=tile.num_warps,
        **options,
    )
