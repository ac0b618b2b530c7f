"""Refuses arguments that no kernel of qknorm_rope may take, before anything is launched or written."""

from __future__ import annotations

import torch

from fusebench.errors import KernelArgumentError
from fusebench.registry.torch_operator import interpreting

from .op import HEAD_DIMS

ACTIVATION_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
POSITION_DTYPES = (torch.int32, torch.int64)


def check(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    *,
    layout: str,
    position_offset: int,
) -> None:
    """Raise KernelArgumentError naming the argument, what came and what is accepted."""
    if q.dim() != 3 or q.dtype not in ACTIVATION_DTYPES or q.shape[2] not in HEAD_DIMS:
        head_dims = ", ".join(map(str, HEAD_DIMS))
        _refuse("q", _describe(q), f"[N, heads, D] in bfloat16, float16 or float32, D one of {head_dims}")
    tokens, _, head_dim = q.shape
    if k.dim() != 3 or k.dtype != q.dtype or k.shape[0] != tokens or k.shape[2] != head_dim:
        _refuse("k", _describe(k), f"[{tokens}, kv_heads, {head_dim}] in {q.dtype}, like q")
    for name, tensor in (("q", q), ("k", k)):
        count, heads, _ = tensor.shape
        token_stride, head_stride, stride = tensor.stride()
        # A dimension of size 1 is never stepped along, so its stride may be anything.
        if stride != 1 or (heads > 1 and head_stride != head_dim) or (count > 1 and token_stride < heads * head_dim):
            accepted = f"heads packed within a token, tokens in memory of their own: strides ({heads * head_dim} or more, {head_dim}, 1)"
            _refuse(name, f"strides {tuple(tensor.stride())}", accepted)
    if (q_weight is None) != (k_weight is None):
        _refuse("q_weight" if q_weight is None else "k_weight", "None beside the other weight", "both weights or neither")
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        if weight is not None and (weight.shape != (head_dim,) or weight.dtype != q.dtype or not weight.is_contiguous()):
            _refuse(name, _describe(weight), f"contiguous [{head_dim}] in {q.dtype}, or None")
    if cos_sin_cache.dim() != 2 or cos_sin_cache.dtype not in (torch.float32, q.dtype) or not cos_sin_cache.is_contiguous():
        _refuse("cos_sin_cache", _describe(cos_sin_cache), f"contiguous [positions, R] in float32 or {q.dtype}")
    if not 2 <= cos_sin_cache.shape[1] <= head_dim or cos_sin_cache.shape[1] % 2:
        _refuse("cos_sin_cache", f"R = {cos_sin_cache.shape[1]}", f"an even R from 2 to D = {head_dim}")
    if positions.shape != (tokens,) or positions.dtype not in POSITION_DTYPES or not positions.is_contiguous():
        _refuse("positions", _describe(positions), f"contiguous [{tokens}] in int32 or int64")
    for name, other in (
        ("k", k),
        ("q_weight", q_weight),
        ("k_weight", k_weight),
        ("cos_sin_cache", cos_sin_cache),
        ("positions", positions),
    ):
        if other is not None and other.device != q.device:
            _refuse(name, f"device {other.device}", f"{q.device}, like q")
    if layout not in ("interleaved", "neox"):
        _refuse("layout", repr(layout), "'interleaved' or 'neox'")
    if position_offset < 0:
        _refuse("position_offset", str(position_offset), "zero or more")


def check_device(q: torch.Tensor, *, interpreted: bool) -> None:
    """Raise KernelArgumentError unless q is on a GPU: a kernel given host memory would fault and take the CUDA context with it.

    Args:
        interpreted: whether this kernel also runs on host memory while Triton's interpreter is on.
    """
    if not q.is_cuda and not (interpreted and interpreting()):
        _refuse("q", f"device {q.device}", "a CUDA device")


def _describe(tensor: torch.Tensor) -> str:
    strided = "" if tensor.is_contiguous() else f" with strides {tuple(tensor.stride())}"
    return f"{list(tensor.shape)} in {tensor.dtype}{strided}"


def _refuse(name: str, found: str, accepted: str) -> None:
    raise KernelArgumentError(f"qknorm_rope: argument {name}: found {found}; accepted is {accepted}")
