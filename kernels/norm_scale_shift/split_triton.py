"""The split yardstick: one well-tuned norm launch, then one well-tuned modulation launch."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.modulated_norm_triton import UNCONTRACTED, intermediate_dtype, launch
from .._shared.row_tiles import flat, tuned
from .op import Arguments


@kernel("norm_scale_shift", "split_triton", version=1, role="split", language="triton", note="norm, then modulation: two launches")
def split_triton(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`; between the launches the norm is rounded to the dtype that models keep it in."""
    plan = call.checked()
    call.require_gpu()
    x = call.x
    normed = x.new_empty(x.shape, dtype=intermediate_dtype(x, call.weight, call.bias, call.scale, call.shift))
    y = call.allocate()
    launch(
        plan, tuned(plan.hidden), UNCONTRACTED, x, y=normed, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, chained=True
    )
    launch(plan, flat(plan.hidden), UNCONTRACTED, normed, y=y, scale=call.scale, shift=call.shift, chained=True)
    return y
