"""torch.compile of the split chain: what a user gets for free."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.compiled_chain import CompiledChain
from ._chain import split_chain

# The second norm takes its statistics on the rounded y, which Inductor keeps unrounded in registers unless it emulates the casts.
_compiled_chain = CompiledChain(split_chain, emulate_precision_casts=True)


@kernel(
    "norm_tanh_mul_add_norm_scale",
    "compiled",
    version=1,
    role="compiled",
    language="torch",
    note="torch.compile of split_torch, its casts emulated",
)
def compiled(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    weight2: torch.Tensor | None,
    bias2: torch.Tensor | None,
    scale2: torch.Tensor,
    *,
    eps: float = 1e-5,
    norm: str = "rms",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, y2), both `[B, S, D]`."""
    return _compiled_chain(residual, x, gate, weight, bias, weight2, bias2, scale2, eps, norm)
