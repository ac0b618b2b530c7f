"""residual_gate_norm_scale_shift: a block's residual connection and the next adaptive norm, in one op.

For every row x of D elements, with its row of the residual stream and the gate, scale and shift that apply to it:

    v = residual + gate * x                    rounded to x's dtype; without a gate, residual + x
    y = norm(v) * (1 + scale) + shift          statistics of the rounded v

norm is as in norm_scale_shift; gate, scale and shift come in any form of _shared/modulation.py.  Returns (y, v).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import fusebench
from fusebench import Op, define_op, option, tensor
from fusebench.registry.argument_rules import Laid
from fusebench.registry.op import LARGE_ROWS

from .._shared.modulated_params import (
    FRAMED_SPACE,
    ITEM_SIZES,
    ModulatedParams,
    activation_bytes,
    draw_modulations,
    draw_parameters,
    draw_rows,
    draw_unusual,
    label,
    modulation_bytes,
    narrowed,
    norm_flops,
    shrunk,
    view_modulations,
    view_rows,
)
from .._shared.modulation import Form, form_of, widest
from .._shared.norm_arguments import MOST_ROWS, ROW_AXES, Plan, modulated_plan

if TYPE_CHECKING:
    import torch


class Params(ModulatedParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x and residual are `[batch, tokens, hidden]`."""

    gate: Literal["none", "scalar", "channel", "batch", "token", "frame"] = "batch"
    """Form of the gate; per-frame gates have as many frames as per-frame scales."""

    @property
    def forms(self) -> tuple[Form, ...]:
        return (self.modulation, self.modulation) if self.gate == "none" else (self.gate, self.modulation, self.modulation)


class Arguments(fusebench.Arguments, axes=ROW_AXES, anchor="x", most_rows=MOST_ROWS, returns={"y": "x", "v": "x"}):
    """residual and x `[B, S, D]`, the norm's parameters `[D]`, gate and modulation; returns y and v `[B, S, D]`."""

    residual: torch.Tensor = tensor(like="x", last_stride_one=True)
    x: torch.Tensor = tensor("B S D", last_stride_one=True)
    gate: torch.Tensor | None
    weight: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    bias: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    scale: torch.Tensor
    shift: torch.Tensor
    eps: float = option(1e-6, positive=True)
    norm: Literal["layer", "rms"] = "layer"

    @staticmethod
    def plan(laid: Laid) -> Plan:
        return modulated_plan(laid)

    @staticmethod
    def case(laid: Laid) -> dict[str, Any]:
        """Of scale and shift the wider form, float32 if any modulation is."""
        form, frames = widest(form_of(laid.scale), form_of(laid.shift))
        gate_form, gate_frames = ("none", 1) if laid.gate is None else form_of(laid.gate)
        # A case has one frame count.  No kernel's support depends on it, so a gate of other frames is described as one per token.
        if gate_frames > 1 and frames > 1 and gate_frames != frames:
            gate_form, gate_frames = "token", 1
        modulations = [each for each in (laid.gate, laid.scale, laid.shift) if each is not None]
        return {
            "tokens": max(frames, gate_frames, laid.x.shape[1]),
            "frames": max(frames, gate_frames),
            "affine": laid.weight is not None,
            "modulation": form,
            "modulation_dtype": "activation" if all(each.dtype == laid.x.dtype for each in modulations) else "float32",
            "strided": not (laid.x.is_contiguous and laid.residual.is_contiguous),
            "gate": gate_form,
        }


@define_op
class ResidualGateNormScaleShift(Op):
    name = "residual_gate_norm_scale_shift"
    Params = Params
    Arguments = Arguments
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton@2", "fused_triton", "fused_cuda")
    space = FRAMED_SPACE
    dispatch_traits = ("unaligned", "per_token", "scalar")
    parts = (".._shared.norm_parts:ADD_NORM",)
    # The op takes its statistics on the rounded v, which Inductor keeps unrounded in registers unless it is told to emulate the casts:
    # without it the result leaves the contract on inputs of magnitude 1e-3 (seen on an H200, 32760 x 1536 with an affine norm).
    compiled: ClassVar = {"emulate_precision_casts": True}

    reduced = ("gate",)

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        return {
            "residual": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
            "x": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
            **draw_parameters(params, device=device, generator=generator),
            **draw_modulations(params, _forms(params), device=device, generator=generator),
        }

    def unusual(self, params: Params, buffers: Mapping[str, torch.Tensor], *, generator: torch.Generator) -> Mapping[str, torch.Tensor]:
        """Weights, biases and modulations of both signs, in some channels far from their usual values."""
        return draw_unusual(params, buffers, generator=generator, modulations=("gate", "scale", "shift"))

    def magnitudes(self, params: Params) -> tuple[float, ...]:
        return (1.0, 1e-3, LARGE_ROWS[params.dtype])

    def views(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        rows = {name: view_rows(params, buffers[name]) for name in ("residual", "x")}
        return {**buffers, **rows, **view_modulations(params, _forms(params), buffers)}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.norm_chain import reference_modulation, reference_norm, reference_residual

        v = reference_residual(arguments["residual"], arguments["x"], arguments["gate"])
        normed = reference_norm(v.to(arguments["x"].dtype), arguments["weight"], arguments["bias"], params.eps, params.norm)
        return {"y": reference_modulation(normed, arguments["scale"], arguments["shift"]), "v": v}

    def dispatch_key(self, params: Params) -> Any:
        return super().dispatch_key(narrowed(params, "modulation", "gate"))

    def minimum_bytes(self, params: Params) -> int:
        return 4 * params.rows * params.hidden * ITEM_SIZES[params.dtype] + modulation_bytes(params, params.forms)

    def bytes_written(self, params: Params) -> int:
        return activation_bytes(params, 2)

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
