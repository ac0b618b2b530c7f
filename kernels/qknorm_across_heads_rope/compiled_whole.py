"""torch.compile of the split chain in the models' other phrasing, of which Inductor makes a better kernel."""

from __future__ import annotations

import torch

from fusebench import kernel

from ..qknorm_rope._chain import OTHERS, WHOLE, Phrasing
from ._chain import normed_and_rotated
from .op import Arguments


@kernel(
    "qknorm_across_heads_rope", "compiled_whole", version=1, role="compiled", language="torch", compile={}, choices=OTHERS,
    note="torch.compile of the split chain with the rotation written x * cos + turned(x) * sin",
)  # fmt: skip
def compiled_whole(call: Arguments, choice: Phrasing = WHOLE) -> tuple[torch.Tensor, ...] | None:
    """Returns new tensors as `split_torch` does, or overwrites q and k."""
    return choice.hand_over(call.q, call.k, normed_and_rotated(call, choice.rotation))
