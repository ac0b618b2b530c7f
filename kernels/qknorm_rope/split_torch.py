"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from ._chain import normed_and_rotated, rotate
from .op import Arguments


@kernel("qknorm_rope", "split_torch", version=1, role="split", language="torch", note="F.rms_norm, then float32 rotation; two roundings")
def split_torch(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns new q and k: the norm rounded to their dtype, then the rotation in float32, rounded again. `round_norm` changes nothing."""
    return normed_and_rotated(call, rotate)
