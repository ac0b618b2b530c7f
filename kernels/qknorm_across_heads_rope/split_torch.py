"""The eager chain: the launches and rounding points that Wan has today."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fusebench import kernel

from ..qknorm_rope._chain import rotate
from .op import Arguments


@kernel(
    "qknorm_across_heads_rope", "split_torch", version=1, role="split", language="torch",
    note="F.rms_norm of q, of k, then float32 rotation of each on real pairs; two roundings",
)  # fmt: skip
def split_torch(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns new q and k: the norm rounded to their dtype, then the rotation in float32, rounded again."""
    return _half(call, call.q, call.q_weight), _half(call, call.k, call.k_weight)


def _half(call: Arguments, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    tokens = call.cos_sin_cache.shape[0]
    # One sample's tokens to a row of the table each; samples lie one after another.
    cos, sin = call.cos_sin_cache.float().unsqueeze(1).chunk(2, dim=-1)
    rows = x.flatten(1)
    normed = F.rms_norm(rows, rows.shape[-1:], weight, call.eps).view(x.shape)
    return rotate(normed.unflatten(0, (-1, tokens)), cos, sin, "interleaved").flatten(0, 1) if tokens else normed
