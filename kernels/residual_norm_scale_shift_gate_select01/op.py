"""residual_norm_scale_shift_gate_select01: a block's residual connection and Qwen-Image-Edit's two-way modulation, in one op.

For every row x of C elements, its rows of the residual stream and of a gate, and its token's index:

    v = residual + residual_gate * x                       returned rounded to x's dtype
    y = layer_norm(v) * (1 + scale_i) + shift_i            statistics and values of the unrounded v
    gate_out = gate_i                                      rounded to x's dtype

i is 0 where the index is zero and 1 where it is anything else; weight and bias are optional.  Returns (y, v, gate_out).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import fusebench
from fusebench import Op, define_op, option, tensor
from fusebench.registry.argument_rules import Laid
from fusebench.registry.op import LARGE_ROWS

from .._shared.modulated_params import LARGEST_MODULATION, ROW_SPACE, activation_bytes, draw_rows, view_rows
from .._shared.norm_arguments import MOST_ROWS, ROW_AXES
from .._shared.select01.params import (
    Select01Params,
    described,
    draw_inputs,
    draw_residual_gate,
    draw_unusual_inputs,
    select01_bytes,
    select01_case,
    select01_flops,
    view_inputs,
)
from .._shared.select01.plan import Plan, select01_plan

if TYPE_CHECKING:
    import torch

FLOAT16_ADDEND = 65504 / 4
"""Greatest magnitude of x and residual in a float16 case: with gates up to 3, six of their standard deviations, v then fits float16.
Where it does not, the split chain norms Inf, whose rows leave no error to compare with; the op norms the unrounded v, which is finite."""


class Params(Select01Params, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x, residual and residual_gate are `[batch, tokens, hidden]`."""


class Arguments(fusebench.Arguments, axes=ROW_AXES, anchor="x", most_rows=MOST_ROWS, returns={"y": "x", "v": "x", "gate_out": "x"}):
    """residual, x and residual_gate `[B, S, D]`, the norm's parameters `[D]`, two sets of three rows `[B, D]`, and the index `[B, S]` that
    picks a set."""

    residual: torch.Tensor = tensor(like="x", last_stride_one=True)
    x: torch.Tensor = tensor("B S D", last_stride_one=True)
    residual_gate: torch.Tensor = tensor(like="x", last_stride_one=True)
    weight: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    bias: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
    scale0: torch.Tensor = tensor("B D", dtype=("x", "float32"), last_stride_one=True)
    shift0: torch.Tensor = tensor("B D", dtype=("x", "float32"), last_stride_one=True)
    gate0: torch.Tensor = tensor("B D", dtype=("x", "float32"), last_stride_one=True)
    scale1: torch.Tensor = tensor("B D", dtype=("x", "float32"), last_stride_one=True)
    shift1: torch.Tensor = tensor("B D", dtype=("x", "float32"), last_stride_one=True)
    gate1: torch.Tensor = tensor("B D", dtype=("x", "float32"), last_stride_one=True)
    index: torch.Tensor = tensor("B S", dtype=("int32", "int64", "bool"))
    eps: float = option(1e-6, positive=True)

    @staticmethod
    def plan(laid: Laid) -> Plan:
        return select01_plan(laid)

    @staticmethod
    def case(laid: Laid) -> dict[str, Any]:
        return select01_case(laid, laid.residual, laid.x, laid.residual_gate)


@define_op
class ResidualNormScaleShiftGateSelect01(Op):
    name = "residual_norm_scale_shift_gate_select01"
    Params = Params
    Arguments = Arguments
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton", "fused_cuda")
    space = ROW_SPACE
    dispatch_kinds = ("dtype", "affine", "modulation_dtype", "strided")  # a call's index is not read
    dispatch_traits = ("unaligned",)

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        made = {
            "residual": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
            "residual_gate": draw_residual_gate(params, device=device, generator=generator),
            **draw_inputs(params, device=device, generator=generator, magnitude=magnitude),
        }
        if params.dtype == "float16":
            for name in ("residual", "x"):
                made[name].clamp_(-FLOAT16_ADDEND, FLOAT16_ADDEND)
        return made

    def unusual(self, params: Params, buffers: Mapping[str, torch.Tensor], *, generator: torch.Generator) -> Mapping[str, torch.Tensor]:
        """Parameters and rows of both sets far from their usual values in some channels; an index of any pattern."""
        from fusebench.accuracy.inputs import unusual_channels

        gate = unusual_channels(buffers["residual_gate"], generator=generator, most=LARGEST_MODULATION)
        return {**draw_unusual_inputs(params, buffers, generator=generator), "residual_gate": gate}

    def magnitudes(self, params: Params) -> tuple[float, ...]:
        return (1.0, 1e-3, LARGE_ROWS[params.dtype])

    def views(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        rows = {name: view_rows(params, buffers[name]) for name in ("residual", "residual_gate")}
        return {**rows, **view_inputs(params, buffers)}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.norm_chain import reference_residual
        from .._shared.select01.chain import reference_select01

        v = reference_residual(arguments["residual"], arguments["x"], arguments["residual_gate"])
        return {"v": v, **reference_select01(v, arguments, params.eps)}

    def minimum_bytes(self, params: Params) -> int:
        return select01_bytes(params, activations=6)

    def bytes_written(self, params: Params) -> int:
        return activation_bytes(params, 3)

    def flops(self, params: Params) -> int:
        return 2 * params.rows * params.hidden + select01_flops(params)

    def shape(self, params: Params) -> str:
        return described(params)
