"""The simplest correct fusion: one program per token of q or k, its channels in one tile."""

from __future__ import annotations

from fusebench import kernel

from ._triton import Cut, launch, one_tile
from .op import Arguments


@kernel(
    "qknorm_across_heads_rope", "fused_triton", version=1, role="fused", language="triton", replay=True,
    note="one program per token of q or k, one masked tile",
)  # fmt: skip
def fused_triton(call: Arguments) -> None:
    """Overwrites q and k."""
    call.checked()
    launch(call, Cut(one_tile(call.q.shape[1]), one_tile(call.k.shape[1]), num_warps=4))
