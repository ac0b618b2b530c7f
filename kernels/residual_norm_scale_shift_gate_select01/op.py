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

from fusebench import Op, define_op
from fusebench.errors import KernelArgumentError

from .._shared import select01_params
from .._shared.layout import Layout, layout_of, optional_layout, remembered
from .._shared.modulated_params import draw_rows, view_rows
from .._shared.select01_params import Select01Params, described, draw_inputs, draw_residual_gate, params_from, shrunk, view_inputs

if TYPE_CHECKING:
    import torch

NAME = "residual_norm_scale_shift_gate_select01"

FLOAT16_ADDEND = 65504 / 4
"""Greatest magnitude of x and residual in a float16 case: with gates up to 3, six of their standard deviations, v then fits float16.
Where it does not, the split chain norms Inf, whose rows leave no error to compare with; the op norms the unrounded v, which is finite."""


class Params(Select01Params, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x, residual and residual_gate are `[batch, tokens, hidden]`."""


@define_op
class ResidualNormScaleShiftGateSelect01(Op):
    name = NAME
    Params = Params
    schema = (
        "(Tensor residual, Tensor x, Tensor residual_gate, Tensor? weight, Tensor? bias, Tensor scale0, Tensor shift0, Tensor gate0, "
        "Tensor scale1, Tensor shift1, Tensor gate1, Tensor index, *, float eps=1e-06) -> (Tensor, Tensor, Tensor)"
    )
    outputs = ("y", "v", "gate_out")
    split_reference = "split_torch@1"
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton", "fused_cuda")

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

    def arguments(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {
            "residual": view_rows(params, buffers["residual"]),
            "residual_gate": view_rows(params, buffers["residual_gate"]),
            **view_inputs(params, buffers),
            "eps": params.eps,
        }

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.norm_chain import reference_residual
        from .._shared.select01_chain import reference_select01

        v = reference_residual(arguments["residual"], arguments["x"], arguments["residual_gate"])
        return {"v": v, **reference_select01(v, arguments, params.eps)}

    def params_of(
        self,
        residual: torch.Tensor,
        x: torch.Tensor,
        residual_gate: torch.Tensor,
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
            layout_of(residual), layout_of(x), layout_of(residual_gate), optional_layout(weight), optional_layout(bias),
            tuple(map(layout_of, rows)), layout_of(index), eps,
        )  # fmt: skip

    def fake(
        self,
        residual: torch.Tensor,
        x: torch.Tensor,
        residual_gate: torch.Tensor,
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
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(x.shape)

    def minimum_bytes(self, params: Params) -> int:
        return select01_params.minimum_bytes(params, activations=6)

    def flops(self, params: Params) -> int:
        return 2 * params.rows * params.hidden + select01_params.flops(params)

    def shape(self, params: Params) -> str:
        return described(params)

    def shrink(self, params: Params, rows: int) -> Params:
        return shrunk(params, rows)


@remembered
def _params_of(
    residual: Layout, x: Layout, residual_gate: Layout, weight: Layout | None, bias: Layout | None, rows: tuple[Layout, ...],
    index: Layout, eps: float,
) -> Params:  # fmt: skip
    """The case that a call amounts to."""
    from .._shared.select01_arguments import plan

    plan(NAME, x, residual, residual_gate, weight, bias, rows, index, eps)
    strided = not all(tensor.is_contiguous for tensor in (residual, x, residual_gate))
    try:
        return params_from(Params, x, weight, rows[0], index, eps, strided=strided)
    except ValueError as error:
        raise KernelArgumentError(f"{NAME}: {error}") from error
