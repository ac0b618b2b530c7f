"""How a board's process sees its device, and how it names it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fusebench.device import Device
from fusebench.fleet.board_process import BoardSetup, seen_alone
from fusebench.runner.workers.pool import WorkerPool
from fusebench.schema import CacheState, SamplingPlan


def test_a_gpu_that_its_process_sees_alone_is_named_as_the_user_does() -> None:
    device = Device(kind="cuda", name="NVIDIA H200", index=3, uuid="GPU-d")
    setup = BoardSetup(
        device=device,
        label="cuda:3",
        cores=None,
        units={},
        roots=(),
        ops=frozenset(),
        excluded={},
        project_root=Path(),
        plan=SamplingPlan(replicates=1, rounds=1, cache=CacheState.COLD, trim=0.1),
        timer="auto",
        silence_s=1.0,
        wait_s=0.0,
    )
    alone = seen_alone(setup)
    assert (alone.torch_name, str(alone)) == ("cuda:0", "NVIDIA H200 (cuda:3, GPU-d)")
    assert str(msgspec.structs.replace(alone, label="")) == "NVIDIA H200 (cuda:0, GPU-d)", "the name that torch has for it there"
    worker = WorkerPool(alone, ()).native._setup
    assert (worker.device, worker.label) == ("cuda:0", "cuda:3")
