"""qknorm_rope: RMS norm per head of q and k, then rotary embedding of their first dimensions, in place.

For every token n and head h, with x one row of D elements of q (or k):

    y = x * rsqrt(mean(x^2) + eps) * weight
    (a, b) -> (a cos - b sin, b cos + a sin)    for the R/2 pairs of the first R dimensions of y

Pairs are (2i, 2i + 1) in the `interleaved` layout and (i, i + R/2) in the `neox` layout.  The angle's cosine and sine come from
row `positions[n] + position_offset` of `cos_sin_cache`: cosines in the first R/2 columns, sines in the last R/2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

import fusebench
from fusebench import Op, axis, define_op, option, tensor
from fusebench.registry.argument_rules import Laid
from fusebench.registry.layouts import Layout as TensorLayout
from fusebench.registry.layouts import refuse
from fusebench.registry.op import LARGE_ROWS, SHORT_DTYPES

if TYPE_CHECKING:
    import torch

HEAD_DIMS = (64, 80, 96, 128, 256)
HEAD_SPACE: dict[str, tuple[int | range | None, ...]] = {
    "batch": (1, 2, 4),
    "heads": (range(8, 65, 8), range(1, 65)),
    "kv_heads": (None, 1, 2, 4, 8),
    "head_dim": HEAD_DIMS,
}
"""Random cases: half of the numbers of heads are a multiple of 8."""
SPACE = {**HEAD_SPACE, "rope_dim": (None, range(16, 257, 16), range(2, 257, 2)), "position_offset": (0, 512)}
ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}

Layout = Literal["interleaved", "neox"]
Mode = Literal["default", "round_norm"]


class HeadParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sizes of a case: q is `[batch * tokens, heads, head_dim]`, k is `[batch * tokens, kv_heads, head_dim]`."""

    batch: int = 1
    tokens: int
    """Tokens of one sample."""
    heads: int
    kv_heads: int | None = None
    """Heads of k; equal to `heads` unless given (GQA, MQA)."""
    head_dim: int

    def __post_init__(self) -> None:
        for name in ("batch", "tokens", "heads"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        if self.kv_heads is not None and (self.kv_heads <= 0 or self.heads % self.kv_heads):
            raise ValueError(f"kv_heads is {self.kv_heads}; it must be positive and divide heads ({self.heads})")
        if self.head_dim not in HEAD_DIMS:
            raise ValueError(f"head_dim is {self.head_dim}; it must be one of {', '.join(map(str, HEAD_DIMS))}")

    @property
    def rows(self) -> int:
        """N: tokens that one launch sees."""
        return self.batch * self.tokens

    @property
    def key_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads


def check_eps(eps: float) -> None:
    """Raise ValueError unless `eps` is positive and finite."""
    if not (math.isfinite(eps) and eps > 0):
        raise ValueError(f"eps is {eps}; it must be positive and finite")


class Params(HeadParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case, with the rotation of the first dimensions of each head."""

    rope_dim: int | None = None
    """Rotated dimensions R; all of `head_dim` unless given."""
    layout: Layout
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    eps: float = 1e-6
    position_dtype: Literal["int32", "int64"] = "int64"
    position_offset: int = 0
    packed: bool = False
    """Whether q and k are strided views into one packed QKV projection."""
    mode: Mode = "default"
    """`round_norm` rounds the normalised value to `dtype` before the rotation, as the split chain does."""
    cache_dtype: Literal["float32", "activation"] = "float32"
    affine: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rope_dim is not None and not (2 <= self.rope_dim <= self.head_dim and self.rope_dim % 2 == 0):
            raise ValueError(f"rope_dim is {self.rope_dim}; it must be even, at least 2 and at most head_dim ({self.head_dim})")
        check_eps(self.eps)
        if self.position_offset < 0:
            raise ValueError(f"position_offset is {self.position_offset}; it must not be negative")

    @property
    def rotary(self) -> int:
        """R: rotated dimensions."""
        return self.head_dim if self.rope_dim is None else self.rope_dim

    @property
    def unaligned(self) -> bool:
        """Whether 16 does not divide the rotated dimensions, and so a row of a cache, in elements."""
        return self.rotary % 16 != 0

    @property
    def cache_item_size(self) -> int:
        return 4 if self.cache_dtype == "float32" else ITEM_SIZES[self.dtype]


class Arguments(fusebench.Arguments, axes={"D": axis("head_dim", one_of=HEAD_DIMS)}):
    """q `[N, heads, D]` and k `[N, kv_heads, D]`, which are overwritten, their weights `[D]`, the cosines and sines, and N positions."""

    q: torch.Tensor = tensor("N heads D", mutable=True)
    k: torch.Tensor = tensor("N kv_heads D", mutable=True)
    q_weight: torch.Tensor | None = tensor("D", contiguous=True)
    k_weight: torch.Tensor | None = tensor("D", contiguous=True)
    cos_sin_cache: torch.Tensor = tensor("positions R", dtype=("float32", "q"), contiguous=True)
    positions: torch.Tensor = tensor("N", dtype=("int32", "int64"), contiguous=True)
    eps: float = 1e-6
    layout: Layout = "interleaved"
    position_offset: int = option(0, least=0)
    round_norm: bool = False

    @staticmethod
    def plan(laid: Laid) -> None:
        for name in ("q", "k"):
            check_strides(laid.op, name, getattr(laid, name))
        if (laid.q_weight is None) != (laid.k_weight is None):
            refuse(laid.op, "q_weight" if laid.q_weight is None else "k_weight", "None beside the other weight", "both weights or neither")
        head_dim, rotary = laid.q.shape[2], laid.cos_sin_cache.shape[1]
        if not 2 <= rotary <= head_dim or rotary % 2:
            refuse(laid.op, "cos_sin_cache", f"R = {rotary}", f"an even R from 2 to D = {head_dim}")

    @staticmethod
    def case(laid: Laid) -> dict[str, Any]:
        return {
            "tokens": max(1, laid.q.shape[0]),
            "heads": laid.q.shape[1],
            "kv_heads": laid.k.shape[1],
            "rope_dim": laid.cos_sin_cache.shape[1],
            "position_dtype": laid.positions.dtype_name,
            "packed": not (laid.q.is_contiguous and laid.k.is_contiguous),
            "mode": "round_norm" if laid.round_norm else "default",
            "cache_dtype": "float32" if laid.cos_sin_cache.dtype.itemsize == 4 else "activation",
            "affine": laid.q_weight is not None,
        }


def check_strides(op: str, name: str, x: TensorLayout) -> None:
    """Refuse q or k `[N, heads, D]` unless the heads of a token are packed and tokens do not overlap. Raises KernelArgumentError."""
    tokens, heads, head_dim = x.shape
    token_stride, head_stride, stride = x.strides
    # An axis of size 1 is never stepped along, so its stride may be anything.
    if stride != 1 or (heads > 1 and head_stride != head_dim) or (tokens > 1 and token_stride < heads * head_dim):
        width = heads * head_dim
        accepted = f"heads packed within a token, tokens in memory of their own: strides ({width} or more, {head_dim}, 1)"
        refuse(op, name, f"strides {tuple(x.strides)}", accepted)


@define_op
class QkNormRope(Op):
    name = "qknorm_rope"
    Params = Params
    Arguments = Arguments
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton", "fused_cuda")
    space = SPACE
    dispatch_sizes = ("rows", "heads", "key_heads", "head_dim", "rotary")
    dispatch_kinds = ("dtype", "layout", "mode", "cache_dtype", "affine", "packed")
    dispatch_traits = ("unaligned",)
    parts = ("._parts:NORM",)

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        import torch

        from fusebench.accuracy.inputs import norm_weight, normal_with_outliers, rotary_table

        dtype = getattr(torch, params.dtype)

        def activation(heads: int) -> torch.Tensor:
            shape = (params.rows, heads, params.head_dim)
            return normal_with_outliers(shape, dtype=dtype, device=device, generator=generator, magnitude=magnitude)

        if params.packed:
            made = {"qkv": activation(params.heads + 2 * params.key_heads)}
        else:
            made = {"q": activation(params.heads), "k": activation(params.key_heads)}
        if params.affine:
            for name in ("q_weight", "k_weight"):
                made[name] = norm_weight(params.head_dim, dtype=dtype, device=device, generator=generator)
        cache_dtype = torch.float32 if params.cache_dtype == "float32" else dtype
        rows = params.tokens + params.position_offset
        made["cos_sin_cache"] = rotary_table(rows, params.rotary, device=device, generator=generator).to(cache_dtype)
        positions = torch.arange(params.tokens, device=device, dtype=getattr(torch, params.position_dtype))
        made["positions"] = positions.repeat(params.batch)
        return made

    def unusual(self, params: Params, buffers: Mapping[str, torch.Tensor], *, generator: torch.Generator) -> Mapping[str, torch.Tensor]:
        """Positions and the table's rows in no order, some positions repeated, none negative (the table has no such row); weights far from
        one, of both signs."""
        from fusebench.accuracy.inputs import shuffled_positions, shuffled_rows, unusual_channels

        made = {**buffers, "positions": shuffled_positions(buffers["positions"], params.tokens, generator=generator)}
        (made["cos_sin_cache"],) = shuffled_rows(buffers["cos_sin_cache"], generator=generator)
        for name in ("q_weight", "k_weight") if params.affine else ():
            made[name] = unusual_channels(buffers[name], generator=generator)
        return made

    def magnitudes(self, params: Params) -> tuple[float, ...]:
        return (1.0, 1e-3, LARGE_ROWS[params.dtype])

    def views(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if not params.packed:
            return buffers
        qkv, heads = buffers["qkv"], params.heads
        return {**buffers, "q": qkv[:, :heads], "k": qkv[:, heads : heads + params.key_heads]}

    def arguments(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {**super().arguments(params, buffers), "round_norm": params.mode == "round_norm"}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        rows = arguments["positions"].long() + params.position_offset
        cos, sin = arguments["cos_sin_cache"].double()[rows].unsqueeze(1).chunk(2, dim=-1)
        return {name: _reference(arguments[name], arguments[f"{name}_weight"], cos, sin, params.eps, params.layout) for name in ("q", "k")}

    def minimum_bytes(self, params: Params) -> int:
        item = ITEM_SIZES[params.dtype]
        activations = 2 * params.rows * (params.heads + params.key_heads) * params.head_dim * item
        weights = 2 * params.head_dim * item if params.affine else 0
        cache = params.tokens * params.rotary * params.cache_item_size
        positions = params.rows * (8 if params.position_dtype == "int64" else 4)
        return activations + weights + cache + positions

    def bytes_written(self, params: Params) -> int:
        return params.rows * (params.heads + params.key_heads) * params.head_dim * ITEM_SIZES[params.dtype]

    def flops(self, params: Params) -> int:
        per_element = 2 + 1 + (1 if params.affine else 0)  # square and add, scale, weight
        per_row = per_element * params.head_dim + 3 * params.rotary + 3  # six per pair; mean, eps, rsqrt
        return params.rows * (params.heads + params.key_heads) * per_row

    def shape(self, params: Params) -> str:
        short = SHORT_DTYPES[params.dtype]
        heads = str(params.heads) if params.key_heads == params.heads else f"{params.heads}/{params.key_heads}"
        batch = f"{params.batch}x" if params.batch > 1 else ""
        rope = f" R{params.rotary}" if params.rotary != params.head_dim else ""
        extras = "".join(
            (
                " neox" if params.layout == "neox" else "",
                " packed" if params.packed else "",
                f" {params.mode}" if params.mode != "default" else "",
                " no affine" if not params.affine else "",
            )
        )
        return f"{batch}{params.tokens}x{heads}x{params.head_dim}{rope} {short}{extras}"


def _reference(
    x: torch.Tensor, weight: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor, eps: float, layout: Layout
) -> torch.Tensor:
    import torch

    wide = x.double()
    y = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.double()
    return reference_rotation(y, cos, sin, layout)


def reference_rotation(y: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The rotation's definition on the first `2 * cos.shape[-1]` dimensions of y; cos and sin broadcast over y's other dimensions."""
    import torch

    half = cos.shape[-1]
    rotated, rest = y[..., : 2 * half], y[..., 2 * half :]
    a, b = (rotated[..., 0::2], rotated[..., 1::2]) if layout == "interleaved" else rotated.chunk(2, dim=-1)
    first, second = a * cos - b * sin, b * cos + a * sin
    turned = torch.stack((first, second), dim=-1).flatten(-2) if layout == "interleaved" else torch.cat((first, second), dim=-1)
    return torch.cat((turned, rest), dim=-1)
