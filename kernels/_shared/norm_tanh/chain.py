"""Norm, tanh gate and residual in torch operations: the eager chain that Z-Image runs, and the float64 reference of every kernel."""

from __future__ import annotations

import operator

import torch

from ..modulation import combine
from ..norm_chain import normalise, reference_norm


def norm_tanh_mul_add_chain(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    norm: str,
) -> torch.Tensor:
    """Norm, tanh of the gate, their product, the sum, each rounded to x's dtype as in Z-Image's block.

    With 16-bit activations and a float32 argument other than the residual, the steps run in float32 and y is rounded once.
    """
    normed = _normalise(x, weight, bias, (gate,), eps, norm)
    return combine(operator.add, combine(operator.mul, normed, gate.tanh()), residual).to(x.dtype)


def norm_scale_chain(
    y: torch.Tensor, weight2: torch.Tensor | None, bias2: torch.Tensor | None, scale2: torch.Tensor, eps: float, norm: str
) -> torch.Tensor:
    """Norm and `* (1 + scale2)`, each rounded to y's dtype. With a float32 argument beside y: float32 steps and one rounding."""
    return combine(operator.mul, _normalise(y, weight2, bias2, (scale2,), eps, norm), 1 + scale2).to(y.dtype)


def _normalise(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, beside: tuple[torch.Tensor, ...], eps: float, norm: str
) -> torch.Tensor:
    if any(tensor.dtype != x.dtype for tensor in (weight, bias, *beside) if tensor is not None):
        x, weight, bias = x.float(), *(None if tensor is None else tensor.float() for tensor in (weight, bias))
    return normalise(x, weight, bias, eps, norm)


def reference_gated_norm(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    norm: str,
) -> torch.Tensor:
    """`residual + tanh(gate) * norm(x)` in float64."""
    gated = combine(operator.mul, reference_norm(x, weight, bias, eps, norm), gate.double().tanh())
    return combine(operator.add, gated, residual.double())


def reference_norm_scale(
    y: torch.Tensor, weight2: torch.Tensor | None, bias2: torch.Tensor | None, scale2: torch.Tensor, eps: float, norm: str
) -> torch.Tensor:
    """`norm(y) * (1 + scale2)` in float64; y is the rounded one."""
    return combine(operator.mul, reference_norm(y, weight2, bias2, eps, norm), 1 + scale2.double())
