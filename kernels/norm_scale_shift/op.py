"""norm_scale_shift: the adaptive norm of a diffusion transformer's block.

For every row x of D elements, with the scale and shift that apply to it:

    y = norm(x) * (1 + scale) + shift

norm is a layer norm, `(x - mean) * rsqrt(variance + eps) * weight + bias` with the population variance, or an RMS norm,
`x * rsqrt(mean(x^2) + eps) * weight`; weight and bias are optional.  Scale and shift come in any form of _shared/modulation.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

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
from .._shared.modulation import form_of, widest
from .._shared.norm_arguments import MOST_ROWS, ROW_AXES, Plan, modulated_plan

if TYPE_CHECKING:
    import torch


class Params(ModulatedParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x is `[batch, tokens, hidden]`."""


class Arguments(fusebench.Arguments, axes=ROW_AXES, anchor="x", most_rows=MOST_ROWS, returns={"y": "x"}):
    """x `[B, S, D]`, its norm's parameters `[D]`, and the modulation; returns y `[B, S, D]`."""

    x: torch.Tensor = tensor("B S D", last_stride_one=True)
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
        """Of scale and shift the wider form, float32 if either is."""
        form, frames = widest(form_of(laid.scale), form_of(laid.shift))
        return {
            "tokens": max(frames, laid.x.shape[1]),
            "frames": frames,
            "affine": laid.weight is not None,
            "modulation": form,
            "modulation_dtype": "activation" if laid.scale.dtype == laid.shift.dtype == laid.x.dtype else "float32",
            "strided": not laid.x.is_contiguous,
        }


@define_op
class NormScaleShift(Op):
    name = "norm_scale_shift"
    Params = Params
    Arguments = Arguments
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton@2", "fused_triton", "fused_cuda")
    space = FRAMED_SPACE
    dispatch_traits = ("unaligned", "per_token", "scalar")
    parts = (".._shared.norm_parts:NORM",)

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        return {
            "x": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
            **draw_parameters(params, device=device, generator=generator),
            **draw_modulations(params, _forms(params), device=device, generator=generator),
        }

    def unusual(self, params: Params, buffers: Mapping[str, torch.Tensor], *, generator: torch.Generator) -> Mapping[str, torch.Tensor]:
        """Weights, biases and modulations of both signs, in some channels far from their usual values."""
        return draw_unusual(params, buffers, generator=generator, modulations=("scale", "shift"))

    def magnitudes(self, params: Params) -> tuple[float, ...]:
        return (1.0, 1e-3, LARGE_ROWS[params.dtype])

    def views(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {**buffers, "x": view_rows(params, buffers["x"]), **view_modulations(params, _forms(params), buffers)}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.norm_chain import reference_modulation, reference_norm

        normed = reference_norm(arguments["x"], arguments["weight"], arguments["bias"], params.eps, params.norm)
        return {"y": reference_modulation(normed, arguments["scale"], arguments["shift"])}

    def dispatch_key(self, params: Params) -> Any:
        return super().dispatch_key(narrowed(params, "modulation"))

    def minimum_bytes(self, params: Params) -> int:
        return 2 * params.rows * params.hidden * ITEM_SIZES[params.dtype] + modulation_bytes(params, params.forms)

    def bytes_written(self, params: Params) -> int:
        return activation_bytes(params, 1)

    def flops(self, params: Params) -> int:
        return norm_flops(params)

    def shape(self, params: Params) -> str:
        return label(params)

    def shrink(self, params: Params, rows: int) -> Params:
        return shrunk(params, rows)


def _forms(params: Params) -> dict[str, Any]:
    return {"scale": params.modulation, "shift": params.modulation}
