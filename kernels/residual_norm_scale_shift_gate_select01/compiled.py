"""torch.compile of the split chain: what a user gets for free."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.compiled_chain import CompiledChain
from ._chain import split_chain

# The op takes its statistics on the unrounded v, which is what Inductor keeps in registers: its casts need no emulation, unlike those of
# residual_gate_norm_scale_shift.
_compiled_chain = CompiledChain(split_chain)


@kernel(
    "residual_norm_scale_shift_gate_select01", "compiled", version=1, role="compiled", language="torch",
    note="torch.compile of split_torch",
)  # fmt: skip
def compiled(
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
    """Returns (y, v, gate_out), each `[B, L, C]`."""
    return _compiled_chain(residual, x, residual_gate, weight, bias, scale0, shift0, gate0, scale1, shift1, gate1, index, eps)
