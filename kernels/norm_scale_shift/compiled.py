"""torch.compile of the split chain: what a user gets for free."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.compiled_chain import CompiledChain
from .._shared.norm_chain import norm_scale_shift_chain

_compiled_chain = CompiledChain(norm_scale_shift_chain)


@kernel("norm_scale_shift", "compiled", version=1, role="compiled", language="torch", note="torch.compile of split_torch")
def compiled(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    *,
    eps: float = 1e-6,
    norm: str = "layer",
) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    return _compiled_chain(x, weight, bias, scale, shift, eps, norm)
