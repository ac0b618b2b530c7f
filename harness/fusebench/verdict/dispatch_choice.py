"""How good dispatch's choices are: the time of the kernel that it takes over the time of the best fused kernel of the same case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..schema import CaseSummary, Result, Role, Run, Status

CLOSE, FAR = 1.02, 1.05
"""Ratios that a summary counts. Beyond `FAR` a choice that has changed is a regression, where the intervals are apart."""


class DispatchRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The choice on one case."""

    case: str
    """`suite:case`."""
    kernel: str
    """Id of the kernel that dispatch takes."""
    best: str
    """Id of the fastest fused kernel."""
    ratio: float
    """Time over time; 1.0 where dispatch takes the best."""
    apart: bool
    """Whether the intervals of the two times are apart."""


LOSS_WORDS = "dispatch takes"
"""The warning about a `DispatchLoss` begins with them."""


class DispatchLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A case on which dispatch takes a slower kernel than it took in the baseline."""

    case: str
    kernel: str
    before: str
    """Id of the kernel that stands for the baseline's choice: the same kernel, or the best one if that is gone."""
    ratio: float
    """Time of `kernel` over the time of `before`, both in the run."""

    def __str__(self) -> str:
        return (
            f"{LOSS_WORDS} {self.kernel} on {self.case}, {self.ratio:.2f}x the time of {self.before} in this run, which it took in the "
            "baseline or which is the best: make a new table with `fusebench tune`"
        )


def dispatch_ratio(summary: CaseSummary, results: Iterable[Result]) -> DispatchRatio | None:
    """The choice on a case; None if the kernel that dispatch takes is unknown, not fused, or was not timed.

    Args:
        results: the case's.
    """
    times = fused_times(results)
    chosen = times.get(summary.dispatched)
    return _ratio(summary.case.key, chosen, min(times.values(), key=_time)) if chosen is not None else None


def dispatch_ratios(run: Run) -> list[DispatchRatio]:
    """The choices on the run's cases, in their order."""
    by_case = _by_case(run)
    found = (dispatch_ratio(summary, by_case.get(summary.case.key, ())) for summary in run.cases)
    return [one for one in found if one is not None]


def shares(ratios: Sequence[float]) -> tuple[float, float]:
    """The shares of the ratios within `CLOSE` and within `FAR`; of at least one ratio."""
    return sum(one <= CLOSE for one in ratios) / len(ratios), sum(one <= FAR for one in ratios) / len(ratios)


def dispatch_losses(run: Run, baseline: Run) -> list[DispatchLoss]:
    """Cases on which dispatch takes another kernel than in `baseline`, and a slower one.

    Both kernels' times are from `run`, from the same rounds. A loss is more than `FAR`, and its intervals are apart. A kernel that
    became slower is no loss of dispatch: it has its own verdict. Records of older versions do not hold the choice, and nothing is lost
    against them.
    """
    chosen = {summary.case.key: summary.dispatched for summary in baseline.cases}
    by_case = _by_case(run)
    losses = []
    for summary in run.cases:
        before = chosen.get(summary.case.key, "")
        times = fused_times(by_case.get(summary.case.key, ()))
        now = times.get(summary.dispatched)
        if now is None or not before or before == summary.dispatched:
            continue
        found = _ratio(summary.case.key, now, times.get(before) or min(times.values(), key=_time))
        if found.ratio > FAR and found.apart:
            losses.append(DispatchLoss(case=found.case, kernel=found.kernel, before=found.best, ratio=found.ratio))
    return losses


def fused_times(results: Iterable[Result]) -> dict[str, Result]:
    """By id, the fused kernels of the whole op whose time is believed."""
    return {
        one.kernel: one
        for one in results
        if one.role is Role.FUSED and one.status is Status.MEASURED and one.measurement is not None and not (one.covers or one.suspicious)
    }


def _ratio(case: str, chosen: Result, other: Result) -> DispatchRatio:
    assert chosen.measurement is not None
    assert other.measurement is not None
    own, best = chosen.measurement.time_us, other.measurement.time_us
    return DispatchRatio(case=case, kernel=chosen.kernel, best=other.kernel, ratio=own.value / best.value, apart=own.low > best.high)


def _time(result: Result) -> float:
    assert result.measurement is not None
    return result.measurement.time_us.value


def _by_case(run: Run) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in run.results:
        found.setdefault(result.case_key, []).append(result)
    return found
