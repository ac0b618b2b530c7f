"""A peer that computes a part of the op `scale`, and is therefore faster than anything that computes all of it.

Tests copy this file into a kernels folder; it lies outside of the toy project's own.
"""

from fusebench import kernel

from ._parts import COPY


@kernel("scale", "part", version=1, role="peer", language="torch", covers=COPY, note="planted")
def part(x, *, factor=2.0):
    return (x,)


@kernel("scale", "wrong_part", version=1, role="peer", language="torch", covers=COPY, note="computes all of the op")
def wrong_part(x, *, factor=2.0):
    x.mul_(factor)
