"""torch.compile of the split chain: what a user gets for free."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_tanh_chain import norm_tanh_mul_add_chain

# Static shapes, because a benchmark's shapes are fixed; fullgraph, so that a graph break or an exhausted recompile limit
# raises instead of quietly timing the eager chain under this kernel's name.
_compiled_chain = torch.compile(norm_tanh_mul_add_chain, fullgraph=True, dynamic=False)


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
