"""What the libraries document of the functions that the adapters call, in torch: signatures, accepted arguments, semantics."""

# ruff: noqa: PLR0917  the signatures are the libraries' own

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

HALF = (torch.bfloat16, torch.float16)


def bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments by the names of the documented signature; TypeError where they do not fit it."""
    return dict(inspect.signature(function).bind(*args, **kwargs).arguments)


def _rms(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)


def _layer(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    parameters = [None if one is None else one.float() for one in (weight, bias)]
    return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], *parameters, eps).to(x.dtype)


def _turn_(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, neox: bool) -> None:
    """Rotate `[..., heads, D]` in place by `[..., R/2]`."""
    half = cos.shape[-1]
    index = torch.arange(half)
    first, second = (index, index + half) if neox else (2 * index, 2 * index + 1)
    a, b = heads[..., first].float(), heads[..., second].float()
    cos, sin = cos.float().unsqueeze(-2), sin.float().unsqueeze(-2)
    heads[..., first] = (a * cos - b * sin).to(heads.dtype)
    heads[..., second] = (b * cos + a * sin).to(heads.dtype)


def _modulated(y: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    batch, tokens, hidden = y.shape
    spread = []
    for values in (scale, shift):
        wide = values.float()
        if wide.dim() == 4:
            wide = wide.expand(batch, wide.shape[1], tokens // wide.shape[1], hidden).reshape(batch, tokens, hidden)
        spread.append(wide.unsqueeze(1) if wide.dim() == 2 else wide)
    return y * (1 + spread[0]) + spread[1]


def flashinfer_rmsnorm(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    assert input.dim() in (2, 3)
    assert input.dtype in HALF
    assert weight.dtype == input.dtype
    y = _rms(input, weight, eps)
    return y if out is None else out.copy_(y)


def flashinfer_layernorm(input: torch.Tensor, gemma: torch.Tensor, beta: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    assert (input.dim(), input.dtype, gemma.dtype, beta.dtype) == (2, torch.bfloat16, torch.float32, torch.float32)
    return _layer(input, gemma, beta, eps)


def flashinfer_rope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> None:
    assert cos_sin_cache.dtype == torch.float32
    cos, sin = cos_sin_cache[positions.long()].chunk(2, dim=-1)
    for x in (query, key):
        assert x.dim() == 2
        _turn_(x.view(x.shape[0], -1, head_size), cos, sin, is_neox)


def vllm_rms_norm(out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> None:
    assert out.is_contiguous()
    assert weight is None or weight.dtype == input.dtype
    out.copy_(_rms(input, weight, epsilon))


def vllm_rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    assert positions.dtype == torch.int64
    cos, sin = cos_sin_cache[positions].chunk(2, dim=-1)
    for x in (query, key):
        if x is not None:
            assert x.shape[0] == positions.shape[0]
            _turn_(x if x.dim() == 3 else x.view(x.shape[0], -1, head_size), cos, sin, is_neox)


def flash_attn_apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
) -> torch.Tensor:
    assert x.dim() == 4
    assert x.shape[-1] <= 256
    assert x.dtype == cos.dtype == sin.dtype
    assert isinstance(seqlen_offsets, int)
    assert seqlen_offsets + x.shape[1] <= cos.shape[0]
    rows = slice(seqlen_offsets, seqlen_offsets + x.shape[1])
    turned = x if inplace else x.clone()
    _turn_(turned, cos[rows], sin[rows], not interleaved)
    return turned


def quack_rmsnorm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    total = x.float() if residual is None else x.float() + residual.float()
    y = _rms(total, weight, eps).to(x.dtype)
    return (y, total.to(x.dtype)) if prenorm else y


def quack_layernorm_fwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-6,
    return_rstd: bool = False,
    return_mean: bool = False,
) -> torch.Tensor:
    assert (x.dim(), weight.dtype) == (2, torch.float32)
    return _layer(x, weight, bias, eps)


def sglang_fused_inplace_qknorm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    *,
    is_neox: bool,
    eps: float = 1e-6,
    head_dim: int = 0,
    rope_dim: int = 0,
) -> None:
    assert (head_dim, rope_dim) == (q.shape[-1], cos_sin_cache.shape[-1])
    assert head_dim in (64, 128, 256)
    assert q.dtype in HALF
    assert cos_sin_cache.dtype == torch.float32
    cos, sin = cos_sin_cache[positions.long()].chunk(2, dim=-1)
    for x, weight in ((q, q_weight), (k, k_weight)):
        assert x.dim() == 3
        wide = _rms(x.float(), weight, eps)
        _turn_(wide, cos, sin, is_neox)
        x.copy_(wide)


def sglang_fused_norm_scale_shift(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    norm_type: str,
    eps: float = 1e-5,
) -> torch.Tensor:
    assert x.shape[-1] % 256 == 0
    assert norm_type in ("layer", "rms")
    wide = x.float()
    y = _layer(wide, weight, bias, eps) if norm_type == "layer" else _rms(wide, weight, eps)
    return _modulated(y, scale, shift).to(x.dtype)


def sglang_fused_scale_residual_norm_scale_shift(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    norm_type: str,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor]:
    step = x.float() if gate is None else _modulated(x.float(), gate.float() - 1, torch.zeros(1))
    v = (residual.float() + step).to(x.dtype)
    return sglang_fused_norm_scale_shift(v, weight, bias, scale, shift, norm_type, eps), v


def _select01(
    y: torch.Tensor, rows: tuple[torch.Tensor, ...], index: torch.Tensor, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    second = index.bool().unsqueeze(-1)
    scale, shift, gate = (torch.where(second, rows[n + 3].float().unsqueeze(1), rows[n].float().unsqueeze(1)) for n in range(3))
    return (y * (1 + scale) + shift).to(like.dtype), gate.to(like.dtype)


def sglang_select01(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale0: torch.Tensor,
    shift0: torch.Tensor,
    gate0: torch.Tensor,
    scale1: torch.Tensor,
    shift1: torch.Tensor,
    gate1: torch.Tensor,
    index: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    assert x.is_contiguous()
    return _select01(_layer(x.float(), weight, bias, eps), (scale0, shift0, gate0, scale1, shift1, gate1), index, x)


def sglang_residual_select01(
    x: torch.Tensor,
    residual: torch.Tensor,
    residual_gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale0: torch.Tensor,
    shift0: torch.Tensor,
    gate0: torch.Tensor,
    scale1: torch.Tensor,
    shift1: torch.Tensor,
    gate1: torch.Tensor,
    index: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    assert x.is_contiguous()
    assert residual.is_contiguous()
    assert residual_gate.is_contiguous()
    v = residual.float() + residual_gate.float() * x.float()
    y, gate = _select01(_layer(v, weight, bias, eps), (scale0, shift0, gate0, scale1, shift1, gate1), index, x)
    return y, v.to(x.dtype), gate


def sglang_rmsnorm_interleaved_rope(
    x: torch.Tensor, weight: torch.Tensor, cos_sin_cache: torch.Tensor, eps: float, head_dim: int
) -> torch.Tensor:
    assert x.dim() == 2
    assert x.dtype in HALF
    assert (weight.dtype, weight.shape) == (x.dtype, x.shape[1:])
    assert (cos_sin_cache.dtype, cos_sin_cache.shape[1]) == (torch.float32, head_dim)
    assert x.shape[0] % cos_sin_cache.shape[0] == 0
    x.copy_(_rms(x, weight, eps))
    cos, sin = cos_sin_cache.repeat(x.shape[0] // cos_sin_cache.shape[0], 1).chunk(2, dim=-1)
    _turn_(x.view(x.shape[0], -1, head_dim), cos, sin, False)
    return x


_SGLANG = "sglang.kernels.ops.diffusion"


def comfy_adaln(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    assert x.is_contiguous()
    assert x.dtype == scale.dtype == shift.dtype
    assert scale.shape[-1] == shift.shape[-1] == x.shape[-1]
    return (_layer(x.float(), None, None, eps) * (1 + scale.float()) + shift.float()).to(x.dtype)


def comfy_rms_adaln(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    assert x.is_contiguous()
    assert x.dtype == scale.dtype == shift.dtype
    return (_rms(x.float(), None, eps) * (1 + scale.float()) + shift.float()).to(x.dtype)


def _comfy_turn_(x: torch.Tensor, freqs_cis: torch.Tensor, scale: torch.Tensor, eps: float, neox: bool) -> None:
    assert x.dim() == 4
    assert freqs_cis.dim() == 6
    assert freqs_cis.shape[:3] == (1, x.shape[1], 1)
    assert x.dtype in HALF
    x.copy_(_rms(x, scale, eps))
    _turn_(x[0], freqs_cis[0, :, 0, :, 0, 0], freqs_cis[0, :, 0, :, 1, 0], neox)
    assert torch.allclose(freqs_cis[..., 0, 1], -freqs_cis[..., 1, 0], atol=0.0, rtol=0.0, equal_nan=True)
    assert torch.allclose(freqs_cis[..., 0, 0], freqs_cis[..., 1, 1], atol=0.0, rtol=0.0, equal_nan=True)


def comfy_rms_rope_(
    q: torch.Tensor,
    k: torch.Tensor,
    freqs_cis: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    for x, scale in ((q, q_scale), (k, q_scale if k_scale is None else k_scale)):
        assert 2 * freqs_cis.shape[3] == x.shape[-1]
        _comfy_turn_(x, freqs_cis, scale, epsilon, neox=False)
    return q, k


def comfy_rms_rope_split_half_(
    q: torch.Tensor,
    k: torch.Tensor,
    freqs_cis: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    rot_dim: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    for x, scale in ((q, q_scale), (k, q_scale if k_scale is None else k_scale)):
        assert 2 * freqs_cis.shape[3] == (rot_dim or x.shape[-1])
        _comfy_turn_(x, freqs_cis, scale, epsilon, neox=True)
    return q, k


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "flashinfer.norm:rmsnorm": flashinfer_rmsnorm,
    "flashinfer.norm:layernorm": flashinfer_layernorm,
    "flashinfer.rope:apply_rope_with_cos_sin_cache_inplace": flashinfer_rope,
    "comfy_kitchen:adaln": comfy_adaln,
    "comfy_kitchen:rms_adaln": comfy_rms_adaln,
    "comfy_kitchen:rms_rope_": comfy_rms_rope_,
    "comfy_kitchen:rms_rope_split_half_": comfy_rms_rope_split_half_,
    "vllm._custom_ops:rms_norm": vllm_rms_norm,
    "vllm._custom_ops:rotary_embedding": vllm_rotary_embedding,
    "flash_attn.layers.rotary:apply_rotary_emb": flash_attn_apply_rotary_emb,
    "quack.rmsnorm:rmsnorm": quack_rmsnorm,
    "quack.rmsnorm:layernorm_fwd": quack_layernorm_fwd,
    f"{_SGLANG}:fused_inplace_qknorm_rope": sglang_fused_inplace_qknorm_rope,
    f"{_SGLANG}:fused_rmsnorm_interleaved_rope_": sglang_rmsnorm_interleaved_rope,
    f"{_SGLANG}:fused_norm_scale_shift": sglang_fused_norm_scale_shift,
    f"{_SGLANG}:fused_scale_residual_norm_scale_shift": sglang_fused_scale_residual_norm_scale_shift,
    f"{_SGLANG}:fuse_layernorm_scale_shift_gate_select01_kernel": sglang_select01,
    f"{_SGLANG}:fuse_residual_layernorm_scale_shift_gate_select01_kernel": sglang_residual_select01,
}
"""What the adapters call, at the newest of the addresses that they know."""
