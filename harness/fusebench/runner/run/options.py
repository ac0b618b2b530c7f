"""What a run is asked for: its options, and the sampling plan of a device unless told otherwise."""

from __future__ import annotations

import msgspec

from ...schema import CacheState, SamplingPlan
from .resuming import Resumed


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run."""

    kernel: str | None = None
    """Glob of kernels."""
    command: str = ""
    selected: tuple[str, ...] | None = None
    """Names of the suites."""
    op: str | None = None
    """The op, for the record; the cases to run are already selected."""
    case: str | None = None
    """Glob of the cases, for the record; the cases to run are already selected."""
    shard: str = ""
    """`I/N`, for the record; the cases to run are already those of the shard."""
    resumed: Resumed | None = None
    """A stopped run to resume."""


def default_plan(device_kind: str, cache: CacheState = CacheState.COLD) -> SamplingPlan:
    """Replicates and rounds that a device gets unless told otherwise.

    On a GPU the placement is the unit of replication: between placements the ratio of a kernel to itself scatters with a standard
    deviation of 0.4 to 1 % on an H200, so twelve of them bring the interval to a few tenths of a percent.

    On a CPU single calls scatter by 10 %, since other programs share its caches, and placements hardly: so few calls in each of as many
    placements, and the middle one of them.
    """
    if device_kind == "cuda":
        return SamplingPlan(replicates=12, rounds=20, cache=cache, trim=0.1)
    return SamplingPlan(replicates=10, rounds=3, cache=cache, trim=1 / 3)
