"""Version over version: how much faster each version of a kernel is than the version before it, on every case that timed both."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from ..schema import Estimate, Result, Run, Status
from ..stats.paired import quotient
from .wording import short_kernel

ONE_VERSION = "version over version: no case timed two versions of a kernel"
"""Stands in place of a picture of versions."""


class VersionStep(msgspec.Struct, frozen=True):
    """Two neighbouring versions of one kernel on one case."""

    older: Result
    newer: Result
    speedup: Estimate
    """The older version's time over the newer one's; the interval treats both times as independent."""

    @property
    def label(self) -> str:
        """`fused_triton@2 over @1`."""
        return f"{short_kernel(self.newer.kernel)} over @{self.older.kernel.rpartition('@')[2]}"


def version_steps(run: Run) -> list[VersionStep]:
    """Every pair of neighbouring timed versions, the largest speedup first; kernels that cover a part of an op are left out."""
    found: dict[tuple[str, str], dict[int, Result]] = {}
    for result in run.results:
        name, _, version = result.kernel.rpartition("@")
        timing = result.measurement
        if result.status is not Status.MEASURED or timing is None or result.covers or not version.isdecimal():
            continue
        if math.isfinite(timing.time_us.value) and timing.time_us.value > 0:
            found.setdefault((result.case_key, name), {})[int(version)] = result
    steps = []
    for versions in found.values():
        ordered = [versions[number] for number in sorted(versions)]
        for older, newer in pairwise(ordered):
            if older.measurement is not None and newer.measurement is not None:
                steps.append(VersionStep(older, newer, quotient(older.measurement.time_us, newer.measurement.time_us)))
    return sorted(steps, key=lambda step: -step.speedup.value)
