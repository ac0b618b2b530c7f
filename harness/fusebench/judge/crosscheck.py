"""Whether the times that a candidate's process claims can be true: pure judgements on figures, with a sentence for each contradiction.

The judge's own clock saw each batch from outside.  What it saw beyond the claimed times is the harness's work, the same for the candidate
and for the baseline, which times the project's own split chain by the same code on the same inputs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

HIDDEN_SHARE = 0.3
"""Time per call beyond the baseline's that a candidate's clock may miss, as a share of the baseline's call.  A candidate that hides all
of its work claims no time and misses the whole call."""
HIDDEN_LEAST_US = {"cpu": 150.0, "cuda": 30.0}
"""Smallest such time that is ever held against it.  On a CPU outputs are copied between the calls, and waking a process takes tens of
microseconds; on a GPU the judge is told when the calls begin and end."""
HIDDEN_SPREAD = 2.0
"""Multiple of the spread of the baseline's own figures that is granted on top: on a busy machine they say little."""
HIDDEN_MOSTLY = 2.0
"""Hidden CPU time as a multiple of the claimed time beyond which a claim is not believed, if it is also half of the baseline's call."""
COPY_BYTES_PER_US = {"cpu": 1e3, "cuda": 5e5}
"""Slowest copy that is granted to a candidate that returns more new memory than the baseline (1 GB/s; on a GPU 500 GB/s)."""
LATE_SHARE = 0.05
"""CPU time that other threads may use after calls have returned, as a share of the time watched.  Torch runs on one thread there."""
BELOW_LIMIT = {"cuda": 0.95, "cpu": 0.5}
"""Share of the limit below which a time cannot be true.  On an H200 no kernel came below the streaming yardstick by more than its noise
(`timing.yardstick`); a CPU's yardstick is a chain of torch calls, and caches keep part of the inputs."""
SLOWED, SLOWED_LEAST_US = 1.3, 20.0
"""Times on a GPU by which the baseline may be slower between the candidate's batches than before them, and the least such time that is held
against a candidate.  An H200's clocks vary by 10 %.  Beside another program, chains of 5 and 17 us became 4 to 7 us slower there."""

TIMED_SHARE = 0.5
"""Share of the batches that must have times; of two batches alone, no judgement here would say anything."""
LEAST_SHARE = 0.8
"""Least time that a batch is credited with, as a share of what most batches take: honest ones differ by less on an idle machine."""


class BatchPair(NamedTuple):
    """One batch by the candidate and one of the same values by the baseline; times in microseconds per call."""

    candidate_us: float
    candidate_wall_us: float
    baseline_us: float
    baseline_wall_us: float

    @property
    def hidden_us(self) -> float:
        """Time per call that the candidate's clock does not account for, beyond the baseline's."""
        return (self.candidate_wall_us - self.candidate_us) - (self.baseline_wall_us - self.baseline_us)


def hidden_time(pairs: Sequence[BatchPair], device: str) -> str:
    """Why the claimed times are not believed by the clock outside; empty if they are.

    A claim beyond the baseline's time is let be: it earns nothing.  Many launches cost the host time before the first of them and after the
    last, which is outside of the device's marks and no deceit: an honest chain of 30 torch operations showed 190 us of it on an H200.
    """
    if len(pairs) < 3:
        return ""
    hidden = [pair.hidden_us for pair in pairs]
    baseline = statistics.median(pair.baseline_us for pair in pairs)
    claimed = statistics.median(pair.candidate_us for pair in pairs)
    if claimed > baseline:
        return ""
    allowed = max(HIDDEN_LEAST_US[device], HIDDEN_SHARE * baseline)
    allowed += HIDDEN_SPREAD * _spread([pair.baseline_wall_us - pair.baseline_us for pair in pairs])
    usual, low = statistics.median(hidden), statistics.quantiles(hidden, n=4)[0]
    if usual <= allowed or low <= allowed / 2:
        return ""
    return (
        f"its clock says {claimed:.1f} us a call, but the judge's clock saw {usual:.0f} us more than that beyond the harness's own work "
        f"(the split chain takes {baseline:.1f} us)"
    )


