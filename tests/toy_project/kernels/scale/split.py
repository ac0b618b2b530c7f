"""The split chain of one launch."""

from fusebench import kernel


@kernel("scale", "split", version=1, role="split", language="torch")
def split(x, *, factor=2.0):
    return (x * factor,)
