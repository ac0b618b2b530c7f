"""The split yardstick: norm, then tanh, product and sum, then norm and scale: one well-tuned launch each."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.modulated_norm_triton import intermediate_dtype
from .._shared.norm_tanh.launch import launch
from .._shared.norm_tanh.plan import is_shifted
from .._shared.norm_tanh.tiles import tuned as tuned_gate
from .._shared.row_tiles import tuned
from .op import Arguments


@kernel(
    "norm_tanh_mul_add_norm_scale", "split_triton", version=1, role="split", language="triton",
    note="norm; tanh, product and sum; norm and scale: three launches",
)  # fmt: skip
def split_triton(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, y2), both `[B, S, D]`; between the launches the norm is rounded to the dtype that models keep it in."""
    plan = call.checked()
    call.require_gpu()
    x, y, y2 = call.x, *call.allocate()
    normed = x.new_empty(x.shape, dtype=intermediate_dtype(x, call.weight, call.bias, call.gate))
    launch(plan, tuned(plan.hidden), x, y=normed, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, chained=True)
    launch(plan, tuned_gate(plan.hidden, plan.rows), normed, y=y, residual=call.residual, gate=call.gate, chained=True)
    launch(
        plan, tuned(plan.hidden), y,
        y2=y2, norm=call.norm, weight2=call.weight2, bias2=call.bias2, eps=call.eps, scale2=call.scale2,
        residual=call.residual if is_shifted(plan, layer=call.norm == "layer") else None, chained=True,
    )  # fmt: skip
    return y, y2
