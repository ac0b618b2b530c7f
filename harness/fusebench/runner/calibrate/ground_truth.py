"""What fixed numbers of replicates say of plantings: their truth, and where the scatter comes from; no verdict has a say in it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...schema import GroundTruth, InjectionPlace, Sample
from ...stats.sequential import repeated_interval
from ...stats.variance import components
from ...store.calibrations import CaseComponents
from ...timing.pairs import Pair, pair_logs, replicate_logs
from .targets import CalibrationTarget

TRUTH_LEVEL_TAIL = 0.025


@dataclass
class GroundTruths:
    """What fixed numbers of replicates in fresh processes showed of one subject."""

    logs: dict[InjectionPlace, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Log ratios of each planting, over all processes."""
    times_us: dict[InjectionPlace, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Time of the old arm, per process."""
    rounds: list[list[list[float]]] = field(default_factory=list)
    """Log ratio of every round of two equal arms, by process and placement."""

    def add(self, samples: Sequence[Sample], pairs: Sequence[Pair], places: Sequence[InjectionPlace], trim: float) -> None:
        """Take in what one process measured of `pairs`, the first of which has equal arms."""
        means = mean_us(samples, trim)
        for pair, where in zip(pairs, places, strict=True):
            self.logs[where] += pair_logs(samples, pair, trim)
            self.times_us[where].append(means[pair.old])
        self.rounds.append(_round_logs(samples, pairs[0]))

    def truths(self) -> list[GroundTruth]:
        """Of every planting; equal arms have none."""
        return [_truth(where, self.logs[where], self.times_us[where]) for where in self.logs if where.nominal > 0]

    def scatter(self, target: CalibrationTarget, time_us: float) -> CaseComponents:
        """The components of variance of the target's kernel, which takes `time_us`, compared with itself."""
        return CaseComponents(session=0, case=target.case.key, kernel=target.kernel, time_us=time_us, components=components(self.rounds))


def _truth(where: InjectionPlace, logs: Sequence[float], times: Sequence[float]) -> GroundTruth:
    change = repeated_interval(logs, TRUTH_LEVEL_TAIL, looks=1)
    return GroundTruth(place=where, time_us=math.fsum(times) / len(times), change=change, replicates=len(logs))


def mean_us(samples: Sequence[Sample], trim: float) -> dict[str, float]:
    """Geometric mean over replicates of each arm's trimmed means, in microseconds."""
    by_replicate: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        by_replicate[sample.process, sample.replicate].append(sample)
    logs: dict[str, list[float]] = defaultdict(list)
    for taken in by_replicate.values():
        for arm, value in replicate_logs(taken, trim).items():
            logs[arm].append(value)
    return {arm: math.exp(math.fsum(values) / len(values)) / 1e3 for arm, values in logs.items()}


def _round_logs(samples: Sequence[Sample], pair: Pair) -> list[list[float]]:
    """Log ratio of every round, by placement."""
    spans: dict[tuple[int, int, int], dict[str, int]] = defaultdict(dict)
    for sample in samples:
        if sample.arm in (pair.new, pair.old):
            spans[sample.process, sample.replicate, sample.round][sample.arm] = sample.span_ns
    placements: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (process, replicate, _), both in sorted(spans.items()):
        placements[process, replicate].append(math.log(both[pair.new] / both[pair.old]))
    return list(placements.values())
