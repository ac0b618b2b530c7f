"""The default timer on CUDA: CUPTI activity records, read through torch's profiler.

Each call runs inside a range, and so does the work between calls; `attribution` assigns the records to them.

Device times are those of the activity records, without the constant of about 2.8 us that CUDA events add.  They tick in 32 ns on an
H200.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..arm import Arm, CallTiming
from .attribution import BETWEEN, CALL, attribute

if TYPE_CHECKING:
    import torch


class CuptiTimer:
    """Times calls by their activity records.

    Raises:
        TimerError: a call left no record, or a record belongs to no range.
    """

    name = "cupti"

    def __init__(self, kineto_config: str = "") -> None:
        """`kineto_config`: lines of Kineto's configuration.  Its buffers have a fixed size of 4 MB; only their number can be set, by
        `ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB`.  A replicate (some 400 calls, 6 records of about 200 bytes each) fills an eighth of one.  So no
        buffer is handed over before the last call is timed; handing one over would stall the launching thread."""
        self._kineto_config = kineto_config

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        # Make the first call twice and drop the first timing: there the host is least ahead of the device.  In a nightly on an H200, one in
        # ten of the first calls with several launches waited for the host.
        calls = [*calls[:1], *calls]
        return attribute(self.record(calls, prepare), [arm.name for arm in calls], first_kept=False)

    def record(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[Any]:
        """Make the calls and return the profiler's events, for `attribute`."""
        import torch
        from torch._C._profiler import _ExperimentalConfig, _RecordFunctionFast

        # Not `torch.profiler.profile`, which has one of these: it looks up a setting of Inductor and imports 900 modules for that, SymPy
        # among them, which took each measuring process 3.6 s on an H200.
        from torch.autograd.profiler import profile

        # The backend's own line ends where our first line begins.
        lines = _ExperimentalConfig(custom_profiler_config=f"\n{self._kineto_config}") if self._kineto_config else None
        with profile(use_device="cuda", use_kineto=True, experimental_config=lines) as profiler:
            followed: Callable[[], None] = _nothing
            for index, arm in enumerate(calls):
                with _RecordFunctionFast(BETWEEN), _without_operators():
                    followed()
                    followed = _nothing  # what the call returned is free before the next one allocates
                    prepare(arm)
                with _RecordFunctionFast(f"{CALL}{index}"), _without_operators():
                    returned = arm.call()
                followed = functools.partial(arm.after, returned)
                del returned
            with _RecordFunctionFast(BETWEEN), _without_operators():
                followed()
                torch.cuda.synchronize()
        return list(profiler.kineto_results.events())


def _nothing() -> None:
    """Before the first call there is none to look back at."""


def start_profiler(device: torch.device) -> None:
    """Profile one small launch on `device`, the current CUDA device, and wait for it.

    The first profile of a process loads CUPTI and attaches it.  Errors are torch's own.
    """
    import torch

    x = torch.zeros(1, device=device)
    CuptiTimer().record([Arm("start", x.neg_, lambda: None)], lambda arm: None)


@contextmanager
def _without_operators() -> Iterator[None]:
    """Suppress the records of operators.  Launches still leave theirs, with the number of the range around them.

    Kineto takes some 9 us per record when it stops, which was most of the cost of a timed call.
    """
    from torch._C._autograd import _enable_record_function

    _enable_record_function(False)
    try:
        yield
    finally:
        _enable_record_function(True)
