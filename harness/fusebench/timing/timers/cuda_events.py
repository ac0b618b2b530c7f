"""Fallback timer on CUDA: a pair of events around each call.

On an H200 events add a constant of about 2.8 us to the work between them, which biases ratios of short kernels toward 1.  So the timer's
name is part of the result, and its results are never compared with CUPTI's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..arm import Arm, CallTiming


class CudaEventTimer:
    name = "cuda_events"

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        import torch

        pairs = []
        for arm in calls:
            prepare(arm)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            returned = arm.call()
            end.record()
            arm.after(returned)
            del returned
            pairs.append((start, end))
        torch.cuda.synchronize()
        spans = [round(start.elapsed_time(end) * 1e6) for start, end in pairs]
        return [CallTiming.of_whole(span) for span in spans]
