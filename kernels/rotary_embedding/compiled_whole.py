"""torch.compile of the split chain in the models' other phrasing, of which Inductor makes a better kernel."""

from __future__ import annotations

import torch

from fusebench import kernel

from ..qknorm_rope._chain import rotate_whole
from ._chain import rotated_by
from .op import Arguments


@kernel(
    "rotary_embedding", "compiled_whole", version=1, role="compiled", language="torch", compile={},
    note="torch.compile of the split chain with the rotation written x * cos + turned(x) * sin",
)  # fmt: skip
def compiled_whole(call: Arguments) -> tuple[torch.Tensor, ...]:
    """Returns new q, and k where there is one, as `split_torch` does."""
    return rotated_by(call, rotate_whole)
