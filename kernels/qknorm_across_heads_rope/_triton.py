"""Device code of qknorm_across_heads_rope in Triton: a token's channels in registers, as one or two tiles of whole heads.

The fused launches run both stages on q and k; the split yardstick runs one stage on one tensor in each of its four launches.  A tile of
heads is a power of two high, so 12 heads are 8 + 4 and 40 are 32 + 8, with no idle lane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from fusebench import launchable

from .op import Arguments


@triton.jit
def load_heads(base, columns, FIRST: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr):
    """Heads `FIRST … FIRST + BLOCK_H` of one token, or of a weight, in their own dtype, zero past HEADS and D."""
    heads = FIRST + tl.arange(0, BLOCK_H)[:, None]
    if FIRST + BLOCK_H <= HEADS and columns.shape[1] == D:
        tile = tl.load(base + heads * D + columns)
    else:
        tile = tl.load(base + heads * D + columns, mask=(heads < HEADS) & (columns < D), other=0.0)
    return tile


@triton.jit
def load_token(base, columns, HEADS: tl.constexpr, D: tl.constexpr, HEAD: tl.constexpr, TAIL: tl.constexpr):
    """Both tiles of one token; the second is the first where TAIL is 0, and is not read."""
    head = load_heads(base, columns, 0, HEADS, D, HEAD)
    tail = head
    if TAIL:
        tail = load_heads(base, columns, HEAD, HEADS, D, TAIL)
    return head, tail


@triton.jit
def sum_of_squares(head, tail, TAIL: tl.constexpr):
    """Over all channels of a token, in float32."""
    wide = head.to(tl.float32)
    squares = tl.sum(wide * wide)
    if TAIL:
        rest = tail.to(tl.float32)
        squares += tl.sum(rest * rest)
    return squares


@triton.jit
def finish_heads(
    base, weight_ptr, tile, scale, cos, sin, columns, FIRST: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr,
    NORM: tl.constexpr, ROPE: tl.constexpr, AFFINE: tl.constexpr,
):  # fmt: skip
    """Norm and rotation of one tile in float32, stored in place with one rounding; cos and sin are `[1, D/2]`."""
    y = tile.to(tl.float32)
    if NORM:
        y = y * scale
        if AFFINE:
            y = y * load_heads(weight_ptr, columns, FIRST, HEADS, D, BLOCK_H).to(tl.float32)
    if ROPE:
        BLOCK_D: tl.constexpr = columns.shape[1]
        a, b = tl.split(tl.reshape(y, (BLOCK_H, BLOCK_D // 2, 2)))
        y = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (BLOCK_H, BLOCK_D))
    heads = FIRST + tl.arange(0, BLOCK_H)[:, None]
    if FIRST + BLOCK_H <= HEADS and columns.shape[1] == D:
        tl.store(base + heads * D + columns, y.to(base.dtype.element_ty))
    else:
        tl.store(base + heads * D + columns, y.to(base.dtype.element_ty), mask=(heads < HEADS) & (columns < D))


@triton.jit
def finish_token(
    base, weight_ptr, head, tail, cos, sin, columns, eps, HEADS: tl.constexpr, D: tl.constexpr, HEAD: tl.constexpr, TAIL: tl.constexpr,
    NORM: tl.constexpr, ROPE: tl.constexpr, AFFINE: tl.constexpr,
):  # fmt: skip
    scale = 1.0
    if NORM:
        scale = tl.rsqrt(sum_of_squares(head, tail, TAIL) / (HEADS * D) + eps)
    finish_heads(base, weight_ptr, head, scale, cos, sin, columns, 0, HEADS, D, HEAD, NORM, ROPE, AFFINE)
    if TAIL:
        finish_heads(base, weight_ptr, tail, scale, cos, sin, columns, HEAD, HEADS, D, TAIL, NORM, ROPE, AFFINE)


@triton.jit
def _across_heads_rope(
    first_ptr,
    second_ptr,
    first_weight_ptr,
    second_weight_ptr,
    cache_ptr,
    tokens,
    first_stride,
    second_stride,
    eps,
    FIRST_HEADS: tl.constexpr,
    SECOND_HEADS: tl.constexpr,
    D: tl.constexpr,
    FIRST_HEAD: tl.constexpr,
    FIRST_TAIL: tl.constexpr,
    SECOND_HEAD: tl.constexpr,
    SECOND_TAIL: tl.constexpr,
    NORM: tl.constexpr,
    ROPE: tl.constexpr,
    AFFINE: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """One program: a token of both tensors with TOGETHER, else of one of them.  SECOND_HEADS is 0 where there is one tensor.

    Grid: tokens of all samples; twice as many for two tensors without TOGETHER, which then take turns.
    """
    BLOCK_D: tl.constexpr = triton.next_power_of_2(D)
    ALONE: tl.constexpr = TOGETHER or SECOND_HEADS == 0
    program = tl.program_id(0)
    row = program
    if not ALONE:
        row = program // 2
    columns = tl.arange(0, BLOCK_D)[None, :]
    # 64-bit: tokens x a packed projection's width passes 2^31 elements on long videos.
    first_row = first_ptr + row.to(tl.int64) * first_stride
    second_row = second_ptr + row.to(tl.int64) * second_stride
    cos = 1.0
    sin = 0.0
    if ROPE:
        pairs = tl.arange(0, BLOCK_D // 2)[None, :]
        cache_row = cache_ptr + (row % tokens).to(tl.int64) * D
        cos = tl.load(cache_row + pairs, mask=pairs < D // 2, other=1.0).to(tl.float32)
        sin = tl.load(cache_row + D // 2 + pairs, mask=pairs < D // 2, other=0.0).to(tl.float32)
    if TOGETHER:
        # Both tensors are asked for before the first sum, whose barrier no load passes.
        first_head, first_tail = load_token(first_row, columns, FIRST_HEADS, D, FIRST_HEAD, FIRST_TAIL)
        second_head, second_tail = load_token(second_row, columns, SECOND_HEADS, D, SECOND_HEAD, SECOND_TAIL)
        finish_token(
            first_row, first_weight_ptr, first_head, first_tail, cos, sin, columns, eps,
            FIRST_HEADS, D, FIRST_HEAD, FIRST_TAIL, NORM, ROPE, AFFINE,
        )  # fmt: skip
        finish_token(
            second_row, second_weight_ptr, second_head, second_tail, cos, sin, columns, eps,
            SECOND_HEADS, D, SECOND_HEAD, SECOND_TAIL, NORM, ROPE, AFFINE,
        )  # fmt: skip
    elif ALONE or program % 2 == 0:
        # Names of their own: Triton 3.6 wants one name to have one shape in both branches.
        first_head, first_tail = load_token(first_row, columns, FIRST_HEADS, D, FIRST_HEAD, FIRST_TAIL)
        finish_token(
            first_row, first_weight_ptr, first_head, first_tail, cos, sin, columns, eps,
            FIRST_HEADS, D, FIRST_HEAD, FIRST_TAIL, NORM, ROPE, AFFINE,
        )  # fmt: skip
    else:
        second_head, second_tail = load_token(second_row, columns, SECOND_HEADS, D, SECOND_HEAD, SECOND_TAIL)
        finish_token(
            second_row, second_weight_ptr, second_head, second_tail, cos, sin, columns, eps,
            SECOND_HEADS, D, SECOND_HEAD, SECOND_TAIL, NORM, ROPE, AFFINE,
        )  # fmt: skip


class Tile(NamedTuple):
    head: int
    """Heads of the first tile, a power of two."""
    tail: int
    """Heads of the second tile, a power of two, or 0 where the first holds all."""


class Cut(NamedTuple):
    """How a version splits a token's heads into tiles, and tokens into programs."""

    q: Tile
    k: Tile
    num_warps: int
    together: bool = False
    """Whether a program takes q and k of its token."""


