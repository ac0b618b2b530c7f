"""The limit of a case: the time of its minimum bytes at the streaming yardstick's speed, timed in the baseline."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from ...registry import Op
from ...schema import CacheState
from ...timing.arm import Arm
from ...timing.coldness import observe_coldness
from ...timing.floor import floor_of, launch_costs
from ...timing.preparation import Preparation
from ...timing.replicate import time_rounds
from ...timing.timers.select import select_timer
from ...timing.yardstick import mix_of, stream_of

CALLS = {"cuda": 30, "cpu": 15}


def limit_us(op: Op, params: Any, device: torch.device) -> float:
    """The time of one call that nothing beats, in microseconds.

    On a GPU it is the streaming yardstick's median time or, for short calls, the floor (`timing.floor`), as in the records of a run.  On a
    CPU it is the fastest tenth of that yardstick's times.

    Raises:
        TimerError: the timer failed repeatedly.
    """
    mix = mix_of(op, params)
    generator = torch.Generator(device=device).manual_seed(0)
    stream = stream_of(mix, lambda words: torch.empty(words, dtype=torch.int32, device=device), device, generator)
    stream()
    on_gpu = device.type == "cuda"
    prepare = Preparation(device, CacheState.COLD if on_gpu else CacheState.WARM)
    prepare.give_head_start({"stream": 100.0})
    timer, _ = select_timer(device.type, "auto")
    arms = [Arm("stream", stream, lambda: None)] * CALLS[device.type]
    spans = [timing.span_ns for _, timing in time_rounds([arms], timer, prepare).calls()]
    if not on_gpu:
        return statistics.quantiles(spans, n=10)[0] / 1e3
    floor = floor_of(launch_costs(timer, prepare.evict, device), observe_coldness(timer, prepare.evict, device, mix), mix)
    return floor.limit_us(statistics.median(spans) / 1e3)
