"""From samples to the figures of one test: time, speedup, share of the speed of light, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ..schema import Estimate, Floor
from ..stats.paired import ratio_estimate, time_estimate
from ..timing.placement import STREAM

Spans = Mapping[str, Mapping[tuple[int, int], list[float]]]
"""By arm, then by process and replicate: nanoseconds per round, as `stats.paired.spans_by_replicate` gives them."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement of one arm, with the arms that were timed in the same rounds."""

    arm: str
    spans: Spans
    trim: float
    minimum_bytes: int
    """Bytes that any implementation must move; 0 if that is not known."""
    over: str = ""
    """The arm that the speedup is relative to; empty if there is none."""
    floor: Floor | None = None
    """The floor of a cold call; None for warm samples and on a CPU."""
    whole: bool = True
    """False for a kernel that covers a part of its op: it has no speedup and no share of the speed of light."""
    device: str
    timer: str
    cache: str
    not_cold: str = ""
    """What contradicts that the samples are cold; empty if nothing does."""
    facts: dict[str, Any] = {}
    """Further entries of `extra_info`."""

    @property
    def seconds(self) -> list[float]:
        """Every sample, in order."""
        return [span * 1e-9 for replicate in self.spans[self.arm].values() for span in replicate]

    def time_us(self, arm: str = "") -> Estimate:
        """Time of an arm per call, over placements; of its own arm unless given."""
        found = time_estimate(list(self.spans[arm or self.arm].values()), self.trim)
        return Estimate(found.value / 1e3, found.low / 1e3, found.high / 1e3, found.level)

    def speedup(self, over: str = "") -> Estimate | None:
        """Time of `over` (the baseline unless given) over the time of this arm, paired by placement."""
        above = over or self.over
        return None if not above or above == self.arm or not self.whole else self._ratio(above)

    @property
    def sol(self) -> Estimate | None:
        """Share of the speed of light: the limit (the yardstick's time, or the floor's) over the time of this arm."""
        if STREAM not in self.spans or not self.whole:
            return None
        found, stream_us = self._ratio(STREAM), self.time_us(STREAM).value
        share = 1.0 if self.floor is None else self.floor.limit_us(stream_us) / stream_us
        return Estimate(found.value * share, found.low * share, found.high * share, found.level)

    @property
    def gb_per_s(self) -> float | None:
        """Minimum bytes over time, in 1e9 bytes per second."""
        return self.minimum_bytes / self.time_us().value / 1e3 if self.minimum_bytes else None

    def extra_info(self) -> dict[str, Any]:
        """For pytest-benchmark's `extra_info`: finite numbers and short texts; a figure that does not exist is left out."""
        time, speedup, sol = self.time_us(), self.speedup(), self.sol
        info: dict[str, Any] = {"time_us": time.value, "low_us": time.low, "high_us": time.high}
        if speedup is not None:
            info |= {"speedup": speedup.value, "speedup_low": speedup.low, "speedup_high": speedup.high, "over": self.over}
        if sol is not None:
            info |= {"sol": sol.value, "sol_low": sol.low, "sol_high": sol.high}
        info |= {"gb_per_s": self.gb_per_s, "device": self.device, "timer": self.timer, "cache": self.cache, **self.facts}
        if self.not_cold:
            info["not_cold"] = self.not_cold
        return {name: value for name, value in info.items() if value is not None and _finite(value)}

    @property
    def conditions(self) -> str:
        """How it was measured, in words."""
        placements = len(self.spans[self.arm])
        return f"{placements} placements, timer {self.timer}, {self.cache} cache"

    def _ratio(self, above: str) -> Estimate:
        return ratio_estimate(list(self.spans[above].values()), list(self.spans[self.arm].values()), self.trim)


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