class CpuPair(NamedTuple):
    """CPU time that both processes used outside of their calls in one pair of batches, in microseconds per call, by the kernel's account.

    The candidate's is its whole CPU time less the time that it claims: where a call waited for the processor, it claims more than it used.
    """

    candidate_us: float
    baseline_us: float
    others_us: float = 0.0
    """The part of the candidate's that its other threads used during the calls, by its own account.  It counts as its time, but several
    threads are no deceit."""

    @property
    def hidden_us(self) -> float:
        """CPU time per call that the candidate's clock does not account for, beyond the baseline's."""
        return self.candidate_us - self.baseline_us


@dataclass
class TimedBatches:
    """What was measured in batches of one kind: those of one call, or those of several.

    All calls of a batch lie in the candidate's process at once, and one launch may compute them all.  A call that is alone in its batch
    has no such company.  So each kind is judged by itself, and the slower one counts.
    """

    pairs: list[BatchPair] = field(default_factory=list)
    outside: list[CpuPair] = field(default_factory=list)
    """Empty on a GPU."""
    untimed: list[str] = field(default_factory=list)
    """Of each batch, why it has no times; empty if it has."""
    late: int = 0
    """Batches that were dropped because the device waited for the host within the baseline's calls."""
    alone_us: list[float] = field(default_factory=list)
    """Times of the baseline's batches of this kind before the candidate was timed; empty on a CPU."""


def contradiction(timed: TimedBatches, limit_us: float | None, device: str) -> str:
    """Why the times of batches, of which enough were timed, are not believed; empty if they are."""
    pairs = timed.pairs
    return (
        hidden_time(pairs, device)
        or hidden_cpu(timed.outside, pairs)
        or slowed_baseline(timed.alone_us, pairs)
        or below_limit(statistics.median(pair.candidate_us for pair in pairs), limit_us, device)
    )


def unclaimed_us(outside: Sequence[CpuPair], *, excused: bool = False) -> float:
    """CPU time per call to add to the times that the candidate claims, so that hidden work earns nothing; 0 where there is none.

    `excused`: without the time of other threads during the calls.
    """
    late = _accounted(outside)
    if len(late) < 3:
        return 0.0
    # Below the median: batches that waited hide nothing, and an honest kernel's difference lies on both sides of zero.
    hidden = (pair.hidden_us - pair.others_us * excused for pair in late)
    return max(0.0, statistics.quantiles(hidden, n=5)[1])


