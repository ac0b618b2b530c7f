"""torch.compile of the split chain in the models' other phrasing, of which Inductor makes a better kernel."""

from __future__ import annotations

import torch

from fusebench import kernel

from ..qknorm_rope._chain import rotate_whole
from ._chain import normed_and_rotated
from .op import Arguments


@kernel(
    "qknorm_across_heads_rope", "compiled_whole", version=1, role="compiled", language="torch", compile={},
    note="torch.compile of the split chain with the rotation written x * cos + turned(x) * sin",
)  # fmt: skip
def compiled_whole(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns new q and k, as `split_torch` does."""
    return normed_and_rotated(call, rotate_whole)
