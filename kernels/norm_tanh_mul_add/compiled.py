"""torch.compile of the split chain: what a user gets for free."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.compiled_chain import CompiledChain
from .._shared.norm_tanh_chain import norm_tanh_mul_add_chain

_compiled_chain = CompiledChain(norm_tanh_mul_add_chain)


@kernel("norm_tanh_mul_add", "compiled", version=1, role="compiled", language="torch", note="torch.compile of split_torch")
def compiled(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    eps: float = 1e-5,
    norm: str = "rms",
) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    return _compiled_chain(residual, x, gate, weight, bias, eps, norm)
