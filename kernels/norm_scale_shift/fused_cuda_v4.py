"""Rows streamed by teams of warps beside tables of what they share (`_shared/row_tables.cuh`), compiled by NVRTC for each shape.

No GPU has run it yet: `dispatch` takes it only where a table holds a time of it.
"""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_tables import declined
from .._shared.modulated_norm_cuda import launch
from .op import Arguments, Params


@kernel(
    "norm_scale_shift", "fused_cuda", version=4, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="teams of warps stream rows beside tables, in shared memory, of the factor and term that rows share",
)  # fmt: skip
def fused_cuda(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu(interpreted=False)
    y = call.allocate()
    launch(
        plan, call.x,
        y=y, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, scale=call.scale, shift=call.shift, tabled=True,
    )  # fmt: skip
    return y


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return declined(params, streams=1, forms=(params.modulation,), kinds=2) or True
