"""torch.compile of the split chain: what a user gets for free."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.compiled_chain import CompiledChain
from .._shared.select01_chain import select01_chain

_compiled_chain = CompiledChain(select01_chain)


@kernel(
    "norm_scale_shift_gate_select01", "compiled", version=1, role="compiled", language="torch",
    note="torch.compile of split_torch",
)  # fmt: skip
def compiled(
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
    """Returns (y, gate_out), both `[B, L, C]`."""
    return _compiled_chain(x, weight, bias, scale0, shift0, gate0, scale1, shift1, gate1, index, eps)
