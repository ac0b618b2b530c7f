"""norm_tanh_mul_add: the residual connection of Z-Image's blocks, in one op.

For every row x of D elements, with the row of the residual and of the gate that apply to it:

    y = residual + tanh(gate) * norm(x)

norm is as in norm_scale_shift; Z-Image's is an RMS norm with a weight and eps 1e-5.  The residual is `[B, S, D]`; it and the gate come in
any form of _shared/modulation.py, each in x's dtype or float32.
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
from .._shared.norm_arguments import MOST_ROWS, ROW_AXES
from .._shared.norm_tanh.params import (
    LARGEST_GATE,
    NormTanhParams,
    describe,
    draw_residual,
    gated_norm_bytes,
    gated_norm_flops,
    tanh_label,
    view_residual,
)
from .._shared.norm_tanh.plan import TanhPlan, tanh_plan

if TYPE_CHECKING:
    import torch


class Params(NormTanhParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x is `[batch, tokens, hidden]`; `modulation` is the gate's form."""


class Arguments(fusebench.Arguments, axes=ROW_AXES, anchor="x", most_rows=MOST_ROWS, returns={"y": "x"}):
    """x `[B, S, D]`, its norm's parameters `[D]`, residual and gate in any broadcast form; returns y `[B, S, D]`."""

    residual: torch.Tensor
    x: torch.Tensor = tensor("B S D", last_stride_one=True)
    gate: torch.Tensor
    weight: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    bias: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    eps: float = option(1e-5, positive=True)
    norm: Literal["layer", "rms"] = "rms"

    @staticmethod
    def plan(laid: Laid) -> TanhPlan:
        return tanh_plan(laid)

    @staticmethod
    def case(laid: Laid) -> dict[str, Any]:
        """The narrowest forms that read the same values."""
        return {
            **describe(laid.x, modulation=laid.gate, residual=laid.residual),
            "affine": laid.weight is not None,
            "modulation_dtype": "activation" if laid.gate.dtype == laid.x.dtype else "float32",
            "residual_dtype": "activation" if laid.residual.dtype == laid.x.dtype else "float32",
            "strided": not (laid.x.is_contiguous and laid.residual.is_contiguous),
        }


@define_op
class NormTanhMulAdd(Op):
    name = "norm_tanh_mul_add"
    Params = Params
    Arguments = Arguments
    baselines = ("split_triton@1", "split_torch@1")
    # `fused_cuda@4` is slower than @3 on most shapes, so only a table may put it first.
    dispatch_order = ("fused_triton@4", "fused_triton", "fused_cuda@3", "fused_cuda")
    space = FRAMED_SPACE
    dispatch_traits = ("unaligned", "per_token", "scalar")

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        return {
            "residual": draw_residual(params, device=device, generator=generator, magnitude=magnitude),
            "x": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
            **draw_parameters(params, device=device, generator=generator),
            **draw_modulations(params, {"gate": params.modulation}, device=device, generator=generator),
        }

    def unusual(self, params: Params, buffers: Mapping[str, torch.Tensor], *, generator: torch.Generator) -> Mapping[str, torch.Tensor]:
        """Weights, biases and gates of both signs, in some channels far from their usual values; gates that saturate tanh."""
        return draw_unusual(params, buffers, generator=generator, modulations=("gate",), most=LARGEST_GATE)

    def magnitudes(self, params: Params) -> tuple[float, ...]:
        return (1.0, 1e-3, LARGE_ROWS[params.dtype])

    def views(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        rows = {"residual": view_residual(params, buffers["residual"]), "x": view_rows(params, buffers["x"])}
        return {**buffers, **rows, **view_modulations(params, {"gate": params.modulation}, buffers)}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.norm_tanh.chain import reference_gated_norm

        return {"y": reference_gated_norm(**arguments)}

    def dispatch_key(self, params: Params) -> Any:
        return super().dispatch_key(narrowed(params, "modulation", "residual"))

    def minimum_bytes(self, params: Params) -> int:
        return gated_norm_bytes(params)

    def bytes_written(self, params: Params) -> int:
        return activation_bytes(params, 1)

    def flops(self, params: Params) -> int:
        return gated_norm_flops(params)

    def shape(self, params: Params) -> str:
        return tanh_label(params)

    def shrink(self, params: Params, rows: int) -> Params:
        return shrunk(params, rows)
