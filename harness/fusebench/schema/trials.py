"""Comparisons with a known answer: a kernel against itself, or against a copy with an injected slowdown.

An injection adds work (more rows) or a delay; a trial counts under the resulting slowdown of *time*. This slowdown is the injection's
ground truth. It is measured separately, in fresh processes with a fixed number of replicates, independent of the trials' stopping rule.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .results import Estimate, VerdictKind


class Injection(StrEnum):
    """The means that made an arm slower."""

    IDENTICAL = "identical"
    """Not at all: the same kernel on other buffers."""
    ROWS = "rows"
    """The same kernel with more rows."""
    DELAY = "delay"
    """The same kernel followed by a longer wait on the device, in the same stream."""


class InjectionPlace(msgspec.Struct, frozen=True):
    """One injection: all of its trials share its ground truth."""

    session: int
    """Number of the calibration that made it, from 0. Each calibration sets its own injections."""
    case: str
    kernel: str
    injection: Injection = msgspec.field(name="planting")
    nominal: float
    """The intended slowdown, as a share of the time; 0 for A/A comparisons."""


class InjectedTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison through the whole pipeline."""

    place: InjectionPlace
    time_us: float
    """Time of the base arm."""
    first: VerdictKind
    """Before confirmation."""
    verdict: VerdictKind
    """After confirmation and FDR control."""
    change: Estimate
    replicates: int
    launches: int = 1
    """Device activities (kernels, copies, fills) per call of the base arm; 0 if the timer cannot see them. Records without this key count
    as one launch."""
    device_seconds: float = 0.0
    """This pair's share of the time that its measurement took."""


class GroundTruth(msgspec.Struct, frozen=True, kw_only=True):
    """The measured slowdown of an injection."""

    place: InjectionPlace
    time_us: float
    change: Estimate
    """Time with the injection over time without it; the interval is over all replicates of all processes."""
    replicates: int
