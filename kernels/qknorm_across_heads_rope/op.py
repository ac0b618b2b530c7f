"""qknorm_across_heads_rope: RMS norm of q and of k across all heads of a token, then rotary embedding of every head, in place.

Wan's self-attention.  For every token n, with x its H * D channels of q (or of k):

    y = x * rsqrt(mean(x^2) + eps) * weight           the mean over all H * D channels, weight of that width
    (a, b) -> (a cos - b sin, b cos + a sin)          for the D/2 pairs (2i, 2i + 1) of every head of y

All heads of a token share the cosines and sines of row `n mod T` of `cos_sin_cache [T, D]`: cosines in the first D/2 columns, sines in the
last D/2.  A model with three axes (frame, row and column of a video token) writes the pairs of each axis into the columns of one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import fusebench
from fusebench import Op, axis, define_op, option, tensor
from fusebench.registry.argument_rules import Laid
from fusebench.registry.layouts import refuse
from fusebench.registry.op import LARGE_ROWS, SHORT_DTYPES

from ..qknorm_rope.op import HEAD_DIMS, HEAD_SPACE, ITEM_SIZES, HeadParams, check_eps, check_strides, reference_rotation

if TYPE_CHECKING:
    import torch

MOST_CHANNELS = 8192
"""Channels of a token, H * D: a program keeps them in registers."""


class Params(HeadParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case; `tokens` is T, the rows of the table."""

    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    eps: float = 1e-6
    packed: bool = False
    """Whether q and k are strided views into one packed QKV projection."""
    cache_dtype: Literal["float32", "activation"] = "float32"
    affine: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads * self.head_dim > MOST_CHANNELS:
            raise ValueError(f"heads is {self.heads}; it must be at most {MOST_CHANNELS // self.head_dim} with head_dim {self.head_dim}")
        check_eps(self.eps)

    @property
    def channels(self) -> int:
        """Channels of q and of k of one token, together."""
        return (self.heads + self.key_heads) * self.head_dim