def _accounted(outside: Sequence[CpuPair]) -> Sequence[CpuPair]:
    """The later half of the batches: until a new process has grown its heap, its harness works up to 200 us a call longer than the
    baseline's, which has run for long (two cores, 14 processes).  All of fewer than six, whose calls are long beside that.
    """
    return outside[len(outside) // 2 :] if len(outside) >= 6 else outside


def unexcluded_us(outside: Sequence[CpuPair]) -> float:
    """CPU time per call, beyond `unclaimed_us`, that the kernel's account does not exclude: what a candidate may hide in the account's own
    noise.  The claimed lower end of a speedup holds it against the candidate.

    The highest fifth of the later half of the batches: of six, the true median lies above it once in twenty times.
    """
    late = _accounted(outside)
    if len(late) < 3:
        return 0.0
    return max(0.0, statistics.quantiles((pair.hidden_us for pair in late), n=5)[3] - unclaimed_us(outside))


def hidden_cpu(outside: Sequence[CpuPair], pairs: Sequence[BatchPair]) -> str:
    """Why so much of its work counts as hidden that its right outputs prove nothing; empty if it does not.

    A claim beyond the baseline's time is let be, as by `hidden_time`: on a busy machine, an honest kernel of 4.2 ms beside a split chain of
    0.4 ms seemed to hide 0.9 ms.
    """
    if len(outside) < 3:
        return ""
    baseline = statistics.median(pair.baseline_us for pair in pairs)
    claimed = statistics.median(pair.candidate_us for pair in pairs)
    if claimed > baseline:
        return ""
    spread = _spread([pair.baseline_us for pair in outside])
    allowed = max(HIDDEN_LEAST_US["cpu"], HIDDEN_SHARE * baseline) + HIDDEN_SPREAD * spread
    mostly = max(HIDDEN_MOSTLY * claimed, baseline / 2, spread / 2)
    found = unclaimed_us(outside, excused=True)
    if found <= min(allowed, mostly):
        return ""
    return (
        f"its clock says {claimed:.1f} us a call, but its process used {found:.0f} us of CPU time more than that beyond the harness's own "
        f"work (the split chain takes {baseline:.1f} us)"
    )


def _spread(values: Sequence[float]) -> float:
    """Interquartile range."""
    low, _, high = statistics.quantiles(values, n=4)
    return high - low


def untimed_batches(untimed: Sequence[str]) -> str:
    """Why too few batches have times: the process itself says which have, so that it could choose; empty if enough have.

    Args:
        untimed: of each batch, why it has no times; empty if it has.
    """
    timed = sum(not text for text in untimed)
    if timed >= max(3, TIMED_SHARE * len(untimed)):
        return ""
    reason = next((text for text in untimed if text), "the time was too short")
    return f"{timed} of {len(untimed)} batches could be timed: {reason}"


def late_host(timed: TimedBatches) -> str:
    """Why the baseline could not be timed: the host launched its chains late; empty if it could.

    No word of the candidate's counts here, and nothing is held against it, whatever keeps the host busy.
    """
    if not timed.late or len(timed.pairs) >= 3:
        return ""
    made = timed.late + len(timed.untimed)
    return f"the device waited for the host within the split chain's calls in {timed.late} of {made} batches: the machine is too busy"


def slowed_baseline(alone_us: Sequence[float], pairs: Sequence[BatchPair]) -> str:
    """Why the candidate is assumed to hold the device while the baseline runs; empty if it does not.

    Args:
        alone_us: times of the baseline's batches of the same kind before the candidate's; empty on a CPU, where the candidate is stopped
            meanwhile.  The first call of a batch may take longer than others.
    """
    usual = statistics.median(pair.baseline_us for pair in pairs)
    if not alone_us or usual <= SLOWED * max(alone_us) or usual - max(alone_us) <= SLOWED_LEAST_US:
        return ""
    return f"the split chain takes {usual:.1f} us between its batches, and took {max(alone_us):.1f} us before them: it holds the device"


def credited_us(alone_us: Sequence[float], pairs: Sequence[BatchPair]) -> list[float]:
    """The baseline's times that a speedup may rest on, in microseconds per call: each at most `SLOWED` times the slowest one before the
    candidate ran, and at most that one where they are usually slower.

    What a candidate adds to the baseline's time by holding the device earns it nothing, also where it is too little to be accused of.
    """
    most = SLOWED * max(alone_us, default=float("inf"))
    if statistics.median(pair.baseline_us for pair in pairs) > most:
        most = max(alone_us)
    return [min(pair.baseline_us, most) for pair in pairs]


def believed_us(pairs: Sequence[BatchPair]) -> list[float]:
    """The candidate's times that a speedup may rest on, in microseconds per call: each at least `LEAST_SHARE` of what most batches take.

    The judgements above rest on medians, and on a CPU on the later half of the batches, so a clock that lies in a few batches escapes them,
    while the geometric mean of a speedup follows each.  "Most" is therefore the larger middle value of all batches and of their later half,
    of the times, or of their ratios to the baseline's, which a drift of the device leaves alone.
    """

    def usual(values: Sequence[float]) -> float:
        return max(statistics.median_high(values), statistics.median_high(values[len(values) // 2 :]))

    time = usual([pair.candidate_us for pair in pairs])
    ratio = usual([pair.candidate_us / pair.baseline_us for pair in pairs])
    return [max(pair.candidate_us, LEAST_SHARE * min(time, ratio * pair.baseline_us)) for pair in pairs]


def late_work(shares: Sequence[float]) -> str:
    """Why work outside of the calls is assumed; empty if there is none."""
    if len(shares) < 3 or statistics.median(shares) <= LATE_SHARE:
        return ""
    return f"other threads computed after its calls had returned ({100 * statistics.median(shares):.0f} % of the time watched)"


def below_limit(time_us: float, limit_us: float | None, device: str) -> str:
    """Why a time is faster than the device allows; empty if it is not."""
    if limit_us is None or time_us >= BELOW_LIMIT[device] * limit_us:
        return ""
    return f"{time_us:.2f} us is faster than the limit of {limit_us:.2f} us, the time of the case's minimum bytes"