def one_tile(heads: int) -> Tile:
    return Tile(triton.next_power_of_2(heads), 0)


def two_tiles(heads: int) -> Tile:
    """Two exact tiles where the number of heads is a sum of two powers of two, such as 12 and 40; else one, masked."""
    block = triton.next_power_of_2(heads)
    rest = heads - block // 2
    return Tile(block // 2, rest) if rest and block != heads and rest & (rest - 1) == 0 else Tile(block, 0)


def launch(call: Arguments, cut: Cut) -> None:
    """One launch over the call's q and k that runs both stages, in place."""
    _launch(call, (call.q, call.k), (call.q_weight, call.k_weight), cut)


def launch_stage(call: Arguments, name: str, tile: Tile, num_warps: int, *, norm: bool) -> None:
    """One launch over q or k that runs the norm, or else the rotation, in place."""
    x, weight = (call.q, call.q_weight) if name == "q" else (call.k, call.k_weight)
    _launch(call, (x,), (weight,), Cut(tile, tile, num_warps), norm=norm, rope=not norm)


def _launch(
    call: Arguments,
    tensors: tuple[torch.Tensor, ...],
    weights: tuple[torch.Tensor | None, ...],
    cut: Cut,
    *,
    norm: bool = True,
    rope: bool = True,
) -> None:
    call.require_gpu()
    first, second = tensors[0], tensors[-1]
    rows, heads, head_dim = first.shape
    programs = rows if cut.together else rows * len(tensors)
    if programs == 0:
        return
    kernel: Any = launchable(_across_heads_rope)
    kernel[(programs,)](
        first,
        second,
        first if weights[0] is None else weights[0],  # never read without AFFINE
        second if weights[-1] is None else weights[-1],
        call.cos_sin_cache,
        call.cos_sin_cache.shape[0],
        first.stride(0),
        second.stride(0),
        call.eps,
        FIRST_HEADS=heads,
        SECOND_HEADS=second.shape[1] if len(tensors) > 1 else 0,
        D=head_dim,
        FIRST_HEAD=cut.q.head,
        FIRST_TAIL=cut.q.tail,
        SECOND_HEAD=cut.k.head,
        SECOND_TAIL=cut.k.tail,
        NORM=norm,
        ROPE=rope,
        AFFINE=weights[0] is not None,
        TOGETHER=cut.together,
        num_warps=cut.num_warps,
        enable_fp_fusion=True,  # said, because Triton's default changes in 3.10
    )