class Arguments(fusebench.Arguments, axes={"D": axis("head_dim", one_of=HEAD_DIMS)}):
    """q `[N, heads, D]` and k `[N, kv_heads, D]`, which are overwritten, their weights `[heads * D]` and `[kv_heads * D]`, and the cosines
    and sines `[T, D]` of the T tokens of each of N / T samples."""

    q: torch.Tensor = tensor("N heads D", mutable=True)
    k: torch.Tensor = tensor("N kv_heads D", mutable=True)
    q_weight: torch.Tensor | None = tensor("heads*D", contiguous=True)
    k_weight: torch.Tensor | None = tensor("kv_heads*D", contiguous=True)
    cos_sin_cache: torch.Tensor = tensor("T D", dtype=("float32", "q"), contiguous=True)
    eps: float = option(1e-6, positive=True)

    @staticmethod
    def plan(laid: Laid) -> None:
        op, rows = laid.op, laid.q.shape[0]
        for name in ("q", "k"):
            x, weight = getattr(laid, name), getattr(laid, f"{name}_weight")
            check_strides(op, name, x)
            width = x.shape[1] * x.shape[2]
            if width > MOST_CHANNELS:
                refuse(op, name, str(x), f"at most {MOST_CHANNELS} channels, heads * D")
            if weight is not None and weight.shape != (width,):
                refuse(op, f"{name}_weight", str(weight), f"contiguous [{width}] in {x.dtype}, or None")
        if (laid.q_weight is None) != (laid.k_weight is None):
            refuse(op, "q_weight" if laid.q_weight is None else "k_weight", "None beside the other weight", "both weights or neither")
        if rows and (laid.cos_sin_cache.shape[0] == 0 or rows % laid.cos_sin_cache.shape[0]):
            refuse(op, "cos_sin_cache", f"{laid.cos_sin_cache.shape[0]} rows", f"a number of rows that divides q's {rows} tokens")

    @staticmethod
    def case(laid: Laid) -> dict[str, Any]:
        tokens = max(1, laid.cos_sin_cache.shape[0])
        return {
            "batch": max(1, laid.q.shape[0] // tokens),
            "tokens": tokens,
            "heads": laid.q.shape[1],
            "kv_heads": laid.k.shape[1],
            "packed": not (laid.q.is_contiguous and laid.k.is_contiguous),
            "cache_dtype": "float32" if laid.cos_sin_cache.dtype.itemsize == 4 else "activation",
            "affine": laid.q_weight is not None,
        }


@define_op
class QkNormAcrossHeadsRope(Op):
    name = "qknorm_across_heads_rope"
    Params = Params
    Arguments = Arguments
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton", "fused_cuda")
    space = HEAD_SPACE
    dispatch_sizes = ("rows", "heads", "key_heads", "head_dim")
    dispatch_kinds = ("dtype", "cache_dtype", "affine", "packed")

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        import torch

        from fusebench.accuracy.inputs import norm_weight, normal_with_outliers, rotary_table

        dtype = getattr(torch, params.dtype)

        def activation(heads: int) -> torch.Tensor:
            # Outliers lie in a few of a row's H * D channels, so a row is drawn as one.
            shape = (params.rows, heads * params.head_dim)
            drawn = normal_with_outliers(shape, dtype=dtype, device=device, generator=generator, magnitude=magnitude)
            return drawn.view(params.rows, heads, params.head_dim)

        if params.packed:
            made = {"qkv": activation(params.heads + 2 * params.key_heads)}
        else:
            made = {"q": activation(params.heads), "k": activation(params.key_heads)}
        if params.affine:
            for name, heads in (("q_weight", params.heads), ("k_weight", params.key_heads)):
                made[name] = norm_weight(heads * params.head_dim, dtype=dtype, device=device, generator=generator)
        cache_dtype = torch.float32 if params.cache_dtype == "float32" else dtype
        made["cos_sin_cache"] = rotary_table(params.tokens, params.head_dim, device=device, generator=generator).to(cache_dtype)
        return made

    def unusual(self, params: Params, buffers: Mapping[str, torch.Tensor], *, generator: torch.Generator) -> Mapping[str, torch.Tensor]:
        """The table's rows in no order; weights far from one, of both signs."""
        from fusebench.accuracy.inputs import shuffled_rows, unusual_channels

        names = ("q_weight", "k_weight") if params.affine else ()
        (table,) = shuffled_rows(buffers["cos_sin_cache"], generator=generator)
        return {**buffers, "cos_sin_cache": table, **{name: unusual_channels(buffers[name], generator=generator) for name in names}}

    def magnitudes(self, params: Params) -> tuple[float, ...]:
        return (1.0, 1e-3, LARGE_ROWS[params.dtype])

    def views(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if not params.packed:
            return buffers
        qkv, heads = buffers["qkv"], params.heads
        return {**buffers, "q": qkv[:, :heads], "k": qkv[:, heads : heads + params.key_heads]}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        cos, sin = arguments["cos_sin_cache"].double().repeat(params.batch, 1).unsqueeze(1).chunk(2, dim=-1)
        return {name: reference_rotation(norm, cos, sin, "interleaved") for name, norm in reference_norms(params, arguments).items()}

    def minimum_bytes(self, params: Params) -> int:
        item = ITEM_SIZES[params.dtype]
        weights = params.channels * item if params.affine else 0
        cache = params.tokens * params.head_dim * (4 if params.cache_dtype == "float32" else item)
        return 2 * params.rows * params.channels * item + weights + cache

    def bytes_written(self, params: Params) -> int:
        return params.rows * params.channels * ITEM_SIZES[params.dtype]

    def flops(self, params: Params) -> int:
        per_channel = 2 + 1 + (1 if params.affine else 0) + 3  # square and add, scale, weight; six per pair
        return params.rows * (params.channels * per_channel + 2 * 3)  # mean, eps, rsqrt of q and of k

    def shape(self, params: Params) -> str:
        heads = str(params.heads) if params.key_heads == params.heads else f"{params.heads}/{params.key_heads}"
        batch = f"{params.batch}x" if params.batch > 1 else ""
        extras = f"{' packed' if params.packed else ''}{'' if params.affine else ' no affine'}"
        return f"{batch}{params.tokens}x{heads}x{params.head_dim} {SHORT_DTYPES[params.dtype]}{extras}"


def reference_norms(params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """q and k normalised, `[N, heads, D]` in float64."""
    import torch

    norms = {}
    for name in ("q", "k"):
        wide, weight = arguments[name].double(), arguments[f"{name}_weight"]
        y = wide * torch.rsqrt(wide.square().mean(dim=(-2, -1), keepdim=True) + params.eps)
        norms[name] = y if weight is None else y * weight.double().view(y.shape[1:])
    return norms
