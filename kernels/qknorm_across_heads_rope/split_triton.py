"""The split yardstick: well-tuned launches of the norm of q, the norm of k, the rotation of q and the rotation of k, each in place."""

from __future__ import annotations

import triton

from fusebench import kernel

from ._triton import launch_stage, two_tiles
from .op import Arguments


def warps(heads: int, head_dim: int) -> int:
    """Warps of each launch: 32 elements a thread, as in the norms' launches."""
    return max(1, min(8, triton.next_power_of_2(heads * head_dim) // 1024))


@kernel(
    "qknorm_across_heads_rope", "split_triton", version=1, role="split", language="triton",
    note="norm of q, of k, rotation of q, of k: four launches, in place",
)  # fmt: skip
def split_triton(call: Arguments) -> None:
    """Overwrites q and k.  The norm's result is rounded to their dtype between the launches."""
    call.checked()
    for norm in (True, False):
        for name, heads in (("q", call.q.shape[1]), ("k", call.k.shape[1])):
            launch_stage(call, name, two_tiles(heads), warps(heads, call.q.shape[2]), norm=norm)
