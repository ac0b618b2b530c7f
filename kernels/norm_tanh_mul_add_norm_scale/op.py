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
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import fusebench
from fusebench import Op, define_op, option, tensor
from fusebench.registry.argument_rules import Laid
from fusebench.registry.op import LARGE_ROWS

from .._shared.modulated_params import (
    FRAMED_SPACE,
    ITEM_SIZES,
    activation_bytes,
    draw_modulations,
    draw_parameters,
    draw_rows,
    draw_unusual,
    narrowed,
    shrunk,
    view_modulations,
    view_rows,
)
from .._shared.modulation import Form
from .._shared.norm_arguments import MOST_ROWS, ROW_AXES
from .._shared.norm_tanh.params import (
    LARGEST_GATE,
    NormTanhParams,
    apart_from_mean,
    describe,
    draw_residual,
    draw_second_parameters,
    gated_norm_bytes,
    gated_norm_flops,
    second_norm_flops,
    tanh_label,
    view_residual,
)
from .._shared.norm_tanh.plan import TanhPlan, tanh_plan

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


class Arguments(fusebench.Arguments, axes=ROW_AXES, anchor="x", most_rows=MOST_ROWS, returns={"y": "x", "y2": "x"}):
    """x `[B, S, D]`, the parameters `[D]` of both norms, residual, gate and scale2 in any broadcast form; returns y and y2 `[B, S, D]`."""

    residual: torch.Tensor
    x: torch.Tensor = tensor("B S D", last_stride_one=True)
    gate: torch.Tensor
    weight: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    bias: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    weight2: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    bias2: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    scale2: torch.Tensor
    eps: float = option(1e-5, positive=True)
    norm: Literal["layer", "rms"] = "rms"

    @staticmethod
    def plan(laid: Laid) -> TanhPlan:
        return tanh_plan(laid)

    @staticmethod
    def case(laid: Laid) -> dict[str, Any]:
        """The narrowest forms that read the same values, float32 if gate or scale2 is."""
        return {
            **describe(laid.x, modulation=laid.gate, residual=laid.residual, scale2=laid.scale2),
            "affine": laid.weight is not None,
            "affine2": laid.weight2 is not None,
            "modulation_dtype": "activation" if laid.gate.dtype == laid.scale2.dtype == laid.x.dtype else "float32",
            "residual_dtype": "activation" if laid.residual.dtype == laid.x.dtype else "float32",
            "strided": not (laid.x.is_contiguous and laid.residual.is_contiguous),
        }


@define_op
class NormTanhMulAddNormScale(Op):
    name = "norm_tanh_mul_add_norm_scale"
    Params = Params
    Arguments = Arguments
    baselines = ("split_triton@1", "split_torch@1")
    # `fused_cuda@4` is slower than @3 on most shapes, so only a table may put it first.
    dispatch_order = ("fused_triton@4", "fused_triton", "fused_cuda@3", "fused_cuda")
    space = FRAMED_SPACE
    dispatch_traits = ("unaligned", "per_token", "scalar")
    # The second norm takes its statistics on the rounded y, which Inductor keeps unrounded in registers unless it emulates the casts.
    compiled: ClassVar = {"emulate_precision_casts": True}

    reduced = ("gate", "weight", "bias")

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        buffers = {
            "residual": draw_residual(params, device=device, generator=generator, magnitude=magnitude),
            "x": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
            **draw_parameters(params, device=device, generator=generator),
            **(draw_second_parameters(params, device=device, generator=generator) if params.affine2 else {}),
            **draw_modulations(params, _forms(params), device=device, generator=generator),
        }
        if magnitude > 1.0 and params.norm == "layer" and params.residual not in ("token", "scalar"):
            # Rows that share this residual are equal but for rounding, and the second norm leaves its distance from the row's mean. What a
            # bias cancels of that would be rounding alone.
            residual = buffers["residual"][..., -params.hidden :]
            residual.copy_(apart_from_mean(residual))
            if params.affine2:
                buffers["bias2"].zero_()
        return buffers

    def unusual(self, params: Params, buffers: Mapping[str, torch.Tensor], *, generator: torch.Generator) -> Mapping[str, torch.Tensor]:
        """Weights, biases, gates and scales of both signs, in some channels far from their usual values; gates that saturate tanh."""
        both = ("weight", "bias", "weight2", "bias2")
        made = draw_unusual(params, buffers, generator=generator, parameters=both, modulations=("gate",), most=LARGEST_GATE)
        return draw_unusual(params, made, generator=generator, parameters=(), modulations=("scale2",))

    def magnitudes(self, params: Params) -> tuple[float, ...]:
        return (1.0, 1e-3, LARGE_ROWS[params.dtype])

    def views(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        rows = {"residual": view_residual(params, buffers["residual"]), "x": view_rows(params, buffers["x"])}
        return {**buffers, **rows, **view_modulations(params, _forms(params), buffers)}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.norm_tanh.chain import reference_gated_norm, reference_norm_scale

        second = {name: arguments[name] for name in ("weight2", "bias2", "scale2", "eps", "norm")}
        y = reference_gated_norm(**{name: arguments[name] for name in ("residual", "x", "gate", "weight", "bias", "eps", "norm")})
        return {"y": y, "y2": reference_norm_scale(y.to(arguments["x"].dtype), **second)}

    def dispatch_key(self, params: Params) -> Any:
        return super().dispatch_key(narrowed(params, "modulation", "residual", "scale2"))

    def minimum_bytes(self, params: Params) -> int:
        second = math.prod(params.modulation_shape(params.scale2)) + _second_parameters(params) * params.hidden
        y2 = params.rows * params.hidden * ITEM_SIZES[params.dtype]
        return gated_norm_bytes(params) + y2 + second * params.modulation_item_size

    def bytes_written(self, params: Params) -> int:
        return activation_bytes(params, 2)

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
