"""Components of variance: rounds on one placement, placements in one process, processes.

A nested analysis of variance of one log ratio per round, grouped by placement and process.  Groups may differ in size, since rounds are
dropped and budgets end.  The expected mean squares and their coefficients are those of the unbalanced three-stage nested design
(Searle, Casella & McCulloch, Variance Components, 1992, chapter 5; Sokal & Rohlf, Biometry, box 10.6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

Nested = Sequence[Sequence[Sequence[float]]]
"""Log ratios by process, placement and round."""


class Components(msgspec.Struct, frozen=True, kw_only=True):
    """Standard deviations of the log ratio at each level: 0.005 is 0.5 %."""

    rounds: float
    placements: float
    processes: float | None
    """Between processes; None for one process, whose own shift cannot be told from the kernel's change."""
    rounds_per_placement: float
    """Effective numbers, the coefficients of the design."""

    @property
    def replicate(self) -> float:
        """Standard deviation of one replicate's mean within a process: the scatter that `sequential.judge` sees."""
        return math.sqrt(self.placements**2 + self.rounds**2 / self.rounds_per_placement)

    def error(self, processes: int, placements: int, rounds: int) -> float:
        """Standard error of the mean log ratio over so many processes, placements in each and rounds on each."""
        per_process = (self.placements**2 + self.rounds**2 / rounds) / placements
        return math.sqrt(((self.processes or 0.0) ** 2 + per_process) / processes)


def components(nested: Nested) -> Components:
    """The components of variance. Chance can make the estimate of a small component negative; it is reported as 0.

    Raises:
        ValueError: an empty level, no placement with two rounds, no process with two placements, or a value that is not finite.
    """
    sizes = [[len(rounds) for rounds in placements] for placements in nested]
    if not sizes or any(not row or min(row) == 0 for row in sizes):
        raise ValueError("components of variance need at least one process, and no process without placements or placement without rounds")
    if not all(math.isfinite(value) for placements in nested for rounds in placements for value in rounds):
        raise ValueError("components of variance need finite log ratios")
    per_process = [sum(row) for row in sizes]
    total, groups, processes = sum(per_process), sum(map(len, sizes)), len(sizes)
    if groups in (total, processes):
        raise ValueError(
            f"found {total} rounds on {groups} placements in {processes} processes; components of variance need at least one "
            f"placement with two rounds and one process with two placements"
        )
    means = [[math.fsum(rounds) / len(rounds) for rounds in placements] for placements in nested]
    process_means = [_weighted(values, weights) for values, weights in zip(means, sizes, strict=True)]
    grand = _weighted(process_means, per_process)

    within = math.fsum(
        (value - mean) ** 2
        for placements, row in zip(nested, means, strict=True)
        for rounds, mean in zip(placements, row, strict=True)
        for value in rounds
    ) / (total - groups)
    between_placements = math.fsum(
        size * (mean - center) ** 2
        for row, weights, center in zip(means, sizes, process_means, strict=True)
        for mean, size in zip(row, weights, strict=True)
    ) / (groups - processes)

    squares_in_process = math.fsum(sum(size**2 for size in row) / weight for row, weight in zip(sizes, per_process, strict=True))
    rounds_each = (total - squares_in_process) / (groups - processes)
    placement_variance = max(0.0, (between_placements - within) / rounds_each)
    process_sd: float | None = None
    if processes > 1:
        between = math.fsum(weight * (mean - grand) ** 2 for weight, mean in zip(per_process, process_means, strict=True)) / (processes - 1)
        all_squares = sum(size**2 for row in sizes for size in row) / total
        through_placements = (squares_in_process - all_squares) / (processes - 1)
        through_processes = (total - sum(weight**2 for weight in per_process) / total) / (processes - 1)
        process_sd = math.sqrt(max(0.0, (between - within - through_placements * placement_variance) / through_processes))
    return Components(
        rounds=math.sqrt(within),
        placements=math.sqrt(placement_variance),
        processes=process_sd,
        rounds_per_placement=rounds_each,
    )


def _weighted(values: Sequence[float], weights: Sequence[int]) -> float:
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
