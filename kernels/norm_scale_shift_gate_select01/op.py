"""norm_scale_shift_gate_select01: Qwen-Image-Edit's two-way modulation, whose tokens take one of two row sets each.

For every row x of C elements and its token's index:

    y = layer_norm(x) * (1 + scale_i) + shift_i
    gate_out = gate_i                                      rounded to x's dtype

i is 0 where the index is zero and 1 where it is anything else; weight and bias are optional.  Returns (y, gate_out).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fusebench import Op, define_op
from fusebench.errors import KernelArgumentError

from .._shared import select01_params
from .._shared.layout import Layout, layout_of, optional_layout, remembered
from .._shared.select01_params import Select01Params, described, draw_inputs, params_from, shrunk, view_inputs

if TYPE_CHECKING:
    import torch

NAME = "norm_scale_shift_gate_select01"


class Params(Select01Params, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x is `[batch, tokens, hidden]`."""


@define_op
class NormScaleShiftGateSelect01(Op):
    name = NAME
    Params = Params
    schema = (
        "(Tensor x, Tensor? weight, Tensor? bias, Tensor scale0, Tensor shift0, Tensor gate0, "
        "Tensor scale1, Tensor shift1, Tensor gate1, Tensor index, *, float eps=1e-06) -> (Tensor, Tensor)"
    )
    outputs = ("y", "gate_out")
    split_reference = "split_torch@1"
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton", "fused_cuda")

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        return draw_inputs(params, device=device, generator=generator, magnitude=magnitude)

    def arguments(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {**view_inputs(params, buffers), "eps": params.eps}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.select01_chain import reference_select01

        return reference_select01(arguments["x"], arguments, params.eps)

    def params_of(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale0: torch.Tensor,
        shift0: torch.Tensor,
        gate0: torch.Tensor,
        scale1: torch.Tensor,
        shift1: torch.Tensor,
        gate1: torch.Tensor,
        index: torch.Tensor,
        *,
        eps: float = 1e-6,
    ) -> Params:
        rows = (scale0, shift0, gate0, scale1, shift1, gate1)
        return _params_of(
            layout_of(x), optional_layout(weight), optional_layout(bias), tuple(map(layout_of, rows)), layout_of(index), eps
        )  # fmt: skip

    def fake(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale0: torch.Tensor,
        shift0: torch.Tensor,
        gate0: torch.Tensor,
        scale1: torch.Tensor,
        shift1: torch.Tensor,
        gate1: torch.Tensor,
        index: torch.Tensor,
        *,
        eps: float = 1e-6,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return x.new_empty(x.shape), x.new_empty(x.shape)

    def minimum_bytes(self, params: Params) -> int:
        return select01_params.minimum_bytes(params, activations=3)

    def flops(self, params: Params) -> int:
        return select01_params.flops(params)

    def shape(self, params: Params) -> str:
        return described(params)

    def shrink(self, params: Params, rows: int) -> Params:
        return shrunk(params, rows)


@remembered
def _params_of(
    x: Layout, weight: Layout | None, bias: Layout | None, rows: tuple[Layout, ...], index: Layout, eps: float
) -> Params:  # fmt: skip
    """The case that a call amounts to."""
    from .._shared.select01_arguments import plan

    plan(NAME, x, None, None, weight, bias, rows, index, eps)
    try:
        return params_from(Params, x, weight, rows[0], index, eps, strided=not x.is_contiguous)
    except ValueError as error:
        raise KernelArgumentError(f"{NAME}: {error}") from error
