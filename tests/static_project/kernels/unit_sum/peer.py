"""Another library's kernel: fusebench has no say in how it is compiled."""

from fusebench import kernel

from .in_triton import launch


@kernel("unit_sum", "peer", version=1, role="peer", language="triton")
def peer(x):
    launch(x)
