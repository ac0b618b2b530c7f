"""The plan of a call of rotary_embedding: the accepted forms of arguments, and their memory layout."""

from __future__ import annotations

from typing import NamedTuple

from fusebench.registry.argument_rules import Laid
from fusebench.registry.layouts import ACTIVATION_DTYPES, Layout, refuse

OP = "rotary_embedding"
HEAD_DIMS = (64, 80, 96, 128, 256, 320)


class Heads(NamedTuple):
    """Strides of q or k in elements; the heads of a token are packed."""

    heads: int
    batch_stride: int
    """From a sample to the next; 0 for a tensor without samples."""
    token_stride: int


class Plan(NamedTuple):
    """A checked call."""

    batch: int
    tokens: int
    """Tokens of one sample."""
    head_dim: int
    rotary: int
    q: Heads
    k: Heads | None

    @property
    def rows(self) -> int:
        return self.batch * self.tokens


def plan(laid: Laid) -> Plan:
    """The plan of a call; `head_dim` 0 means q's last axis.

    Raises:
        KernelArgumentError: naming the argument, what came and what is accepted.
    """
    q, k, cos_cache, sin_cache, positions = laid.q, laid.k, laid.cos_cache, laid.sin_cache, laid.positions
    head_dim = _head_dim(q, laid.head_dim)
    batch, tokens = _samples(q)
    q_heads = _heads("q", q, head_dim)
    k_heads = None
    if k is not None:
        if len(k.shape) != len(q.shape) or k.dtype != q.dtype or _samples(k) != (batch, tokens):
            refuse(OP, "k", str(k), f"{_form(q, head_dim, 'kv_heads')} in {q.dtype}, like q, or None")
        k_heads = _heads("k", k, head_dim)
    rotary = _rotary(cos_cache, sin_cache, q, head_dim)
    _check_positions(positions, cos_cache, batch, tokens, laid.position_offset)
    return Plan(batch, tokens, head_dim, rotary, q_heads, k_heads)


def _head_dim(q: Layout, head_dim: int) -> int:
    if len(q.shape) not in (2, 3, 4) or q.dtype_name not in ACTIVATION_DTYPES:
        refuse(OP, "q", str(q), "[N, heads * D], [N, heads, D] or [B, T, heads, D] in bfloat16, float16 or float32")
    known = ", ".join(map(str, HEAD_DIMS))
    if len(q.shape) == 2 and head_dim not in HEAD_DIMS:
        refuse(OP, "head_dim", str(head_dim), f"one of {known}: q of two dimensions does not show it")
    found = head_dim if len(q.shape) == 2 else q.shape[-1]
    if found not in HEAD_DIMS:
        refuse(OP, "q", str(q), f"{_form(q, 'D', 'heads')}, D one of {known}")
    if head_dim not in (0, found):
        refuse(OP, "head_dim", str(head_dim), f"{found}, q's last dimension, or 0")
    return found


def _samples(x: Layout) -> tuple[int, int]:
    """(samples, tokens of each)."""
    return (x.shape[0], x.shape[1]) if len(x.shape) == 4 else (1, x.shape[0])


def _heads(name: str, x: Layout, head_dim: int) -> Heads:
    shape, strides = x.shape, x.strides
    width = shape[-1] if len(shape) == 2 else shape[-2] * shape[-1]
    if width % head_dim or (len(shape) > 2 and shape[-1] != head_dim):
        refuse(OP, name, str(x), f"{_form(x, head_dim, 'heads')}")
    heads = width // head_dim
    batch, tokens = _samples(x)
    batch_stride, token_stride = (strides[0], strides[1]) if len(shape) == 4 else (0, strides[0])
    # A dimension of size 1 is never stepped along, so its stride may be anything.
    packed = strides[-1] == 1 and (len(shape) == 2 or heads == 1 or strides[-2] == head_dim)
    samples_outside = (tokens == 1 or token_stride >= width) and (batch == 1 or batch_stride >= (tokens - 1) * token_stride + width)
    tokens_outside = (batch == 1 or batch_stride >= width) and (tokens == 1 or token_stride >= (batch - 1) * batch_stride + width)
    if batch and tokens and width and not (packed and (samples_outside or tokens_outside)):
        refuse(OP, name, f"strides {tuple(strides)}", "heads packed within a token, a last stride of 1, tokens in memory of their own")
    return Heads(heads, batch_stride, token_stride)


def _rotary(cos_cache: Layout, sin_cache: Layout | None, q: Layout, head_dim: int) -> int:
    dtypes = " or ".join(dict.fromkeys((q.dtype_name, "float32")))
    form = "[positions, R]" if sin_cache is None else "[positions, R/2]"
    if len(cos_cache.shape) != 2 or cos_cache.dtype_name not in (q.dtype_name, "float32") or not cos_cache.is_contiguous:
        refuse(OP, "cos_cache", str(cos_cache), f"contiguous {form} in {dtypes}")
    if sin_cache is not None and (sin_cache.shape, sin_cache.dtype, sin_cache.is_contiguous) != (cos_cache.shape, cos_cache.dtype, True):
        refuse(OP, "sin_cache", str(sin_cache), f"contiguous {list(cos_cache.shape)} in {cos_cache.dtype}, like cos_cache, or None")
    rotary = cos_cache.shape[1] * (1 if sin_cache is None else 2)
    if not 2 <= rotary <= head_dim or rotary % 2:
        refuse(OP, "cos_cache", f"R = {rotary}", f"an even R from 2 to D = {head_dim}, in {form}")
    return rotary


def _check_positions(positions: Layout | None, cos_cache: Layout, batch: int, tokens: int, offset: int) -> None:
    if positions is None:
        if offset + tokens > cos_cache.shape[0]:
            refuse(OP, "cos_cache", f"{cos_cache.shape[0]} positions", f"at least {offset + tokens}: tokens and offset without positions")
    elif positions.shape != (batch * tokens,) or positions.dtype_name not in ("int32", "int64") or not positions.is_contiguous:
        refuse(OP, "positions", str(positions), f"contiguous [{batch * tokens}] in int32 or int64, or None")


def _form(x: Layout, head_dim: int | str, heads: str) -> str:
    """The shape that belongs to x's rank, in words."""
    leading = list(map(str, x.shape[: len(x.shape) - (1 if len(x.shape) == 2 else 2)]))
    return f"[{', '.join([*leading, f'{heads} * {head_dim}'] if len(x.shape) == 2 else [*leading, heads, str(head_dim)])}]"
