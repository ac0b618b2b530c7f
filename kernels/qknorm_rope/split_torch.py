"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fusebench import kernel

from ._chain import rotate
from .op import Arguments


@kernel("qknorm_rope", "split_torch", version=1, role="split", language="torch", note="F.rms_norm, then float32 rotation; two roundings")
def split_torch(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns new q and k: the norm rounded to their dtype, then the rotation in float32, rounded again. `round_norm` changes nothing."""
    q, k, positions = call.q, call.k, call.positions
    rows = positions + call.position_offset if call.position_offset else positions
    cos, sin = call.cos_sin_cache.index_select(0, rows).float().unsqueeze(1).chunk(2, dim=-1)
    normed = (F.rms_norm(q, q.shape[-1:], call.q_weight, call.eps), F.rms_norm(k, k.shape[-1:], call.k_weight, call.eps))
    return rotate(normed[0], cos, sin, call.layout), rotate(normed[1], cos, sin, call.layout)
