"""The eager chain: the launches and rounding points that Wan has today."""

from __future__ import annotations

import torch

from fusebench import kernel

from ..qknorm_rope._chain import rotate
from ._chain import normed_and_rotated
from .op import Arguments


@kernel(
    "qknorm_across_heads_rope", "split_torch", version=1, role="split", language="torch",
    note="F.rms_norm of q, of k, then float32 rotation of each on real pairs; two roundings",
)  # fmt: skip
def split_torch(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns new q and k: the norm rounded to their dtype, then the rotation in float32, rounded again."""
    return normed_and_rotated(call, rotate)
