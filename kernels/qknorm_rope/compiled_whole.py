"""torch.compile of the split chain in the models' other phrasing, of which Inductor makes a better kernel."""

from __future__ import annotations

import torch

from fusebench import kernel

from ._chain import normed_and_rotated, rotate_whole
from .op import Arguments


@kernel(
    "qknorm_rope", "compiled_whole", version=1, role="compiled", language="torch", compile={},
    note="torch.compile of the split chain with the rotation written x * cos + turned(x) * sin",
)  # fmt: skip
def compiled_whole(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns new q and k, as `split_torch` does."""
    return normed_and_rotated(call, rotate_whole)
