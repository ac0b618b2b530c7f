"""norm_tanh_mul_add_norm_scale: Z-Image's residual connection and the adaptive norm that follows it, in one op.

For every row x of D elements, with the rows of the residual, the gate and the scale that apply to it:

    y  = residual + tanh(gate) * norm(x)       rounded to x's dtype
    y2 = norm2(y) * (1 + scale2)               statistics of the rounded y

Both norms are of one kind and share eps, as in Z-Image (RMS, 1e-5), and have parameters of their own: weight and bias, weight2 and bias2.
Residual, gate and scale2 come in any form of _shared/modulation.py, each in x's dtype or float32.  Returns (y, y2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fusebench import Op, define_op
from fusebench.errors import KernelArgumentError

from .._shared.layout import Layout, layout_of, optional_layout, remembered
from .._shared.modulated_params import ITEM_SIZES, draw_modulations, draw_parameters, draw_rows, shrunk, view_modulations, view_rows
from .._shared.modulation import Form
from .._shared.norm_tanh_params import (
    NormTanhParams,
    describe,
    draw_residual,
    draw_second_parameters,
    gated_norm_bytes,
    gated_norm_flops,
    second_norm_flops,
    tanh_label,
    view_residual,
)

if TYPE_CHECKING:
    import torch


class Params(NormTanhParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x is `[batch, tokens, hidden]`; `modulation` is the gate's form."""

    scale2: Form = "batch"
    """Form of the second norm's scale; per-frame ones have as many frames as per-frame gates."""
    affine2: bool = False
    """Whether the second norm has a weight (and, a layer norm, a bias), in the dtype of the modulation."""

    @property
    def forms(self) -> tuple[Form, ...]:
        return (self.modulation, self.residual, self.scale2)


@define_op
class NormTanhMulAddNormScale(Op):
    name = "norm_tanh_mul_add_norm_scale"
    Params = Params
    schema = (
        "(Tensor residual, Tensor x, Tensor gate, Tensor? weight, Tensor? bias, Tensor? weight2, Tensor? bias2, Tensor scale2, *, "
        "float eps=1e-05, str norm='rms') -> (Tensor, Tensor)"
    )
    outputs = ("y", "y2")
    split_reference = "split_torch@1"
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton", "fused_cuda")

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        return {
            "residual": draw_residual(params, device=device, generator=generator, magnitude=magnitude),
            "x": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
            **draw_parameters(params, device=device, generator=generator),
            **(draw_second_parameters(params, device=device, generator=generator) if params.affine2 else {}),
            **draw_modulations(params, _forms(params), device=device, generator=generator),
        }

    def arguments(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        modulations = view_modulations(params, _forms(params), buffers)
        return {
            "residual": view_residual(params, buffers["residual"]),
            "x": view_rows(params, buffers["x"]),
            "gate": modulations["gate"],
            **{name: buffers.get(name) for name in ("weight", "bias", "weight2", "bias2")},
            "scale2": modulations["scale2"],
            "eps": params.eps,
            "norm": params.norm,
        }

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.norm_tanh_chain import reference_gated_norm, reference_norm_scale

        second = {name: arguments[name] for name in ("weight2", "bias2", "scale2", "eps", "norm")}
        y = reference_gated_norm(**{name: arguments[name] for name in ("residual", "x", "gate", "weight", "bias", "eps", "norm")})
        return {"y": y, "y2": reference_norm_scale(y.to(arguments["x"].dtype), **second)}

    def params_of(
        self,
        residual: torch.Tensor,
        x: torch.Tensor,
        gate: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        weight2: torch.Tensor | None,
        bias2: torch.Tensor | None,
        scale2: torch.Tensor,
        *,
        eps: float = 1e-5,
        norm: str = "rms",
    ) -> Params:
        return _params_of(
            layout_of(residual), layout_of(x), layout_of(gate), optional_layout(weight), optional_layout(bias),
            optional_layout(weight2), optional_layout(bias2), layout_of(scale2), eps, norm,
        )  # fmt: skip

    def fake(
        self,
        residual: torch.Tensor,
        x: torch.Tensor,
        gate: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        weight2: torch.Tensor | None,
        bias2: torch.Tensor | None,
        scale2: torch.Tensor,
        *,
        eps: float = 1e-5,
        norm: str = "rms",
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return x.new_empty(x.shape), x.new_empty(x.shape)

    def minimum_bytes(self, params: Params) -> int:
        second = math.prod(params.modulation_shape(params.scale2)) + _second_parameters(params) * params.hidden
        y2 = params.rows * params.hidden * ITEM_SIZES[params.dtype]
        return gated_norm_bytes(params) + y2 + second * params.modulation_item_size

    def flops(self, params: Params) -> int:
        second = second_norm_flops(params, _second_parameters(params)) + math.prod(params.modulation_shape(params.scale2))
        return gated_norm_flops(params) + second

    def shape(self, params: Params) -> str:
        scale2 = "" if params.scale2 == params.modulation else f"{params.scale2} scale2"
        return tanh_label(params, ("affine2" if params.affine2 else "", scale2))

    def shrink(self, params: Params, rows: int) -> Params:
        return shrunk(params, rows)


def _forms(params: Params) -> dict[str, Form]:
    return {"gate": params.modulation, "scale2": params.scale2}


def _second_parameters(params: Params) -> int:
    return 0 if not params.affine2 else 2 if params.norm == "layer" else 1


@remembered
def _params_of(
    residual: Layout, x: Layout, gate: Layout, weight: Layout | None, bias: Layout | None, weight2: Layout | None, bias2: Layout | None,
    scale2: Layout, eps: float, norm: str,
) -> Params:  # fmt: skip
    """The case that a call amounts to: the narrowest forms that read the same values, float32 if gate or scale2 is."""
    from .._shared.norm_tanh_arguments import plan

    name = NormTanhMulAddNormScale.name
    plan(name, residual, x, gate, weight, bias, weight2, bias2, scale2, eps, norm)
    try:
        return Params(
            **describe(x, modulation=gate, residual=residual, scale2=scale2),  # type: ignore[arg-type]
            norm=norm,  # type: ignore[arg-type]
            affine=weight is not None,
            affine2=weight2 is not None,
            eps=eps,
            dtype=x.dtype_name,  # type: ignore[arg-type]
            modulation_dtype="activation" if gate.dtype == scale2.dtype == x.dtype else "float32",
            residual_dtype="activation" if residual.dtype == x.dtype else "float32",
            strided=not (x.is_contiguous and residual.is_contiguous),
        )
    except ValueError as error:
        raise KernelArgumentError(f"{name}: {error}") from error
