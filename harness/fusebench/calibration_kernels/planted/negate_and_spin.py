"""One launch on a GPU that negates and then waits.

The program that ends last spins by the clock of its multiprocessor, so the launch becomes longer by the delay and scatters no more than
without it. (In version 1 the program with the last number spun, whenever it ended: launches of 4.5 us scattered by 9 % between placements
on an H200.)
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from fusebench import kernel

from ._cycles import CYCLES_PER_NS

BLOCK = 1024


@triton.jit
def _clock():
    # Not `pure`: it must be read anew each time round the loop.
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _negate_and_spin(x, ended, elements, cycles, block: tl.constexpr):
    program = tl.program_id(0)
    places = program * block + tl.arange(0, block)
    inside = places < elements
    tl.store(x + places, -tl.load(x + places, mask=inside), mask=inside)
    if tl.atomic_add(ended, 1) == tl.num_programs(0) - 1:
        tl.store(ended, 0)
        began = _clock()
        now = began
        while now - began < cycles:
            now = _clock()


@kernel("planted", "negate_and_spin", version=2, role="split", language="triton", note="`fusebench calibrate`'s delay within one launch")
def negate_and_spin(x: torch.Tensor, *, delay_ns: int = 0) -> None:
    _negate_and_spin[(triton.cdiv(x.numel(), BLOCK),)](x, _ended(x.device), x.numel(), delay_ns * CYCLES_PER_NS, block=BLOCK)


@functools.cache
def _ended(device: torch.device) -> torch.Tensor:
    """Counter of ended programs, one int32: 0 between launches, which follow one another on one stream."""
    return torch.zeros(1, dtype=torch.int32, device=device)
