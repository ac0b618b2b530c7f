"""The process that Nsight Compute profiles: one kernel, one case, one profiled call.

`python -m fusebench.counters.child TASK.json`.  All other work (loading, inputs, compilation, tuning, restoring the inputs of an in-place
op) happens before the profiler is switched on.  Each kernel and case has its own process, so a crash stops no other capture.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import describe_exception
from ..registry import load_collection
from ..registry.loading.watching import Watch
from ..schema import KernelId
from ..timing.placement import ArmSpec, Placement
from .task import Called, CaptureTask, Doing, Raised, write_message

if TYPE_CHECKING:
    import torch

    from ..timing.arm import Arm


def main(arguments: list[str]) -> int:
    """Run the task in the file that the one argument names.  Returns 0 when its call was made, 1 when an exception ended it."""
    (file,) = arguments
    task = msgspec.json.decode(Path(file).read_bytes(), type=CaptureTask)
    diary = Path(task.diary)
    try:
        perform(task, lambda what: write_message(diary, Doing(what)))
    except Exception as error:  # noqa: BLE001 - any error of a kernel is the result of its capture
        write_message(diary, Raised(describe_exception(error, [Path(root) for root in (*task.roots, *task.kernel_roots)])))
        return 1
    write_message(diary, Called())
    return 0


def perform(task: CaptureTask, say: Callable[[str], None]) -> None:
    """Make the task's one profiled call; `say(what)` is called before every step."""
    say("loading the kernels")
    import torch

    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    arm = _placed(task, device)
    say("compiling and calling it for the first time")
    for number in range(task.warm_up_calls):
        arm.restore()
        arm.call()
        _synchronize(device)
        if number == 0:
            say("calling it again before the capture")
    arm.restore()
    _synchronize(device)
    say("reading its counters")
    with profiled(device):
        arm.call()
        _synchronize(device)


def _placed(task: CaptureTask, device: torch.device) -> Arm:
    """The kernel with inputs of its own, placed like timed ones."""
    import torch

    same, wanted = task.kernel_roots == task.roots, KernelId.parse(task.kernel)
    watch = Watch(task.excluded)
    own = load_collection(
        [Path(root) for root in task.roots], kernels=same, entry_points=False, kernel=wanted, operators=False, watch=watch
    )
    others = [Path(root) for root in task.kernel_roots]
    collection = own if same else load_collection(others, entry_points=False, kernel=wanted, operators=False, watch=watch)
    op = own.op(task.case.op)
    kernel = collection.prepared(task.kernel)
    params = op.parse_params(task.case.params)
    values = op.buffers(params, device=device, generator=torch.Generator(device).manual_seed(task.seed))
    return Placement(op, params, values, device, random.Random(task.seed)).arm(ArmSpec(task.kernel, kernel))


@contextmanager
def profiled(device: torch.device) -> Iterator[None]:
    """The range that Nsight Compute profiles when it does not start by itself; no effect on a CPU."""
    if device.type != "cuda":
        yield
        return
    import torch

    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
