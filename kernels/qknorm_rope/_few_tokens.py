"""The Triton kernel of qknorm_rope and rotary_embedding for few tokens: a program has some heads of q and the same of k.

As in `_shared/few_rows_triton.py`, little stands before the first load: the grid names token, sample and heads, and offsets have 32 bits
where the tensors allow it. Every load is under way before a value is used; only cosines and sines wait for another, that of their position.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from fusebench import launchable

from .._shared.few_rows_triton import place, wide
from ._triton import UNCONTRACTED, load_weight, normalise

FEW_TOKENS = 256
"""Tokens up to which a call is for this kernel."""


class Tile(NamedTuple):
    heads: int
    """Heads of q, and as many of k, per program, a power of two."""
    num_warps: int


CHOICES = {"two_warps": Tile(2, 2), "eight_warps": Tile(8, 8)}
"""`fusebench tune` measures them. Eight took 2.63 us for 200 tokens of 24 heads of 128 on an H200, where four took 2.75."""


class Heads(NamedTuple):
    """q or k: its heads, which are packed within a token, and its strides in elements."""

    heads: int
    sample_stride: int
    token_stride: int


@triton.jit
def load_part(pointer, heads, first, EXTENT: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr):
    """Values `first … + EXTENT` of each head, in float32 `[heads, BLOCK]`, zero beyond."""
    columns = tl.arange(0, triton.next_power_of_2(EXTENT))[None, :]
    return tl.load(pointer + (heads * D + columns + first), mask=(heads < HEADS) & (columns < EXTENT), other=0.0).to(tl.float32)


@triton.jit
def store_part(pointer, heads, first, values, EXTENT: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr):
    columns = tl.arange(0, triton.next_power_of_2(EXTENT))[None, :]
    values = values.to(pointer.dtype.element_ty)
    tl.store(pointer + (heads * D + columns + first), values, mask=(heads < HEADS) & (columns < EXTENT))


@triton.jit
def load_weights(weight_ptr, heads, first, EXTENT: tl.constexpr, AFFINE: tl.constexpr):
    """The weights once for each head `[heads, BLOCK]`: one row of them would pass through shared memory to several warps."""
    columns = heads * 0 + tl.arange(0, triton.next_power_of_2(EXTENT))[None, :]
    return load_weight(weight_ptr + first, columns, columns < EXTENT, AFFINE)


@triton.jit
def load_heads(
    pointer, weight_ptr, heads, HEADS: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    INTERLEAVED: tl.constexpr, NORM: tl.constexpr, AFFINE: tl.constexpr,
):  # fmt: skip
    """What `turn_heads` takes: the heads in up to three tiles, whose weights follow.

    Interleaved heads are one tile. In the neox layout they are the two halves of the pairs and, for the norm, what is not turned.
    """
    b, rest, weight, weight_b, weight_rest = 0.0, 0.0, 1.0, 1.0, 1.0
    if INTERLEAVED:
        a = load_part(pointer, heads, 0, D if NORM else R, HEADS, D)
        if NORM:
            weight = load_weights(weight_ptr, heads, 0, D, AFFINE)
    else:
        a = load_part(pointer, heads, 0, R // 2, HEADS, D)
        b = load_part(pointer, heads, R // 2, R // 2, HEADS, D)
        if NORM:
            weight = load_weights(weight_ptr, heads, 0, R // 2, AFFINE)
            weight_b = load_weights(weight_ptr, heads, R // 2, R // 2, AFFINE)
            if R != D:
                rest = load_part(pointer, heads, R, D - R, HEADS, D)
                weight_rest = load_weights(weight_ptr, heads, R, D - R, AFFINE)
    return a, b, rest, weight, weight_b, weight_rest


@triton.jit
def turn_heads(
    pointer, heads, a, b, rest, weight, weight_b, weight_rest, cos, sin, eps, HEADS: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    INTERLEAVED: tl.constexpr, NORM: tl.constexpr, ROUND: tl.constexpr, AFFINE: tl.constexpr,
):  # fmt: skip
    """Norm, turn and store the heads that `load_heads` loaded."""
    DTYPE: tl.constexpr = pointer.dtype.element_ty
    if NORM:
        squares = tl.sum(a * a, axis=1)
        if not INTERLEAVED:
            squares += tl.sum(b * b, axis=1)
            if R != D:
                squares += tl.sum(rest * rest, axis=1)
        scale = tl.rsqrt(squares / D + eps)[:, None]
        a = normalise(a, scale, weight, AFFINE, ROUND, DTYPE)
        if not INTERLEAVED:
            b = normalise(b, scale, weight_b, AFFINE, ROUND, DTYPE)
            if R != D:
                store_part(pointer, heads, R, normalise(rest, scale, weight_rest, AFFINE, False, DTYPE), D - R, HEADS, D)
    if INTERLEAVED:
        EXTENT: tl.constexpr = D if NORM else R
        x = a
        a, b = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
        turned_a, turned_b = a * cos - b * sin, b * cos + a * sin
        if R != EXTENT:
            # Selected, not left to cos = 1 and sin = 0: an Inf or NaN in one of the two would spread to the other.
            pairs = tl.arange(0, x.shape[1] // 2)[None, :]
            turned_a, turned_b = tl.where(pairs < R // 2, turned_a, a), tl.where(pairs < R // 2, turned_b, b)
        store_part(pointer, heads, 0, tl.reshape(tl.join(turned_a, turned_b), x.shape), EXTENT, HEADS, D)
    else:
        store_part(pointer, heads, 0, a * cos - b * sin, R // 2, HEADS, D)
        store_part(pointer, heads, R // 2, b * cos + a * sin, R // 2, HEADS, D)


@triton.jit
def _few_heads(
    q_ptr,
    k_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    tokens,
    q_sample,
    q_token,
    k_sample,
    k_token,
    position_offset,
    eps,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    NORM: tl.constexpr,
    ROUND: tl.constexpr,
    AFFINE: tl.constexpr,
    JOINT: tl.constexpr,
    POSITIONS: tl.constexpr,
    SAMPLES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """One program: BLOCK_H heads of q, and of k unless K_HEADS is 0, of one token.  Grid: tokens, samples, blocks of heads.

    BLOCKS: 0, or blocks of heads where the grid has one dimension (`flat_blocks`); Q_HEADS and K_HEADS are then those of a program.
    """
    HALF: tl.constexpr = R // 2
    if BLOCKS:
        block = tl.program_id(0)  # alone it gives the place of the heads
        q_row, k_row = q_ptr + block * (BLOCK_H * D), k_ptr + block * (BLOCK_H * D)
        heads = tl.arange(0, BLOCK_H)[:, None]
        sample, token = 0, block // BLOCKS
        if WIDE:
            token = token.to(tl.int64)
        position = token * 0 if SAMPLES else token
    else:
        token, sample = place(SAMPLES, WIDE)
        q_row, k_row = q_ptr + (sample * q_sample + token * q_token), k_ptr + (sample * k_sample + token * k_token)
        heads = tl.program_id(2) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
        position = token
    if POSITIONS:
        position = tl.load(positions_ptr + (sample * tokens + token)).to(token.dtype)
    q, q_b, q_rest, q_weight, q_weight_b, q_weight_rest = load_heads(q_row, q_weight_ptr, heads, Q_HEADS, D, R, INTERLEAVED, NORM, AFFINE)
    if K_HEADS:
        k, k_b, k_rest, k_weight, k_weight_b, k_weight_rest = load_heads(
            k_row, k_weight_ptr, heads, K_HEADS, D, R, INTERLEAVED, NORM, AFFINE
        )
    BLOCK: tl.constexpr = triton.next_power_of_2(D if INTERLEAVED and NORM else R) // 2
    columns = heads * 0 + tl.arange(0, BLOCK)[None, :]  # for each head, as weights are
    angles = columns + (position + position_offset) * (R if JOINT else HALF)
    cos = tl.load(cos_ptr + angles, mask=columns < HALF, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + (angles + (HALF if JOINT else 0)), mask=columns < HALF, other=0.0).to(tl.float32)
    turn_heads(
        q_row, heads, q, q_b, q_rest, q_weight, q_weight_b, q_weight_rest, cos, sin, eps, Q_HEADS, D, R, INTERLEAVED, NORM, ROUND, AFFINE
    )
    if K_HEADS:
        turn_heads(
            k_row, heads, k, k_b, k_rest, k_weight, k_weight_b, k_weight_rest, cos, sin, eps,
            K_HEADS, D, R, INTERLEAVED, NORM, ROUND, AFFINE,
        )  # fmt: skip


def tile_of(rows: int, heads: int) -> Tile:
    """A warp for each head of q and of k, four of them in a program; for so few tokens that these leave multiprocessors idle, one.

    On an H200 (6ad4fb35), in microseconds by one, by two and by four heads and warps: qknorm_rope of 6 tokens of 24 heads of 128 1.75, 1.66
    and 1.65, of 32 tokens of 30 heads 2.21, 2.00 and 1.93, of 200 of 24 4.70, 3.42 and 2.74; rotary_embedding of a token of 32 heads of 256
    1.57, 1.69 and 1.69. Two heads to a warp took 3.41 for the 200 tokens.

    Args:
        rows: tokens of all samples.
        heads: the more of q and of k.
    """
    found = min(4, triton.next_power_of_2(heads)) if rows >= 4 else 1
    return Tile(found, found)


FLAT_ELEMENTS, FLAT_PROGRAMS = 128, 128
"""Of a program of one warp, and in a launch. On an H200 (medians of ten placements, in microseconds, before and with such programs): 4
tokens of 24 heads of 128 1.72 and 1.63, 32 samples of a token of 8 heads of 64 1.75 and 1.67; torch.compile 1.73 and 1.77."""


def flat_blocks(q_heads: Heads, k_heads: Heads, samples: int, tokens: int, head_dim: int) -> int:
    """Blocks of a token's heads, where a launch of programs of one warp over all of them is for so few that each has a multiprocessor, and
    the number of a program gives their place in q and in k and their token; otherwise 0."""
    block = 1 << max(0, (FLAT_ELEMENTS // head_dim).bit_length() - 1)
    blocks, rest = divmod(q_heads.heads, block)
    alike = k_heads.heads in (0, q_heads.heads) and (samples == 1 or tokens == 1)
    if rest or not alike or samples * tokens * blocks > FLAT_PROGRAMS:
        return 0
    distance = q_heads.heads * head_dim
    packed = all(
        one.heads == 0 or samples * tokens == 1 or (one.token_stride if samples == 1 else one.sample_stride) == distance
        for one in (q_heads, k_heads)
    )
    return blocks if packed else 0


def declined(layout: str, rows: int, rotary: int, item_size: int) -> str | None:
    """Why a call is not for this kernel; None where it is."""
    if rows > FEW_TOKENS:
        return f"{rows} tokens: made for at most {FEW_TOKENS}"
    if layout == "neox" and rotary // 2 * item_size % 4:
        return f"neox halves of {rotary // 2} values of {item_size} bytes: Triton would load them one at a time"
    return None


def launch(
    q: torch.Tensor,
    k: torch.Tensor | None,
    q_heads: Heads,
    k_heads: Heads | None,
    *,
    samples: int,
    tokens: int,
    head_dim: int,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor | None,
    positions: torch.Tensor | None,
    position_offset: int,
    eps: float = 0.0,
    layout: str,
    norm: bool,
    round_norm: bool = False,
    choice: Tile | None = None,
) -> None:
    """One launch over q and k, in place; shapes as in the ops' `op.py`.

    Args:
        tokens: of one sample.
        cos_cache: cosines, and behind them sines where sin_cache is None.
        norm: whether heads are normed first; q_weight, k_weight, eps and round_norm belong to that.
        choice: a tile; None: `tile_of`.
    """
    if samples * tokens * q_heads.heads == 0:
        return
    other, other_heads = (q, Heads(0, 0, 0)) if k is None or k_heads is None else (k, k_heads)
    rotary = cos_cache.shape[1] * (1 if sin_cache is None else 2)
    most_heads = max(q_heads.heads, other_heads.heads)
    tile, grid, blocks = choice or tile_of(samples * tokens, most_heads), (tokens, samples), 0
    if choice is None and not norm and (blocks := flat_blocks(q_heads, other_heads, samples, tokens, head_dim)):
        tile, grid = Tile(q_heads.heads // blocks, 1), (samples * tokens * blocks,)
    kernel: Any = launchable(_few_heads)
    kernel[grid if blocks else (*grid, -(-most_heads // tile.heads))](
        q,
        other,
        q if q_weight is None else q_weight,  # never read without AFFINE
        q if k_weight is None else k_weight,
        cos_cache,
        cos_cache if sin_cache is None else sin_cache,
        q if positions is None else positions,  # never read without POSITIONS
        tokens,
        *q_heads[1:],
        *other_heads[1:],
        position_offset,
        eps,
        Q_HEADS=tile.heads if blocks else q_heads.heads,
        K_HEADS=min(tile.heads, other_heads.heads) if blocks else other_heads.heads,
        D=head_dim,
        R=rotary,
        BLOCK_H=tile.heads,
        INTERLEAVED=layout == "interleaved",
        NORM=norm,
        ROUND=round_norm,
        AFFINE=q_weight is not None and k_weight is not None,
        JOINT=sin_cache is None,
        POSITIONS=positions is not None,
        SAMPLES=samples > 1,
        BLOCKS=blocks,
        WIDE=cos_cache.numel() > 2**31 or any(wide(tokens, samples, each.heads * head_dim, each[1:]) for each in (q_heads, other_heads)),
        num_warps=tile.num_warps,
        **UNCONTRACTED,
    )
