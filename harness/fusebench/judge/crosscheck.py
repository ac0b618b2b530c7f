"""Whether the times that a candidate's process claims can be true: pure judgements on figures, with a sentence for each doubt.

The judge's own clock saw each batch from outside.  What it saw beyond the claimed times is the harness's work, the same for the candidate
and for the twin, which times the project's own split chain by the same code on the same inputs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

HIDDEN_SHARE = 0.3
"""Time per call beyond the twin's that a candidate's clock may miss, as a share of the twin's call.  A candidate that hides all of its
work claims no time and misses the whole call."""
HIDDEN_LEAST_US = {"cpu": 150.0, "cuda": 30.0}
"""Smallest such time that is ever held against it.  On a CPU outputs are copied between the calls, and waking a process takes tens of
microseconds; on a GPU the judge is told when the calls begin and end."""
HIDDEN_CPU_US = 40.0
"""Smallest CPU time per call, beyond the claimed and beyond the twin's, that is ever held against a candidate."""
COPY_BYTES_PER_US = 1000.0
"""Slowest copy that is granted to a candidate that returns more new memory than the twin (1 GB/s)."""
LATE_SHARE = 0.05
"""CPU time that other threads may use after calls have returned, as a share of the time watched.  Torch runs on one thread there."""
BELOW_LIMIT = {"cuda": 0.97, "cpu": 0.5}
"""Share of the limit below which a time cannot be true.  On an H200 no kernel came below the streaming yardstick by more than its noise
(`timing.yardstick`); a CPU's yardstick is a chain of torch calls, and caches keep part of the inputs."""


class BatchPair(NamedTuple):
    """One batch by the candidate and one of the same values by the twin; times in microseconds per call."""

    candidate_us: float
    candidate_wall_us: float
    twin_us: float
    twin_wall_us: float

    @property
    def hidden_us(self) -> float:
        """Time per call that the candidate's clock does not account for, beyond the twin's."""
        return (self.candidate_wall_us - self.candidate_us) - (self.twin_wall_us - self.twin_us)


def hidden_time(pairs: Sequence[BatchPair], device: str) -> str:
    """Why the claimed times are not believed by the clock outside; empty if they are."""
    if len(pairs) < 3:
        return ""
    hidden = [pair.hidden_us for pair in pairs]
    twin = statistics.median(pair.twin_us for pair in pairs)
    allowed = max(HIDDEN_LEAST_US[device], HIDDEN_SHARE * twin)
    usual, low = statistics.median(hidden), statistics.quantiles(hidden, n=4)[0]
    if usual <= allowed or low <= allowed / 2:
        return ""
    claimed = statistics.median(pair.candidate_us for pair in pairs)
    return (
        f"its clock says {claimed:.1f} us a call, but the judge's clock saw {usual:.0f} us more than that beyond the harness's own work "
        f"(the split chain takes {twin:.1f} us)"
    )


def hidden_cpu(hidden_us: Sequence[float], pairs: Sequence[BatchPair]) -> str:
    """Why more CPU time than the claimed one is assumed; empty if there is none.

    Args:
        hidden_us: per call, CPU time beyond the claimed time and beyond the twin's same figure, by batch.  The kernel counts it, so that a
            busy machine adds little to it.
    """
    if len(hidden_us) < 3:
        return ""
    twin = statistics.median(pair.twin_us for pair in pairs)
    allowed = max(HIDDEN_CPU_US, HIDDEN_SHARE * twin)
    # A candidate that waited for the processor in a call claims more than it used, so that some of its batches hide nothing.
    usual, low = statistics.median(hidden_us), statistics.quantiles(hidden_us, n=5)[1]
    if usual <= allowed or low <= allowed / 2:
        return ""
    claimed = statistics.median(pair.candidate_us for pair in pairs)
    return (
        f"its clock says {claimed:.1f} us a call, but its process used {usual:.0f} us of CPU time more than that beyond the harness's own "
        f"work (the split chain takes {twin:.1f} us)"
    )


def late_work(shares: Sequence[float]) -> str:
    """Why work outside of the calls is assumed; empty if there is none."""
    if len(shares) < 3 or statistics.median(shares) <= LATE_SHARE:
        return ""
    return f"other threads computed after its calls had returned ({statistics.median(shares):.0%} of the time watched)"


def below_limit(time_us: float, limit_us: float | None, device: str) -> str:
    """Why a time is faster than the device allows; empty if it is not."""
    if limit_us is None or time_us >= BELOW_LIMIT[device] * limit_us:
        return ""
    return f"{time_us:.2f} us is faster than the limit of {limit_us:.2f} us, the time of the case's minimum bytes"
