"""What a gate says of three real nightlies, between which none of these kernels changed: the evidence for its yardstick and its margin."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from fusebench.schema import Estimate, Result, Role, Run, VerdictKind
from fusebench.stats.calibration import call_class
from fusebench.stats.gating import Comparison, Judgement, judge_run, launches_of
from fusebench.stats.rule import MarginRule
from fusebench.stats.selected_part import selected_part
from fusebench.stats.whole_run import judge_whole
from fusebench.store.run_folder import read_run

RESULTS = Path(__file__).parents[2] / "results"
RULE = MarginRule()
UNDER_3, FROM_3, FROM_10, FROM_50 = range(4)
"""Numbers of the classes of duration, in microseconds."""


@cache
def nightlies() -> tuple[Run, ...]:
    """The stored baseline and the two later ones, in order; the second was cut off after 140 of its 148 cases."""
    folders = [RESULTS / "baselines" / "nvidia_h200", *(RESULTS / "nightlies" / "nvidia_h200").iterdir()]
    return tuple(sorted((read_run(folder) for folder in folders), key=lambda run: run.created))


@cache
def compared() -> tuple[tuple[Judgement, bool, int], ...]:
    """Every comparison of two nightlies with a time, by times alone, with its class: whether of several launches, and of which duration.

    Compiled kernels and peers are left out, whose code changes, and so is code that is known to have changed.
    """
    found = []
    for old, new in combinations(nightlies(), 2):
        timings = [{(one.suite, one.case, one.kernel): one for one in run.results} for run in (new, old)]
        judgements = judge_run(without_code(new), selected_part(without_code(new), without_code(old)), RULE)
        for one in judgements:
            now, then = (results.get((one.suite, one.case, one.kernel)) for results in timings)
            if one.verdict.change is None or one.role in (Role.COMPILED, Role.PEER) or now is None or then is None:
                continue
            if now.code is not None and then.code is not None and now.code != then.code:
                continue
            assert now.measurement is not None
            assert then.measurement is not None
            several, duration = call_class(now.measurement.time_us.value, launches_of(now.measurement, then.measurement))
            found.append((one, several, duration))
    return tuple(found)


def without_code(run: Run) -> Run:
    """The run as its times alone show it: no machine code to recognise, no errors to compare."""
    return msgspec.structs.replace(run, results=[msgspec.structs.replace(one, code=None, accuracy=None) for one in run.results])


def of(*, several: bool, durations: range) -> Iterator[Judgement]:
    return (one for one, many, duration in compared() if many == several and duration in durations)


def verdicts(*, several: bool, durations: range) -> Counter[VerdictKind]:
    return Counter(one.verdict.kind for one in of(several=several, durations=durations))


def test_the_nightlies_are_of_three_gpus_and_commits() -> None:
    assert len({run.environment.device_uuid for run in nightlies()}) == 3
    assert len({run.environment.git_commit for run in nightlies()}) == 3
    assert {one.comparison for one, *_ in compared()} == {Comparison.RATIO}
    assert len(compared()) > 1800
    relative = Counter(one.verdict.reason.partition(":")[0] for one, *_ in compared())
    assert relative["relative to the stream"] > 0.99 * len(compared())


@pytest.mark.parametrize(
    ("durations", "passing", "most_findings"),
    [(range(UNDER_3, FROM_3), 0.8, 1), (range(FROM_3, FROM_10), 0.6, 1), (range(FROM_10, FROM_50), 0.95, 0), (range(FROM_50, 4), 0.99, 0)],
)
def test_unchanged_kernels_of_one_launch_are_not_accused(durations: range, passing: float, most_findings: int) -> None:
    found = verdicts(several=False, durations=durations)
    assert found.total() > 150
    assert found[VerdictKind.PASS] > passing * found.total()
    assert found[VerdictKind.REGRESSION] + found[VerdictKind.IMPROVEMENT] <= most_findings


def test_calls_of_several_launches_need_the_double_margin() -> None:
    found = verdicts(several=True, durations=range(4))
    assert found.total() > 700
    assert found[VerdictKind.REGRESSION] + found[VerdictKind.IMPROVEMENT] <= 0.006 * found.total()
    narrow = Counter(RULE.judge(one.verdict.change, 50.0)[0] for one in of(several=True, durations=range(FROM_10, 4)) if one.verdict.change)
    assert narrow[VerdictKind.REGRESSION] + narrow[VerdictKind.IMPROVEMENT] >= 15, "what the single margin would have said"


def test_the_stream_scatters_less_than_the_split_chain_as_a_yardstick() -> None:
    stream, split = defaultdict(list), defaultdict(list)
    for old, new in combinations(nightlies(), 2):
        before = {(one.suite, one.case, one.kernel): one.measurement for one in old.results}
        for one in new.results:
            now, then = one.measurement, before.get((one.suite, one.case, one.kernel))
            if one.role is not Role.FUSED or now is None or then is None or now.speedup is None or then.speedup is None:
                continue
            split[call_class(now.time_us.value, 1)[1]].append(math.log(then.speedup.value / now.speedup.value))
    for one, several, duration in compared():
        if one.role is Role.FUSED and not several and one.verdict.change is not None:
            stream[duration].append(math.log(one.verdict.change.value))
    for duration in (FROM_3, FROM_10):
        assert statistics.stdev(stream[duration]) < 0.8 * statistics.stdev(split[duration])
    assert abs(statistics.mean(stream[FROM_3])) < 0.005
    assert statistics.mean(split[FROM_3]) > 0.01, "split chains became faster, so that every kernel read slower"


@pytest.mark.parametrize("pair", list(combinations(range(3), 2)))
def test_a_gate_of_one_nightly_against_another_accuses_nobody(pair: tuple[int, int]) -> None:
    """With machine code and accuracy, as `fusebench gate` judges; what torch.compile chose anew is told, and has no say."""
    old, new = (nightlies()[number] for number in pair)
    judgements = judge_whole(new, old, RULE).judgements
    assert sum(one.verdict.kind is VerdictKind.PASS for one in judgements) > 0.75 * len(judgements)
    assert [one for one in judgements if one.verdict.kind is VerdictKind.REGRESSION and one.verdict.decides] == []
    assert any(one.verdict.kind is VerdictKind.REGRESSION for one in judgements), "compiled code did become slower"


def slowed(run: Run, share: float) -> Run:
    """The run with every fused kernel slower by this share, in all its replicates alike."""

    def slower(result: Result) -> Result:
        timing = result.measurement
        if timing is None or result.role is not Role.FUSED:
            return result
        time = Estimate(*(bound * (1 + share) for bound in (timing.time_us.value, timing.time_us.low, timing.time_us.high)))
        return msgspec.structs.replace(result, measurement=msgspec.structs.replace(timing, time_us=time))

    return msgspec.structs.replace(run, results=[slower(result) for result in run.results])


@pytest.mark.parametrize(("share", "duration"), [(0.03, FROM_50), (0.04, FROM_10), (0.1, FROM_3)])
def test_slowdowns_planted_in_real_nightlies_are_found(share: float, duration: int) -> None:
    """Each by itself, before the rate of false findings, which asks less of many."""
    found = []
    for old, new in combinations(nightlies(), 2):
        timings = {(one.suite, one.case, one.kernel): one.measurement for one in new.results}
        for one in judge_run(slowed(without_code(new), share), selected_part(without_code(new), without_code(old)), RULE):
            timing = timings.get((one.suite, one.case, one.kernel))
            if one.role is not Role.FUSED or one.verdict.change is None or timing is None:
                continue
            if call_class(timing.time_us.value, timing.kernels) == (False, duration):
                found.append(one.verdict.kind is VerdictKind.REGRESSION)
    assert len(found) > 300
    assert statistics.mean(found) > (0.97 if duration >= FROM_10 else 0.9)
