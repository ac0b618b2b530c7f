"""Whether what a worker measured can have been cold: asked after the fact of every measurement, be it for a run, `ab` or `calibrate`.

What follows differs: a run keeps the case without its label, a comparison does not judge it, a calibration leaves it out.
"""

from __future__ import annotations

from ..stats.paired import spans_by_replicate, time_estimate
from ..timing.coldness import contradiction
from .workers.protocol import Measured


def label_refused(measured: Measured, trim: float) -> str:
    """What contradicts the label `cold` of these samples, in words; empty where nothing does, and for what does not carry it.

    Args:
        trim: share of a replicate's samples cut from each end, as in the plan.
    """
    if measured.coldness is None:
        return ""
    moved = {
        arm: (measured.minimum_bytes[arm], time_estimate(list(replicates.values()), trim).value / 1e3)
        for arm, replicates in spans_by_replicate(measured.samples).items()
        if arm in measured.minimum_bytes
    }
    return contradiction(moved, measured.coldness)
