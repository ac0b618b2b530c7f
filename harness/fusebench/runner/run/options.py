"""How to run: what was asked for, and what a device gets unless told otherwise."""

from __future__ import annotations

import msgspec

from ...schema import CacheState, SamplingPlan
from .resuming import Resumed


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to run."""

    plan: SamplingPlan
    timer: str = "auto"
    budget_s: float | None = None
    kernel: str | None = None
    command: str = ""
    selected: tuple[str, ...] | None = None
    """Names of the suites that were asked for."""
    op: str | None = None
    """The op that was asked for, for the record: the cases that are run have been chosen by it."""
    case: str | None = None
    """Glob of the cases that were asked for, likewise."""
    resumed: Resumed | None = None
    """A stopped run to go on with."""


def default_plan(device_kind: str, cache: CacheState = CacheState.COLD) -> SamplingPlan:
    """Replicates and rounds that a device gets unless told otherwise.

    On a GPU the placement is the unit of replication: between placements the ratio of a kernel to itself scatters with a standard
    deviation of 0.4 to 1 % on an H200, so twelve of them bring the interval to a few tenths of a percent.  A CPU has no such budget.
    """
    if device_kind == "cuda":
        return SamplingPlan(replicates=12, rounds=20, cache=cache, trim=0.1)
    return SamplingPlan(replicates=4, rounds=5, cache=cache, trim=0.2)
