"""The limit of a case: the time of its minimum bytes at the streaming yardstick's speed, timed in the twin."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from ..registry import Op
from ..schema import CacheState
from ..timing.arm import Arm
from ..timing.preparation import Preparation
from ..timing.replicate import time_rounds
from ..timing.select import select_timer
from ..timing.yardstick import mix_of, stream_of

CALLS = {"cuda": 30, "cpu": 15}


def limit_us(op: Op, params: Any, device: torch.device) -> float:
    """Fastest plausible time of one call in microseconds: of the stream's calls the fastest tenth.

    Raises:
        TimerError: the timer failed repeatedly.
    """
    generator = torch.Generator(device=device).manual_seed(0)
    stream = stream_of(mix_of(op, params), lambda words: torch.empty(words, dtype=torch.int32, device=device), device, generator)
    stream()
    prepare = Preparation(device, CacheState.COLD if device.type == "cuda" else CacheState.WARM)
    prepare.give_head_start({"stream": 100.0})
    timer, _ = select_timer(device.type, "auto")
    arms = [Arm("stream", stream, lambda: None)] * CALLS[device.type]
    spans = [timing.span_ns for _, timing in time_rounds([arms], timer, prepare).calls()]
    return statistics.quantiles(spans, n=10)[0] / 1e3
