"""The eager chain: the launches that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from ..qknorm_rope._chain import rotate
from ._chain import rotated_by
from .op import Arguments


@kernel(
    "rotary_embedding", "split_torch", version=1, role="split", language="torch", note="float32 rotation in torch operations, one rounding"
)
def split_torch(call: Arguments) -> tuple[torch.Tensor, ...]:
    """Returns new q, and k where there is one: rotated in float32 and rounded once."""
    return rotated_by(call, rotate)
