"""The split yardstick: residual and gate, norm, modulation, one well-tuned launch each."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.modulated_norm_triton import UNCONTRACTED, intermediate_dtype, launch
from .._shared.row_tiles import flat, tuned
from .op import Arguments


@kernel(
    "residual_gate_norm_scale_shift", "split_triton", version=1, role="split", language="triton",
    note="residual and gate, norm, modulation: three launches",
)  # fmt: skip
def split_triton(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]`; between the launches the norm is rounded to the dtype that models keep it in."""
    plan = call.checked()
    call.require_gpu()
    x, (y, v) = call.x, call.allocate()
    normed = x.new_empty(x.shape, dtype=intermediate_dtype(x, call.weight, call.bias, call.scale, call.shift))
    launch(plan, flat(plan.hidden), UNCONTRACTED, x, v=v, residual=call.residual, gate=call.gate, chained=True)
    launch(
        plan, tuned(plan.hidden), UNCONTRACTED, v, y=normed, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, chained=True
    )
    launch(plan, flat(plan.hidden), UNCONTRACTED, normed, y=y, scale=call.scale, shift=call.shift, chained=True)
    return y, v
