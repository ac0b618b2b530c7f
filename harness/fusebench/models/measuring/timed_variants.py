"""Times, clocks and peak memory of the variants' steps, and of the denoise loop."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ...device import nvml
from ...device.periodic import Periodic
from ...device.readings import GpuUnavailableError
from ...schema.models import LoopTime, StepTime
from ..denoise import Denoising
from ..variants import SPLIT, Variant, parse_variant
from .step_timing import ratio, step_time, time_rounds

if TYPE_CHECKING:
    import torch

FEWEST_LOOPS = 3
"""Rounds of the denoise loop; each has two loops of either variant."""
KEEP_EVERY_S = 10.0
"""Seconds between two times that the rounds so far are kept: writing them takes milliseconds, in which the device idles."""
CLOCK_EVERY_S = 0.05
"""Seconds between two readings of the clock.  A full reading of the device, this one among its values, took 3.7 ms on an H200."""
CLOCK_LAG_S = 0.1
"""Longest time for which NVML gives an old clock."""
Say = Callable[[str], None]


class SmClock:
    """The multiprocessors' clock during the steps of each variant, read by a thread of its own while it is entered.

    A long step falls to its clock while it runs, so that a reading at its end alone would not stand for it.  NVML renews its value every 20
    to 100 ms: readings of a step's first CLOCK_LAG_S are those of the step before, and are left out.

    Args:
        uuid: the GPU's; nothing is read for an empty one, or without NVML.
        now: seconds.
    """

    def __init__(self, uuid: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._uuid, self._now = uuid, now
        self._seen: defaultdict[str, list[float]] = defaultdict(list)
        self._read: Callable[[str], float | None] | None = None
        self._running: list[tuple[float, float]] = []
        self._began = math.inf
        self._looking = Periodic(self.look, CLOCK_EVERY_S, name="fusebench-sm-clock")
        if uuid:
            with contextlib.suppress(GpuUnavailableError):
                self._read = nvml.open_monitor().sm_mhz

    def __enter__(self) -> Self:
        if self._read is not None:
            self._looking.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._looking.stop()

    def look(self) -> None:
        """Read the clock now, for the step that runs."""
        found = None if self._read is None else self._read(self._uuid)
        if found is not None:
            self._running.append((self._now(), found))

    def note(self, variant: str) -> None:
        """A step of `variant` has just ended, and the next one begins."""
        self.look()
        readings, self._running = self._running, []
        self._seen[variant] += [mhz for at, mhz in readings[:-1] if at >= self._began + CLOCK_LAG_S]
        self._seen[variant] += [mhz for _, mhz in readings[-1:]]
        self._began = self._now()

    def mean(self, variant: str) -> float:
        """Mean in MHz; 0 where nothing was read."""
        return statistics.fmean(self._seen[variant]) if self._seen[variant] else 0.0


def timed_steps(
    variants: Sequence[Variant],
    denoising: Denoising,
    *,
    budget_s: float,
    target: float,
    clock: SmClock,
    say: Say,
    keep: Callable[[tuple[StepTime, ...]], None] = lambda so_far: None,
) -> tuple[StepTime, ...]:
    """Times of one step of each variant; see `time_rounds`.  `keep` receives those of the rounds so far, every KEEP_EVERY_S seconds."""
    steps = {variant.name: step_of(variant, denoising) for variant in variants}
    peaks = {name: _peak(step, denoising.device) for name, step in steps.items()}
    before = SPLIT if SPLIT in steps else next(iter(steps), "")
    if not steps:
        return ()
    kept = time.monotonic()

    def of(rounds: Mapping[str, Sequence[float]]) -> tuple[StepTime, ...]:
        return tuple(
            StepTime(
                variant=name,
                rounds_ms=tuple(values),
                time_ms=step_time(values),
                speedup=None if name == before else ratio(rounds[before], values),
                peak_bytes=peaks[name],
                sm_mhz=clock.mean(name),
            )
            for name, values in rounds.items()
        )

    def keep_now_and_then(rounds: Mapping[str, Sequence[float]]) -> None:
        nonlocal kept
        if time.monotonic() - kept >= KEEP_EVERY_S:
            keep(of(rounds))
            kept = time.monotonic()

    with clock:
        rounds = time_rounds(
            steps,
            device=denoising.device,
            budget_s=budget_s,
            target=target,
            before=before,
            on_step=clock.note,
            on_round=lambda done, width: say(f"round {done}: ratios known to {100 * width:.2f} %") if done & (done - 1) == 0 else None,
            keep=keep_now_and_then,
        )
    return of(rounds)


def timed_loops(
    variants: Sequence[Variant], denoising: Denoising, times: Sequence[StepTime], steps: int, *, budget_s: float, say: Say, note: Say
) -> tuple[LoopTime, ...]:
    """The scheduler's loop of `steps` steps with `split` and with the fastest variant that has fused ops, in ABBA order.

    A loop includes setting its scheduler up.  Nothing where one of the two did not run, or `steps` is 0.

    Args:
        budget_s: seconds for the loops.  If their fewest rounds would take longer, they get fewer steps or are left out; `note` is told so.
    """
    known = {one.variant: one.time_ms.value for one in times if one.time_ms is not None}
    fused = [variant for variant in variants if parse_variant(variant.name).fused and variant.name in known]
    split = next((variant for variant in variants if variant.name == SPLIT and SPLIT in known), None)
    if split is None or not fused or steps < 1:
        return ()
    best = min(fused, key=lambda variant: known[variant.name])
    asked, each_s = steps, 2 * FEWEST_LOOPS * (known[SPLIT] + known[best.name]) / 1000
    steps = min(asked, int(budget_s / each_s))
    if steps < asked:
        made = f"it has {steps} of {asked} steps" if steps else "it is not timed"
        note(f"denoise loop: {made}, since {asked} steps would take {asked * each_s:.3g} of {budget_s:.3g} s; raise --budget for more")
    if not steps:
        return ()
    say(f"denoise loop of {steps} steps: {SPLIT} and {best.name}")
    loops = {variant.name: _loop_of(variant, denoising, steps) for variant in (split, best)}
    rounds = time_rounds(loops, device=denoising.device, budget_s=budget_s / 4, fewest=FEWEST_LOOPS)
    return tuple(
        LoopTime(
            variant=name,
            steps=steps,
            rounds_ms=tuple(values),
            time_ms=step_time(values),
            steps_ms=steps * known[name],
            speedup=None if name == SPLIT else ratio(rounds[SPLIT], values),
        )
        for name, values in rounds.items()
    )


def step_of(variant: Variant, denoising: Denoising) -> Callable[[], object]:
    """One step of a variant, at the timestep that stands for all."""
    inputs = denoising.middle()
    return lambda: variant.predict(*inputs)


def _loop_of(variant: Variant, denoising: Denoising, steps: int) -> Callable[[], object]:
    return lambda: deque(denoising.loop(variant.predict, steps), maxlen=1).pop()


def _peak(step: Callable[[], object], device: torch.device) -> int:
    """Most bytes that torch held on the GPU during one step; 0 on a CPU."""
    import torch

    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)
