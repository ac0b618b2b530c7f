"""norm_scale_shift_gate_select01: Qwen-Image-Edit's two-way modulation, whose tokens take one of two row sets each.

For every row x of C elements and its token's index:

    y = layer_norm(x) * (1 + scale_i) + shift_i
    gate_out = gate_i                                      rounded to x's dtype

i is 0 where the index is zero and 1 where it is anything else; weight and bias are optional.  Returns (y, gate_out).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import fusebench
from fusebench import Op, define_op, option, tensor
from fusebench.registry.argument_rules import Laid
from fusebench.registry.op import LARGE_ROWS

from .._shared.modulated_params import ROW_SPACE, activation_bytes
from .._shared.norm_arguments import MOST_ROWS, ROW_AXES
from .._shared.select01.params import (
    Select01Params,
    described,
    draw_inputs,
    draw_unusual_inputs,
    select01_bytes,
    select01_case,
    select01_flops,
    view_inputs,
)
from .._shared.select01.plan import Plan, select01_plan

if TYPE_CHECKING:
    import torch


class Params(Select01Params, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x is `[batch, tokens, hidden]`."""


class Arguments(fusebench.Arguments, axes=ROW_AXES, anchor="x", most_rows=MOST_ROWS, returns={"y": "x", "gate_out": "x"}):
    """x `[B, S, D]`, the norm's parameters `[D]`, two sets of three rows `[B, D]`, and the index `[B, S]` that picks a set."""

    x: torch.Tensor = tensor("B S D", last_stride_one=True)
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
        return select01_case(laid, laid.x)


@define_op
class NormScaleShiftGateSelect01(Op):
    name = "norm_scale_shift_gate_select01"
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
        return draw_inputs(params, device=device, generator=generator, magnitude=magnitude)

    def unusual(self, params: Params, buffers: Mapping[str, torch.Tensor], *, generator: torch.Generator) -> Mapping[str, torch.Tensor]:
        """Parameters and rows of both sets far from their usual values in some channels; an index of any pattern."""
        return draw_unusual_inputs(params, buffers, generator=generator)

    def magnitudes(self, params: Params) -> tuple[float, ...]:
        return (1.0, 1e-3, LARGE_ROWS[params.dtype])

    def views(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return view_inputs(params, buffers)

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.select01.chain import reference_select01

        return reference_select01(arguments["x"], arguments, params.eps)

    def minimum_bytes(self, params: Params) -> int:
        return select01_bytes(params, activations=3)

    def bytes_written(self, params: Params) -> int:
        return activation_bytes(params, 2)

    def flops(self, params: Params) -> int:
        return select01_flops(params)

    def shape(self, params: Params) -> str:
        return described(params)
