"""The parts of the modulated norms that norm libraries compute: `@kernel(..., covers=NORM)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fusebench import Part

from .modulated_params import ModulatedParams, activation_bytes
from .norm_chain import normalise, reference_norm, reference_residual, residual_gate_chain

if TYPE_CHECKING:
    import torch


def _normalised(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, norm: str) -> torch.Tensor:
    """Norm of x as models write it. Float32 parameters with 16-bit activations make it float32, rounded once."""
    if weight is not None and weight.dtype != x.dtype:
        return normalise(x.float(), weight, bias, eps, norm).to(x.dtype)
    return normalise(x, weight, bias, eps, norm)


def _norm_reference(params: ModulatedParams, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {"y": reference_norm(arguments["x"], arguments["weight"], arguments["bias"], params.eps, params.norm)}


def _norm_split(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, norm: str, **_modulation: torch.Tensor
) -> torch.Tensor:
    return _normalised(x, weight, bias, eps, norm)


def _bytes(params: ModulatedParams, activations: int) -> int:
    return activation_bytes(params, activations) + len(params.parameters) * params.hidden * params.modulation_item_size


NORM = Part(
    covers="norm only: no scale, no shift",
    reference=_norm_reference,
    split=_norm_split,
    minimum_bytes=lambda params: _bytes(params, 2),
    bytes_written=lambda params: activation_bytes(params, 1),
)
"""`y = norm(x)`, of norm_scale_shift."""


def _add_norm_reference(params: ModulatedParams, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    v = reference_residual(arguments["residual"], arguments["x"], None)
    return {"y": reference_norm(v, arguments["weight"], arguments["bias"], params.eps, params.norm), "v": v}


def _add_norm_split(
    residual: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    norm: str,
    **_modulation: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    v = residual_gate_chain(residual, x, None)
    return _normalised(v, weight, bias, eps, norm), v


ADD_NORM = Part(
    covers="residual + x and norm only: no gate, no scale, no shift",
    reference=_add_norm_reference,
    split=_add_norm_split,
    minimum_bytes=lambda params: _bytes(params, 4),
    bytes_written=lambda params: activation_bytes(params, 2),
)
"""`v = residual + x; y = norm(v)`, of residual_gate_norm_scale_shift. The reference computes its statistics from the unrounded v. Some
libraries round v first; both ways are within the error of the split chain, which rounds it."""
