"""Times that count for a speedup: batches of one call and of several, beside the split chain's, and none that waited for the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fusebench.judge.exchange import BatchTimes, Exchange
from fusebench.schema.evaluation import EvaluationStatus
from judge.bench import evaluating, fresh, in_place, judge_of


def test_the_baseline_is_timed_alone_before_the_candidate() -> None:
    judge, _ = judge_of(fresh)
    _, other = judge_of(in_place)
    judge._time_alone(Exchange(other, judge.expected))  # type: ignore[arg-type]
    assert len(judge.found.single.alone_us) == len(judge.found.several.alone_us) == 3, "of each kind, so that like is compared with like"
    assert min(judge.found.single.alone_us + judge.found.several.alone_us) > 0


def timed_batches(us_of_batch: Callable[[int], float]) -> Any:
    """What is measured of a candidate whose batch of so many calls takes so many microseconds, beside a baseline of 100 us a call."""
    judge, _ = judge_of(fresh)

    def times(us: float, count: int) -> BatchTimes:
        spans = (*[0] * (count - 1), int(1000 * us))
        return BatchTimes(spans, (us + 200) / 1e6, None, (us + 200) / 1e6, us / 1e6, 0.0, 0, 0.0, "", 0)

    judge._run = lambda calls: times(us_of_batch(len(calls)), len(calls))  # type: ignore[method-assign]
    judge._by_baseline = lambda baseline, calls: times(100.0 * len(calls), len(calls))  # type: ignore[method-assign]
    judge.time(None, 20, float("inf"))  # type: ignore[arg-type]
    return judge.found


def test_a_batch_that_is_computed_at_once_earns_no_more_than_a_call_alone() -> None:
    """Planted: one launch computes the calls of a whole batch, in the time of one."""
    one, _ = evaluating([])
    found = timed_batches(lambda count: 90.0)
    assert len(found.single.pairs) == len(found.several.pairs) == 10
    judged = one._judged(found, 1.0)
    assert judged["speedup"].value == pytest.approx(100 / 90)
    assert judged["time_us"].value == pytest.approx(90.0)
    (remark,) = one._remarks
    assert remark.startswith("A call took 90.0 us alone in its batch")


def late_baseline(batches: int) -> Any:
    """A case whose baseline waits for the host in so many of its batches, and seems five times as slow there."""
    judge, _ = judge_of(fresh)
    asked = iter(range(1000))

    def by_baseline(baseline: Any, calls: Any) -> BatchTimes:
        late = next(asked) % 40 < batches
        us = 500.0 if late else 100.0
        return BatchTimes((int(1000 * us),) * len(calls), 1e-3, None, 1e-3, 0.0, 0.0, 0, 0.0, "", int(late))

    judge._run = lambda calls: BatchTimes((50_000,) * len(calls), 1e-3, None, 1e-3, 0.0, 0.0, 0, 0.0, "", 0)  # type: ignore[method-assign]
    judge._by_baseline = by_baseline  # type: ignore[method-assign]
    judge.time(None, 20, float("inf"))  # type: ignore[arg-type]
    return judge.found


def test_batches_in_which_the_baseline_waited_for_the_host_do_not_count() -> None:
    one, _ = evaluating([])
    found = late_baseline(10)
    assert found.single.late + found.several.late > 0
    assert one._judged(found, 1.0)["speedup"].value == pytest.approx(2.0)


def test_a_baseline_that_always_waits_for_the_host_accuses_nobody() -> None:
    one, _ = evaluating([])
    judged = one._judged(late_baseline(40), 1.0)
    assert judged["status"] is EvaluationStatus.UNFIT
    assert judged["reason"] == "the device waited for the host within the split chain's calls in 10 of 10 batches: the machine is too busy"


def test_an_honest_kernel_has_its_speedup_in_batches_of_any_length() -> None:
    one, _ = evaluating([])
    assert one._judged(timed_batches(lambda count: 50.0 * count), 1.0)["speedup"].value == pytest.approx(2.0)
    assert one._remarks == []


def test_a_candidate_does_not_choose_which_kind_of_batch_has_times() -> None:
    one, _ = evaluating([])
    found = timed_batches(lambda count: 10.0)
    found.single.pairs.clear()
    found.single.untimed[:] = ["the profiler lost records"] * 10
    judged = one._judged(found, 1.0)
    assert (judged["status"], judged["reason"]) == (
        EvaluationStatus.SUSPICIOUS,
        "0 of 10 batches could be timed: the profiler lost records",
    )
