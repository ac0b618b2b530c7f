"""The default timer on CUDA: CUPTI activity records, read through torch's profiler.

Each call runs inside a range, and so does what happens between calls; `timing.attribution` tells from the records what belongs to which.

Device times are those of the activity records, without the constant of about 2.8 us that CUDA events add.  They tick in 32 ns on an
H200.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .arm import Arm, CallTiming
from .attribution import BETWEEN, CALL, attribute

if TYPE_CHECKING:
    import torch


class CuptiTimer:
    """Times calls by their activity records.  Raises TimerError when a call left none or a record belongs to no range."""

    name = "cupti"

    def __init__(self, kineto_config: str = "") -> None:
        """`kineto_config`: lines of Kineto's configuration.  Its buffers are 4 MB each, which cannot be changed; only their number can, by
        `ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB`.  A replicate (some 400 calls, 6 records of about 200 bytes each) fills an eighth of one, so
        none is handed over, which would stall the launching thread, before the last call is timed."""
        self._kineto_config = kineto_config

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        # One call more than is timed: the host is least ahead of the device in the first of a profile, and one in ten of such, of several
        # launches, waited for it in a nightly on an H200.
        calls = [*calls[:1], *calls]
        return attribute(self.record(calls, prepare), [arm.name for arm in calls], first_kept=False)

    def record(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[Any]:
        """Make the calls and return the profiler's events, for `attribute`."""
        import torch
        from torch._C._profiler import _ExperimentalConfig, _RecordFunctionFast
        from torch.profiler import ProfilerActivity, profile

        # One cycle is all there is.  `acc_events`, which silences torch's warning of that, makes the profiler build its own tables of all
        # events at once: 0.7 s for the twelve replicates of a case, and nothing of it is read.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Pp]rofiler clears events")
            # The backend's own line ends where the first of ours begins.
            lines = _ExperimentalConfig(custom_profiler_config=f"\n{self._kineto_config}") if self._kineto_config else None
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], experimental_config=lines) as profiler:
                for index, arm in enumerate(calls):
                    with _RecordFunctionFast(BETWEEN), _without_operators():
                        prepare(arm)
                    with _RecordFunctionFast(f"{CALL}{index}"), _without_operators():
                        arm.call()
                with _RecordFunctionFast(BETWEEN):
                    torch.cuda.synchronize()
        return list(profiler.profiler.kineto_results.events())


def start_profiler(device: torch.device) -> None:
    """Profile one small launch on `device`, a CUDA device that is the current one, and wait for it.

    The first profile of a process loads CUPTI and attaches it, which takes some 3 s on an H200.  Raises whatever torch raises.
    """
    import torch

    x = torch.zeros(1, device=device)
    CuptiTimer().record([Arm("start", x.neg_, lambda: None)], lambda arm: None)


@contextmanager
def _without_operators() -> Iterator[None]:
    """Within it operators leave no records; launches do, and carry the number of the range around them all the same.

    Kineto takes some 9 us for every record when it stops, which was most of what a timed call cost.
    """
    from torch._C._autograd import _enable_record_function

    _enable_record_function(False)
    try:
        yield
    finally:
        _enable_record_function(True)
