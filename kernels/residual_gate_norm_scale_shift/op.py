"""residual_gate_norm_scale_shift: a block's residual connection and the next adaptive norm, in one op.

For every row x of D elements, with its row of the residual stream and the gate, scale and shift that apply to it:

    v = residual + gate * x                    rounded to x's dtype; without a gate, residual + x
    y = norm(v) * (1 + scale) + shift          statistics of the rounded v

norm is as in norm_scale_shift; gate, scale and shift come in any form of _shared/modulation.py.  Returns (y, v).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from fusebench import Op, define_op
from fusebench.errors import KernelArgumentError

from .._shared.layout import Layout, layout_of, optional_layout, remembered
from .._shared.modulated_params import (
    ITEM_SIZES,
    ModulatedParams,
    draw_modulations,
    draw_parameters,
    draw_rows,
    label,
    modulation_bytes,
    norm_flops,
    shrunk,
    view_modulations,
    view_rows,
)
from .._shared.modulation import Form, form_of, widest

if TYPE_CHECKING:
    import torch


class Params(ModulatedParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x and residual are `[batch, tokens, hidden]`."""

    gate: Literal["none", "scalar", "channel", "batch", "token", "frame"] = "batch"
    """Form of the gate; per-frame gates have as many frames as per-frame scales."""

    @property
    def forms(self) -> tuple[Form, ...]:
        return (self.modulation, self.modulation) if self.gate == "none" else (self.gate, self.modulation, self.modulation)


@define_op
class ResidualGateNormScaleShift(Op):
    name = "residual_gate_norm_scale_shift"
    Params = Params
    schema = (
        "(Tensor residual, Tensor x, Tensor? gate, Tensor? weight, Tensor? bias, Tensor scale, Tensor shift, *, "
        "float eps=1e-06, str norm='layer') -> (Tensor, Tensor)"
    )
    outputs = ("y", "v")
    split_reference = "split_torch@1"
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton", "fused_cuda")

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        return {
            "residual": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
            "x": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
            **draw_parameters(params, device=device, generator=generator),
            **draw_modulations(params, _forms(params), device=device, generator=generator),
        }

    def arguments(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {
            "residual": view_rows(params, buffers["residual"]),
            "x": view_rows(params, buffers["x"]),
            "gate": None,
            "weight": buffers.get("weight"),
            "bias": buffers.get("bias"),
            **view_modulations(params, _forms(params), buffers),
            "eps": params.eps,
            "norm": params.norm,
        }

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.norm_chain import reference_modulation, reference_norm, reference_residual

        v = reference_residual(arguments["residual"], arguments["x"], arguments["gate"])
        normed = reference_norm(v.to(arguments["x"].dtype), arguments["weight"], arguments["bias"], params.eps, params.norm)
        return {"y": reference_modulation(normed, arguments["scale"], arguments["shift"]), "v": v}

    def params_of(
        self,
        residual: torch.Tensor,
        x: torch.Tensor,
        gate: torch.Tensor | None,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: torch.Tensor,
        shift: torch.Tensor,
        *,
        eps: float = 1e-6,
        norm: str = "layer",
    ) -> Params:
        return _params_of(
            layout_of(residual), layout_of(x), optional_layout(gate), optional_layout(weight), optional_layout(bias),
            layout_of(scale), layout_of(shift), eps, norm,
        )  # fmt: skip

    def fake(
        self,
        residual: torch.Tensor,
        x: torch.Tensor,
        gate: torch.Tensor | None,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: torch.Tensor,
        shift: torch.Tensor,
        *,
        eps: float = 1e-6,
        norm: str = "layer",
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return x.new_empty(x.shape), x.new_empty(x.shape)

    def minimum_bytes(self, params: Params) -> int:
        return 4 * params.rows * params.hidden * ITEM_SIZES[params.dtype] + modulation_bytes(params, params.forms)

    def flops(self, params: Params) -> int:
        per_element = 1 if params.gate == "none" else 2
        return per_element * params.rows * params.hidden + norm_flops(params)

    def shape(self, params: Params) -> str:
        return label(params, "" if params.gate == "batch" else "no gate" if params.gate == "none" else f"{params.gate} gate")

    def shrink(self, params: Params, rows: int) -> Params:
        return shrunk(params, rows)


def _forms(params: Params) -> dict[str, Any]:
    gate = {} if params.gate == "none" else {"gate": params.gate}
    return gate | {"scale": params.modulation, "shift": params.modulation}


@remembered
def _params_of(
    residual: Layout, x: Layout, gate: Layout | None, weight: Layout | None, bias: Layout | None, scale: Layout, shift: Layout,
    eps: float, norm: str,
) -> Params:  # fmt: skip
    """The case that a call amounts to: of scale and shift the wider form, float32 if any modulation is."""
    from .._shared.norm_arguments import plan

    name = ResidualGateNormScaleShift.name
    plan(name, x, residual, gate, weight, bias, scale, shift, eps, norm)
    form, frames = widest(form_of(scale), form_of(shift))
    gate_form, gate_frames = ("none", 1) if gate is None else form_of(gate)
    # A case has one frame count.  No kernel's support depends on it, so a gate of other frames is described as one per token.
    if gate_frames > 1 and frames > 1 and gate_frames != frames:
        gate_form, gate_frames = "token", 1
    modulations = [modulation for modulation in (gate, scale, shift) if modulation is not None]
    try:
        return Params(
            batch=max(1, x.shape[0]),  # an empty batch is a call like any other, and no kernel's support depends on the count
            tokens=max(frames, gate_frames, x.shape[1]),
            hidden=x.shape[2],
            frames=max(frames, gate_frames),
            norm=norm,  # type: ignore[arg-type]
            affine=weight is not None,
            eps=eps,
            dtype=x.dtype_name,  # type: ignore[arg-type]
            modulation=form,
            modulation_dtype="activation" if all(modulation.dtype == x.dtype for modulation in modulations) else "float32",
            strided=not (x.is_contiguous and residual.is_contiguous),
            gate=gate_form,
        )
    except ValueError as error:
        raise KernelArgumentError(f"{name}: {error}") from error
