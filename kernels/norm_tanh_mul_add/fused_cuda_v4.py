"""Rows streamed by teams of warps beside tables of what they share (`_shared/row_tables.cuh`), compiled by NVRTC for each shape.

An H200 has run it: of the row norms only these two ops gained by tables, and not everywhere, so `dispatch` takes it by measurement only.
"""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_tables import declined
from .._shared.norm_tanh.cuda import table_kinds_of
from .fused_cuda import run
from .op import Arguments, Params


@kernel(
    "norm_tanh_mul_add", "fused_cuda", version=4, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="teams of warps stream rows beside tables, in shared memory, of the factor and term that rows share",
)  # fmt: skip
def fused_cuda(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    return run(call, "tabled")


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return declined(params, streams=params.residual_streams, kinds=table_kinds_of(params)) or True
