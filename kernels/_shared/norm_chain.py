"""Modulated norms in torch operations: the eager chain that models run, and the float64 reference of every kernel."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F

from .modulation import combine


def norm_scale_shift_chain(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    eps: float,
    norm: str,
) -> torch.Tensor:
    """Norm, `* (1 + scale)`, `+ shift`, each step rounded to x's dtype.

    With 16-bit activations and any float32 argument, the steps run in float32 and the result is rounded once, as in Wan's blocks
    (`(norm(x.float()) * (1 + scale) + shift).type_as(x)`).
    """
    tensors = [tensor for tensor in (weight, bias, scale, shift) if tensor is not None]
    wide = any(tensor.dtype != x.dtype for tensor in tensors)
    y = normalise(*(_widened(tensor, wide) for tensor in (x, weight, bias)), eps, norm)  # type: ignore[arg-type]
    return combine(operator.add, combine(operator.mul, y, 1 + scale), shift).to(x.dtype)


def residual_gate_chain(residual: torch.Tensor, x: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """`residual + gate * x`; a float32 gate makes both steps float32 before the result is rounded to x's dtype."""
    return (residual + (x if gate is None else combine(operator.mul, x, gate))).to(x.dtype)


def normalise(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, norm: str) -> torch.Tensor:
    """Norm of each row of x `[..., D]`."""
    if norm == "rms":
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _widened(tensor: torch.Tensor | None, wide: bool) -> torch.Tensor | None:
    return tensor.float() if wide and tensor is not None else tensor


def reference_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, norm: str) -> torch.Tensor:
    """The norm's definition in float64: two passes, population variance."""
    wide = x.double()
    if norm == "layer":
        wide = wide - wide.mean(dim=-1, keepdim=True)
    y = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.double()
    return y if bias is None else y + bias.double()


def reference_modulation(y: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """`y * (1 + scale) + shift` in float64."""
    return combine(operator.add, combine(operator.mul, y, 1 + scale.double()), shift.double())


def reference_residual(residual: torch.Tensor, x: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """`residual + gate * x` in float64."""
    return residual.double() + (x.double() if gate is None else combine(operator.mul, x.double(), gate.double()))
