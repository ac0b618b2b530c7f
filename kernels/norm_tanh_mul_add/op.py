"""norm_tanh_mul_add: the residual connection of Z-Image's blocks, in one op.

For every row x of D elements, with the row of the residual and of the gate that apply to it:

    y = residual + tanh(gate) * norm(x)

norm is as in norm_scale_shift; Z-Image's is an RMS norm with a weight and eps 1e-5.  The residual is `[B, S, D]`; it and the gate come in
any form of _shared/modulation.py, each in x's dtype or float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fusebench import Op, define_op
from fusebench.errors import KernelArgumentError

from .._shared.layout import Layout, layout_of, optional_layout, remembered
from .._shared.modulated_params import draw_modulations, draw_parameters, draw_rows, shrunk, view_modulations, view_rows
from .._shared.norm_tanh_params import (
    NormTanhParams,
    describe,
    draw_residual,
    gated_norm_bytes,
    gated_norm_flops,
    tanh_label,
    view_residual,
)

if TYPE_CHECKING:
    import torch


class Params(NormTanhParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x is `[batch, tokens, hidden]`; `modulation` is the gate's form."""


@define_op
class NormTanhMulAdd(Op):
    name = "norm_tanh_mul_add"
    Params = Params
    schema = "(Tensor residual, Tensor x, Tensor gate, Tensor? weight, Tensor? bias, *, float eps=1e-05, str norm='rms') -> Tensor"
    outputs = ("y",)
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
            **draw_modulations(params, {"gate": params.modulation}, device=device, generator=generator),
        }

    def arguments(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {
            "residual": view_residual(params, buffers["residual"]),
            "x": view_rows(params, buffers["x"]),
            **view_modulations(params, {"gate": params.modulation}, buffers),
            "weight": buffers.get("weight"),
            "bias": buffers.get("bias"),
            "eps": params.eps,
            "norm": params.norm,
        }

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.norm_tanh_chain import reference_gated_norm

        return {"y": reference_gated_norm(**arguments)}

    def params_of(
        self,
        residual: torch.Tensor,
        x: torch.Tensor,
        gate: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        *,
        eps: float = 1e-5,
        norm: str = "rms",
    ) -> Params:
        return _params_of(layout_of(residual), layout_of(x), layout_of(gate), optional_layout(weight), optional_layout(bias), eps, norm)

    def fake(
        self,
        residual: torch.Tensor,
        x: torch.Tensor,
        gate: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        *,
        eps: float = 1e-5,
        norm: str = "rms",
    ) -> torch.Tensor:
        return x.new_empty(x.shape)

    def minimum_bytes(self, params: Params) -> int:
        return gated_norm_bytes(params)

    def flops(self, params: Params) -> int:
        return gated_norm_flops(params)

    def shape(self, params: Params) -> str:
        return tanh_label(params)

    def shrink(self, params: Params, rows: int) -> Params:
        return shrunk(params, rows)


@remembered
def _params_of(residual: Layout, x: Layout, gate: Layout, weight: Layout | None, bias: Layout | None, eps: float, norm: str) -> Params:
    """The case that a call amounts to: the narrowest forms that read the same values."""
    from .._shared.norm_tanh_arguments import plan

    name = NormTanhMulAdd.name
    plan(name, residual, x, gate, weight, bias, None, None, None, eps, norm)
    try:
        return Params(
            **describe(x, modulation=gate, residual=residual),  # type: ignore[arg-type]
            norm=norm,  # type: ignore[arg-type]
            affine=weight is not None,
            eps=eps,
            dtype=x.dtype_name,  # type: ignore[arg-type]
            modulation_dtype="activation" if gate.dtype == x.dtype else "float32",
            residual_dtype="activation" if residual.dtype == x.dtype else "float32",
            strided=not (x.is_contiguous and residual.is_contiguous),
        )
    except ValueError as error:
        raise KernelArgumentError(f"{name}: {error}") from error
