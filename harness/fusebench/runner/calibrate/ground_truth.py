"""The ground truth of injected slowdowns, and the components of variance, from fixed numbers of replicates, without any verdict."""

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
    """Fixed numbers of replicates of one target in fresh processes."""

    logs: dict[InjectionPlace, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By injected slowdown, log ratios (slowed arm over usual arm), one per replicate, over all processes."""
    times_us: dict[InjectionPlace, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By injected slowdown, time of the usual arm in microseconds, one per process."""
    rounds: list[list[list[float]]] = field(default_factory=list)
    """Log ratios of two equal arms: one per round, by process, then by placement."""

    def add(self, samples: Sequence[Sample], pairs: Sequence[Pair], places: Sequence[InjectionPlace], trim: float) -> None:
        """Add the samples of `pairs` from one process; the arms of the first pair are equal."""
        means = mean_us(samples, trim)
        for pair, where in zip(pairs, places, strict=True):
            self.logs[where] += pair_logs(samples, pair, trim)
            self.times_us[where].append(means[pair.old])
        self.rounds.append(_round_logs(samples, pairs[0]))

    def ground_truths(self) -> list[GroundTruth]:
        """One per injected slowdown; equal arms have none."""
        return [_ground_truth(where, self.logs[where], self.times_us[where]) for where in self.logs if where.nominal > 0]

    def scatter(self, target: CalibrationTarget, time_us: float) -> CaseComponents:
        """The components of variance of the target's kernel, which takes `time_us`, compared with itself."""
        return CaseComponents(session=0, case=target.case.key, kernel=target.kernel, time_us=time_us, components=components(self.rounds))


def _ground_truth(where: InjectionPlace, logs: Sequence[float], times: Sequence[float]) -> GroundTruth:
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
    """Log ratios, one per round, by placement."""
    spans: dict[tuple[int, int, int], dict[str, int]] = defaultdict(dict)
    for sample in samples:
        if sample.arm in (pair.new, pair.old):
            spans[sample.process, sample.replicate, sample.round][sample.arm] = sample.span_ns
    placements: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (process, replicate, _), both in sorted(spans.items()):
        placements[process, replicate].append(math.log(both[pair.new] / both[pair.old]))
    return list(placements.values())
