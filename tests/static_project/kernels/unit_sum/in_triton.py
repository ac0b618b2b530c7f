# ruff: noqa: N803 - Triton writes compile-time constants in capitals
"""One device function, launched by kernels that tests spoil one by one: each has its own line of options, empty here."""

import triton
import triton.language as tl

from fusebench import kernel

UNCHANGED = {}
SPILLING = {}
NARROWER = {}
FEWER_WARPS = {}
LONGER = {}


@triton.jit
def _unit_sum(x_ptr, columns, BLOCK: tl.constexpr, TIMES: tl.constexpr):
    at = x_ptr + tl.program_id(0) * columns + tl.arange(0, BLOCK)
    x = tl.load(at)
    for _ in tl.static_range(TIMES):
        x = x / tl.sum(x, 0)
    tl.store(at, x)


def launch(x, *, start=0, times=1, num_warps=4, **options):
    assert x.is_cuda, x.device
    _unit_sum[(x.shape[0],)](x.view(-1)[start:], x.stride(0), BLOCK=x.shape[1], TIMES=times, num_warps=num_warps, **options)


@kernel("unit_sum", "unchanged", version=1, role="fused", language="triton")
def unchanged(x):
    launch(x, **UNCHANGED)


@kernel("unit_sum", "spilling", version=1, role="fused", language="triton")
def spilling(x):
    launch(x, **SPILLING)


@kernel("unit_sum", "narrower", version=1, role="fused", language="triton")
def narrower(x):
    launch(x, **NARROWER)


@kernel("unit_sum", "fewer_warps", version=1, role="fused", language="triton")
def fewer_warps(x):
    launch(x, **FEWER_WARPS)


@kernel("unit_sum", "longer", version=1, role="fused", language="triton")
def longer(x):
    launch(x, **LONGER)
