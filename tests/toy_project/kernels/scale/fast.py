"""A kernel that CPUs do not run and that declines some sizes."""

from fusebench import kernel


@kernel("scale", "fast", version=2, role="fused", language="cuda", note="four at a time")
def fast(x, *, factor=2.0):
    x.mul_(factor)


@fast.supports
def _(params):
    return params.size % 4 == 0 or f"size {params.size} is no multiple of 4"
