"""rotary_embedding: the rotary position embedding of q, and of k where it is given, in place.

For each token and head, on the first R of D dimensions, with the token's cosines and sines:

    a' = a * cos - b * sin        b' = b * cos + a * sin

over pairs (a, b): (2i, 2i+1) in the `interleaved` layout, (i, i + R/2) in `neox`.  Dimensions from R on are left alone.  q and k are
`[N, heads * D]`, `[N, heads, D]` or `[B, T, heads, D]`; the cosines and sines are one joint cache `[P, R]` or two of `[P, R/2]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

import fusebench
from fusebench import Op, define_op, option, tensor
from fusebench.registry.argument_rules import Laid
from fusebench.registry.op import SHORT_DTYPES

from ..qknorm_rope.op import HEAD_SPACE, ITEM_SIZES, reference_rotation
from ..qknorm_rope.op import Layout as PairLayout
from ._plan import HEAD_DIMS, Plan, plan

if TYPE_CHECKING:
    import torch


SPACE = {
    **HEAD_SPACE,
    "kv_heads": (None, 0, 1, 2, 4, 8),
    "head_dim": HEAD_DIMS,
    "rope_dim": (None, range(16, 321, 16)),
    "position_offset": (0, 512),
}
"""Random cases rotate whole sectors of memory, 32 bytes: of others a kernel must move more bytes than the op counts."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: q has `batch * tokens` rows of `heads` heads of `head_dim`, k the same with `kv_heads` heads."""

    batch: int = 1
    tokens: int
    """Tokens of one sample."""
    heads: int
    kv_heads: int | None = None
    """Heads of k; equal to `heads` unless given (GQA, MQA); 0 for a call without k."""
    head_dim: int
    rope_dim: int | None = None
    """Rotated dimensions R; all of `head_dim` unless given."""
    layout: PairLayout
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    rank: Literal[2, 3, 4] = 3
    """Dimensions of q and k."""
    caches: Literal["joint", "separate"] = "joint"
    """One cache of cosines then sines, or one of each."""
    cache_dtype: Literal["float32", "activation"] = "float32"
    positions: Literal["int64", "int32", "index"] = "int64"
    """Dtype of the positions; `index` for a call without them, where a token's position is its index in its sample."""
    position_offset: int = 0
    packed: bool = False
    """Whether q and k are strided views into one packed QKV projection."""

    def __post_init__(self) -> None:
        for name in ("batch", "tokens", "heads"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        if self.kv_heads is not None and (self.kv_heads < 0 or (self.kv_heads and self.heads % self.kv_heads)):
            raise ValueError(f"kv_heads is {self.kv_heads}; it must be 0 (no k) or divide heads ({self.heads})")
        if self.head_dim not in HEAD_DIMS:
            raise ValueError(f"head_dim is {self.head_dim}; it must be one of {', '.join(map(str, HEAD_DIMS))}")
        if self.rope_dim is not None and not (2 <= self.rope_dim <= self.head_dim and self.rope_dim % 2 == 0):
            raise ValueError(f"rope_dim is {self.rope_dim}; it must be even, at least 2 and at most head_dim ({self.head_dim})")
        if self.position_offset < 0:
            raise ValueError(f"position_offset is {self.position_offset}; it must not be negative")
        if self.positions == "index" and self.rank != 4 and self.batch > 1:
            raise ValueError(
                f"positions is index; it must be int32 or int64 for {self.batch} samples in rank {self.rank}, which has no samples"
            )

    @property
    def rows(self) -> int:
        """Tokens that one launch sees."""
        return self.batch * self.tokens

    @property
    def key_heads(self) -> int:
        """Heads of k, 0 where there is no k."""
        return self.heads if self.kv_heads is None else self.kv_heads

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


class Arguments(fusebench.Arguments):
    """q and perhaps k, which are overwritten, the cosines and sines, and perhaps positions; shapes as at the top of this file."""

    q: torch.Tensor = tensor(mutable=True)
    k: torch.Tensor | None = tensor(mutable=True)
    cos_cache: torch.Tensor
    sin_cache: torch.Tensor | None
    positions: torch.Tensor | None
    layout: PairLayout = "interleaved"
    head_dim: int = 0
    position_offset: int = option(0, least=0)

    @staticmethod
    def plan(laid: Laid) -> Plan:
        return plan(laid)

    @staticmethod
    def case(laid: Laid) -> dict[str, Any]:
        checked = plan(laid)
        return {
            "batch": max(1, checked.batch),
            "tokens": max(1, checked.tokens),
            "heads": checked.q.heads,
            "kv_heads": checked.k.heads if checked.k is not None else 0,
            "head_dim": checked.head_dim,
            "rope_dim": checked.rotary,
            "rank": len(laid.q.shape),
            "caches": "joint" if laid.sin_cache is None else "separate",
            "cache_dtype": "float32" if laid.cos_cache.dtype.itemsize == 4 else "activation",
            "positions": "index" if laid.positions is None else laid.positions.dtype_name,
            "packed": not (laid.q.is_contiguous and (laid.k is None or laid.k.is_contiguous)),
        }


@define_op
class RotaryEmbedding(Op):
    name = "rotary_embedding"
    Params = Params
    Arguments = Arguments
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton",)
    space = SPACE
    dispatch_sizes = ("rows", "heads", "key_heads", "head_dim", "rotary")
    dispatch_kinds = ("dtype", "layout", "rank", "caches", "cache_dtype", "positions", "packed")
    dispatch_traits = ("unaligned",)

    def outputs_of(self, params: Params) -> tuple[str, ...]:
        return ("q", "k") if params.key_heads else ("q",)

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        import torch

        from fusebench.accuracy.inputs import normal_with_outliers, rotary_table

        dtype = getattr(torch, params.dtype)

        def activation(heads: int) -> torch.Tensor:
            shape = (params.rows, heads, params.head_dim)
            return normal_with_outliers(shape, dtype=dtype, device=device, generator=generator, magnitude=magnitude)

        if params.packed:
            made = {"qkv": activation(params.heads + 2 * params.key_heads) if params.key_heads else activation(2 * params.heads)}
        else:
            made = {"q": activation(params.heads)}
            if params.key_heads:
                made["k"] = activation(params.key_heads)
        cache_dtype = torch.float32 if params.cache_dtype == "float32" else dtype
        rows = params.tokens + params.position_offset
        cache = rotary_table(rows, params.rotary, device=device, generator=generator).to(cache_dtype)
        if params.caches == "joint":
            made["cos_cache"] = cache
        else:
            made["cos_cache"], made["sin_cache"] = (half.contiguous() for half in cache.chunk(2, dim=-1))
        if params.positions != "index":
            positions = torch.arange(params.tokens, device=device, dtype=getattr(torch, params.positions))
            made["positions"] = positions.repeat(params.batch)
        return made

    def unusual(self, params: Params, buffers: Mapping[str, torch.Tensor], *, generator: torch.Generator) -> Mapping[str, torch.Tensor]:
        """Positions and the tables' rows in no order, some positions repeated.  No position is negative: the table has no such row."""
        from fusebench.accuracy.inputs import shuffled_positions, shuffled_rows

        names = [name for name in ("cos_cache", "sin_cache") if name in buffers]
        tables = shuffled_rows(*(buffers[name] for name in names), generator=generator)
        buffers = {**buffers, **dict(zip(names, tables, strict=True))}
        if params.positions == "index":
            return buffers
        return {**buffers, "positions": shuffled_positions(buffers["positions"], params.tokens, generator=generator)}

    def magnitudes(self, params: Params) -> tuple[float, ...]:
        """Up to the dtype's edge: outlier channels are 550 times larger, and a rotation by 1.5 adds two of them."""
        return (1.0, 1e-3, 1e3 if params.dtype == "float16" else 1e35)

    def views(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        if params.packed:
            qkv, heads = buffers["qkv"], params.heads
            q = _view(params, qkv, 0, heads)
            k = _view(params, qkv, heads, params.key_heads) if params.key_heads else None
        else:
            q = _view(params, buffers["q"], 0, params.heads)
            k = _view(params, buffers["k"], 0, params.key_heads) if params.key_heads else None
        return {**buffers, "q": q, "k": k}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        import torch

        device = arguments["cos_cache"].device
        positions = arguments["positions"]
        if positions is None:
            positions = torch.arange(params.tokens, device=device).repeat(params.batch)
        rows = positions.long() + params.position_offset
        if arguments["sin_cache"] is None:
            cos, sin = arguments["cos_cache"].double()[rows].chunk(2, dim=-1)
        else:
            cos, sin = arguments["cos_cache"].double()[rows], arguments["sin_cache"].double()[rows]
        outputs = {}
        for name in self.outputs_of(params):
            heads = arguments[name].double().reshape(params.rows, -1, params.head_dim)
            outputs[name] = reference_rotation(heads, cos.unsqueeze(1), sin.unsqueeze(1), params.layout).reshape(arguments[name].shape)
        return outputs

    def minimum_bytes(self, params: Params) -> int:
        activations = 2 * params.rows * (params.heads + params.key_heads) * params.rotary * ITEM_SIZES[params.dtype]
        cache = params.tokens * params.rotary * params.cache_item_size
        positions = params.rows * {"int64": 8, "int32": 4, "index": 0}[params.positions]
        return activations + cache + positions

    def bytes_written(self, params: Params) -> int:
        return params.rows * (params.heads + params.key_heads) * params.rotary * ITEM_SIZES[params.dtype]

    def flops(self, params: Params) -> int:
        return 3 * params.rows * (params.heads + params.key_heads) * params.rotary  # four products and two sums per pair

    def shape(self, params: Params) -> str:
        short = SHORT_DTYPES[params.dtype]
        heads = str(params.heads) if params.key_heads == params.heads else f"{params.heads}/{params.key_heads}"
        batch = f"{params.batch}x" if params.batch > 1 else ""
        rope = f" R{params.rotary}" if params.rotary != params.head_dim else ""
        extras = "".join(
            (
                " neox" if params.layout == "neox" else "",
                f" {params.rank}-D" if params.rank != 3 else "",
                " packed" if params.packed else "",
            )
        )
        return f"{batch}{params.tokens}x{heads}x{params.head_dim}{rope} {short}{extras}"


def _view(params: Params, buffer: torch.Tensor, first: int, heads: int) -> torch.Tensor:
    """Heads `first … + heads` of a buffer `[rows, all heads, D]`, in the case's rank."""
    if params.rank == 2:
        return buffer.flatten(1)[:, first * params.head_dim : (first + heads) * params.head_dim]
    part = buffer[:, first : first + heads]
    return part if params.rank == 3 else part.unflatten(0, (params.batch, params.tokens))
