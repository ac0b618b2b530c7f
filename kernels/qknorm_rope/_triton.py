"""Device code of qknorm_rope in Triton: one tile function, used by every launch of this op and of rotary_embedding.

The fused launches run both stages of `process_heads`; the split yardstick runs one stage in each of its two launches. So the split chain is
as well tuned as the fused kernel, and in `round_norm` mode the two agree bit for bit: same tile, same reduction order, same rounding
points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import triton
import triton.language as tl

from fusebench import launchable

from .op import Arguments


@triton.jit
def load_weight(weight_ptr, columns, mask, AFFINE: tl.constexpr):
    """Weights of these columns in float32, or 1.0."""
    weight = 1.0
    if AFFINE:
        weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    return weight


@triton.jit
def normalise(x, scale, weight, AFFINE: tl.constexpr, ROUND: tl.constexpr, DTYPE: tl.constexpr):
    """x * scale * weight in float32, rounded through DTYPE when ROUND."""
    y = x * scale
    if AFFINE:
        y = y * weight
    if ROUND:
        y = y.to(DTYPE).to(tl.float32)
    return y


@triton.jit
def process_heads(
    base,
    weight_ptr,
    cos_row,
    sin_row,
    first_head,
    eps,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    NORM: tl.constexpr,
    ROPE: tl.constexpr,
    ROUND: tl.constexpr,
    AFFINE: tl.constexpr,
):
    """Norm and/or rotate heads `first_head … + BLOCK_H` of one token, in place.

    base: pointer to the token's `[HEADS, D]` block; cos_row, sin_row: pointers to its R/2 cosines and R/2 sines.
    """
    DTYPE: tl.constexpr = base.dtype.element_ty
    HALF: tl.constexpr = R // 2
    heads = first_head + tl.arange(0, BLOCK_H)[:, None]
    if INTERLEAVED or HALF * base.dtype.element_ty.primitive_bitwidth % 32:
        # One tile of wide loads and stores. Interleaved pairs are split into (even, odd) in registers. Otherwise a pair lies R/2 apart, an
        # odd number of 16-bit values: its halves as tiles of their own would be loaded and stored 2 bytes at a time, so the other value of
        # each pair is loaded again, out of the L1.
        EXTENT: tl.constexpr = D if NORM else R
        BLOCK_D: tl.constexpr = triton.next_power_of_2(EXTENT)
        columns = tl.arange(0, BLOCK_D)[None, :]
        mask = heads < HEADS
        if BLOCK_D != EXTENT:
            mask = mask & (columns < EXTENT)
        pointers = base + heads * D + columns
        y = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
        if ROPE and not INTERLEAVED:
            rotated = columns < R
            partner = tl.where(columns < HALF, columns + HALF, columns - HALF)
            other = tl.load(base + heads * D + partner, mask=mask & rotated, other=0.0).to(tl.float32)
        if NORM:
            weight = load_weight(weight_ptr, columns, columns < D, AFFINE)
            scale = tl.rsqrt(tl.sum(y * y, axis=1) / D + eps)[:, None]
            y = normalise(y, scale, weight, AFFINE, ROUND and ROPE, DTYPE)
            if ROPE and not INTERLEAVED:
                other = normalise(other, scale, load_weight(weight_ptr, partner, rotated, AFFINE), AFFINE, ROUND, DTYPE)
        if ROPE and INTERLEAVED:
            pairs = tl.arange(0, BLOCK_D // 2)[None, :]
            cos = tl.load(cos_row + pairs, mask=pairs < HALF, other=1.0).to(tl.float32)
            sin = tl.load(sin_row + pairs, mask=pairs < HALF, other=0.0).to(tl.float32)
            a, b = tl.split(tl.reshape(y, (BLOCK_H, BLOCK_D // 2, 2)))
            turned_a = a * cos - b * sin
            turned_b = b * cos + a * sin
            if R != EXTENT:
                # Not left to cos = 1 and sin = 0: an Inf or NaN in one of the two would spread to the other.
                turned_a = tl.where(pairs < HALF, turned_a, a)
                turned_b = tl.where(pairs < HALF, turned_b, b)
            y = tl.reshape(tl.join(turned_a, turned_b), (BLOCK_H, BLOCK_D))
        elif ROPE:
            angle = tl.where(columns < HALF, columns, columns - HALF)
            cos = tl.load(cos_row + angle, mask=rotated, other=1.0).to(tl.float32)
            sin = tl.load(sin_row + angle, mask=rotated, other=0.0).to(tl.float32)
            turned = tl.where(columns < HALF, y * cos - other * sin, y * cos + other * sin)
            y = tl.where(rotated, turned, y)
            tl.debug_barrier()  # no thread may store what another has yet to load
        tl.store(pointers, y.to(DTYPE), mask=mask)
    else:
        # A pair lies R/2 apart: its two halves are loaded as tiles of their own, what is not rotated as a third.
        BLOCK_HALF: tl.constexpr = triton.next_power_of_2(HALF)
        columns = tl.arange(0, BLOCK_HALF)[None, :]
        inside = columns < HALF
        mask = heads < HEADS
        if BLOCK_HALF != HALF:
            mask = mask & inside
        pointers = base + heads * D + columns
        a = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(pointers + HALF, mask=mask, other=0.0).to(tl.float32)
        if NORM:
            squares = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
            weight_a = load_weight(weight_ptr, columns, inside, AFFINE)
            weight_b = load_weight(weight_ptr + HALF, columns, inside, AFFINE)
            if R != D:
                BLOCK_REST: tl.constexpr = triton.next_power_of_2(D - R)
                rest_columns = R + tl.arange(0, BLOCK_REST)[None, :]
                rest_mask = (heads < HEADS) & (rest_columns < D)
                rest_pointers = base + heads * D + rest_columns
                rest = tl.load(rest_pointers, mask=rest_mask, other=0.0).to(tl.float32)
                squares += tl.sum(rest * rest, axis=1)
            scale = tl.rsqrt(squares / D + eps)[:, None]
            a = normalise(a, scale, weight_a, AFFINE, ROUND and ROPE, DTYPE)
            b = normalise(b, scale, weight_b, AFFINE, ROUND and ROPE, DTYPE)
            if R != D:
                rest_weight = load_weight(weight_ptr, rest_columns, rest_columns < D, AFFINE)
                rest = normalise(rest, scale, rest_weight, AFFINE, False, DTYPE)
                tl.store(rest_pointers, rest.to(DTYPE), mask=rest_mask)
        if ROPE:
            cos = tl.load(cos_row + columns, mask=inside, other=1.0).to(tl.float32)
            sin = tl.load(sin_row + columns, mask=inside, other=0.0).to(tl.float32)
            turned_a = a * cos - b * sin
            b = b * cos + a * sin
            a = turned_a
        tl.store(pointers, a.to(DTYPE), mask=mask)
        tl.store(pointers + HALF, b.to(DTYPE), mask=mask)


@triton.jit
def _qk_kernel(
    q_ptr,
    k_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cache_ptr,
    positions_ptr,
    q_stride,
    k_stride,
    position_offset,
    eps,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    NORM: tl.constexpr,
    ROPE: tl.constexpr,
    ROUND: tl.constexpr,
    AFFINE: tl.constexpr,
):
    """One program: BLOCK_H heads of one token, of q or of k.  Grid: tokens x (blocks of q's heads + blocks of k's heads)."""
    Q_BLOCKS: tl.constexpr = (Q_HEADS + BLOCK_H - 1) // BLOCK_H
    K_BLOCKS: tl.constexpr = (K_HEADS + BLOCK_H - 1) // BLOCK_H
    program = tl.program_id(0)
    # 64-bit: tokens x a packed projection's width passes 2^31 elements on long videos.
    token = (program // (Q_BLOCKS + K_BLOCKS)).to(tl.int64)
    block = program % (Q_BLOCKS + K_BLOCKS)
    cache_row = cache_ptr
    if ROPE:
        cache_row = cache_ptr + (tl.load(positions_ptr + token).to(tl.int64) + position_offset) * R
    if block < Q_BLOCKS:
        process_heads(
            q_ptr + token * q_stride, q_weight_ptr, cache_row, cache_row + R // 2, block * BLOCK_H, eps,
            Q_HEADS, D, R, BLOCK_H, INTERLEAVED, NORM, ROPE, ROUND, AFFINE,
        )  # fmt: skip
    else:
        process_heads(
            k_ptr + token * k_stride, k_weight_ptr, cache_row, cache_row + R // 2, (block - Q_BLOCKS) * BLOCK_H, eps,
            K_HEADS, D, R, BLOCK_H, INTERLEAVED, NORM, ROPE, ROUND, AFFINE,
        )  # fmt: skip


class Tile(NamedTuple):
    block_heads: int
    """Heads per program, a power of two."""
    num_warps: int


UNCONTRACTED = {"enable_fp_fusion": False}
"""Compile options of a version. Contraction of a * b + c * d may fold either product, and the compiler chooses differently in the split and
the fused launch. Without contraction both round alike."""


def launch(call: Arguments, tile: Tile, options: Mapping[str, Any], *, norm: bool = True, rope: bool = True) -> None:
    """One launch over the call's q and k that runs the given stages, in place.

    Args:
        tile, options: the split of heads into programs, and Triton's compile options. They belong to the version that launches.
    """
    call.require_gpu()
    q, k, q_weight, k_weight = call.q, call.k, call.q_weight, call.k_weight
    tokens, q_heads, head_dim = q.shape
    k_heads = k.shape[1]
    programs = tokens * (triton.cdiv(q_heads, tile.block_heads) + triton.cdiv(k_heads, tile.block_heads))
    if programs == 0:
        return
    kernel: Any = launchable(_qk_kernel)
    kernel[(programs,)](
        q,
        k,
        q if q_weight is None else q_weight,  # never read without AFFINE
        k if k_weight is None else k_weight,
        call.cos_sin_cache,
        call.positions,
        q.stride(0),
        k.stride(0),
        call.position_offset,
        call.eps,
        Q_HEADS=q_heads,
        K_HEADS=k_heads,
        D=head_dim,
        R=call.cos_sin_cache.shape[1],
        BLOCK_H=tile.block_heads,
        INTERLEAVED=call.layout == "interleaved",
        NORM=norm,
        ROPE=rope,
        ROUND=call.round_norm,
        AFFINE=q_weight is not None,
        num_warps=tile.num_warps,
        **options,
    )
