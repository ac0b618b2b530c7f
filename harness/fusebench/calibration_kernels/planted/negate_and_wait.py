"""One elementwise launch, and a wait: on a GPU a kernel that spins in the same stream, on a CPU a loop that watches the clock."""

from __future__ import annotations

import time

import torch

from fusebench import kernel

from ._cycles import CYCLES_PER_NS


@kernel("planted", "negate_and_wait", version=1, role="split", language="torch", note="the object of `fusebench calibrate`")
def negate_and_wait(x: torch.Tensor, *, delay_ns: int = 0) -> None:
    torch.neg(x, out=x)
    if not delay_ns:
        return
    if x.is_cuda:
        torch.cuda._sleep(delay_ns * CYCLES_PER_NS)  # type: ignore[no-untyped-call]
        return
    end = time.perf_counter_ns() + delay_ns
    while time.perf_counter_ns() < end:
        pass
