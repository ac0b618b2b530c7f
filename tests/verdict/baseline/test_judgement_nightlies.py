"""What a gate says of real nightlies: the evidence for its yardstick and its margin.

Between the three early ones none of these kernels changed; the five late ones ran other machine code than the early ones' Triton kernels
were, made by another assembler: the first two of them the same, and the last three.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from fusebench.schema import Estimate, Result, Role, Run, VerdictKind
from fusebench.store.history_file import read_history_file
from fusebench.store.scatter_file import load_scatter
from fusebench.verdict.baseline.compare_to_baseline import judge_run
from fusebench.verdict.baseline.judgement import Judgement, judge_each
from fusebench.verdict.baseline.scope import scoped_baseline
from fusebench.verdict.margins.call_classes import call_class, launches_of
from fusebench.verdict.margins.rule import MarginRule

RESULTS = Path(__file__).parents[3] / "results"
RULE = MarginRule()
"""As on a device without stored runs."""
SCATTER = MarginRule(scatter=load_scatter(RESULTS, "NVIDIA H200"))
"""As on this one.  `test_run_scatter.py` leaves out the boards it judges."""
UNDER_3, FROM_3, FROM_10, FROM_50 = range(4)
"""Numbers of the classes of duration, in microseconds."""


@cache
def stored() -> tuple[Run, ...]:
    """All eight in order, of which the sixth was the stored baseline and the next two were judged against it."""
    runs = read_history_file(RESULTS / "history" / "nvidia_h200.parquet")
    found = tuple(run for run in runs if run.plan.precision is None)
    assert (len(found), found[5].id) == (8, "e36305e9")
    return found


def nightlies() -> tuple[Run, ...]:
    """The early three; the second was cut off after 140 of its 148 cases."""
    return stored()[:3]


def late_ones() -> tuple[Run, ...]:
    """Two of one GPU and one commit, two of another GPU, and one of a third; between them no commit changed a kernel."""
    return stored()[3:]


def of_one_code() -> tuple[Run, ...]:
    """The first two of the late ones."""
    return late_ones()[:2]


def last_two() -> tuple[Run, ...]:
    """The one that was the stored baseline, and the one after it."""
    return late_ones()[2:4]


def looked_twice() -> Run:
    """The last one, whose cases in doubt were measured again in fresh processes."""
    return late_ones()[4]


Place = tuple[str, str, str]
"""Suite, case and kernel."""


def place(one: Result | Judgement) -> Place:
    return one.suite, one.case, one.kernel


class Compared(NamedTuple):
    """One comparison by times alone."""

    judgement: Judgement
    time_us: float
    several: bool
    """Whether a call makes several launches."""
    duration: int


@cache
def compared() -> tuple[Compared, ...]:
    """Every comparison of two nightlies with a time.

    Compiled kernels and peers are left out, whose code changes, and so is code that is known to have changed.
    """
    found = []
    for old, new in combinations(nightlies(), 2):
        timings = [{place(one): one for one in run.results} for run in (new, old)]
        judgements = judge_each(without_code(new), scoped_baseline(without_code(new), without_code(old)), RULE)
        for one in judgements:
            now, then = (results.get(place(one)) for results in timings)
            if one.verdict.change is None or one.role in (Role.COMPILED, Role.PEER) or now is None or then is None:
                continue
            if now.code is not None and then.code is not None and now.code != then.code:
                continue
            assert now.measurement is not None
            assert then.measurement is not None
            time_us = now.measurement.time_us.value
            found.append(Compared(one, time_us, *call_class(time_us, launches_of(now.measurement, then.measurement))))
    return tuple(found)


def without_code(run: Run) -> Run:
    """The run as its times alone show it: no machine code to recognise, no errors to compare."""
    return msgspec.structs.replace(run, results=[msgspec.structs.replace(one, code=None, accuracy=None) for one in run.results])


def of(*, several: bool, durations: range = range(4)) -> Iterator[Compared]:
    return (one for one in compared() if one.several == several and one.duration in durations)


def verdicts(found: Iterable[Compared]) -> Counter[VerdictKind]:
    return Counter(one.judgement.verdict.kind for one in found)


def findings(counted: Counter[VerdictKind]) -> int:
    return counted[VerdictKind.REGRESSION] + counted[VerdictKind.IMPROVEMENT]


def test_the_nightlies_are_of_three_gpus_and_commits() -> None:
    assert len({run.environment.device_uuid for run in nightlies()}) == 3
    assert len({run.environment.git_commit for run in nightlies()}) == 3
    assert len(compared()) == 2034
    assert all(one.judgement.verdict.reason.startswith("relative to the streaming yardsticks of ") for one in compared())


@pytest.mark.parametrize(
    ("duration", "passing", "most_findings"), [(UNDER_3, 0.88, 0), (FROM_3, 0.8, 2), (FROM_10, 0.98, 0), (FROM_50, 0.995, 0)]
)
def test_unchanged_kernels_of_one_launch_are_not_accused(duration: int, passing: float, most_findings: int) -> None:
    found = verdicts(of(several=False, durations=range(duration, duration + 1)))
    assert found.total() > 150
    assert found[VerdictKind.PASS] > passing * found.total()
    assert findings(found) <= most_findings


def test_calls_of_several_launches_need_the_double_margin() -> None:
    found = verdicts(of(several=True))
    assert found.total() == 836
    assert findings(found) <= 10
    single = Counter(RULE.judge(change, one.time_us)[0] for one in of(several=True) if (change := one.judgement.verdict.change))
    assert findings(single) > 4 * findings(found)


def scatter(ratios: Iterable[float]) -> float:
    return statistics.stdev(map(math.log, ratios))


@pytest.mark.parametrize("duration", [FROM_3, FROM_10, FROM_50])
def test_the_streams_scatter_less_than_any_other_yardstick(duration: int) -> None:
    others = defaultdict(list)
    for old, new in combinations(nightlies(), 2):
        before = {place(one): one.measurement for one in old.results}
        cases = [{summary.case.key: summary for summary in run.cases} for run in (new, old)]
        for one in new.results:
            now, then = one.measurement, before.get(place(one))
            if one.role is not Role.FUSED or now is None or then is None or call_class(now.time_us.value, now.kernels) != (False, duration):
                continue
            assert now.speedup is not None
            assert then.speedup is not None
            ratio = now.time_us.value / then.time_us.value
            others["split chain"].append(then.speedup.value / now.speedup.value)
            for name in ("copy_us", "stream_us"):
                new_us, old_us = (getattr(each[one.case_key], name).value for each in cases)
                others[name].append(ratio * old_us / new_us)
    fused = (one.judgement for one in of(several=False, durations=range(duration, duration + 1)) if one.judgement.role is Role.FUSED)
    streams = scatter(one.verdict.change.value for one in fused if one.verdict.change is not None)
    assert streams < min(scatter(others["stream_us"]), 0.7 * scatter(others["copy_us"]), 0.7 * scatter(others["split chain"]))


@pytest.mark.parametrize("pair", list(combinations(range(3), 2)))
def test_a_gate_of_one_nightly_against_another_accuses_nobody(pair: tuple[int, int]) -> None:
    """With machine code and accuracy, as `fusebench gate` judges; what torch.compile chose anew is told, and has no say."""
    old, new = (nightlies()[number] for number in pair)
    judgements = judge_run(new, old, RULE).judgements
    assert sum(one.verdict.kind is VerdictKind.PASS for one in judgements) > 0.75 * len(judgements)
    assert [one for one in judgements if one.verdict.kind is VerdictKind.REGRESSION and one.verdict.gating] == []
    assert any(one.verdict.kind is VerdictKind.REGRESSION for one in judgements), "compiled code did become slower"


@pytest.mark.parametrize(("new", "disturbed"), [(0, []), (1, [("b1_heads_32_1", "rotary_embedding/split_triton@1")])])
def test_a_gate_of_the_same_machine_code_passes_all_that_gates_but_a_disturbed_time(new: int, disturbed: list[tuple[str, str]]) -> None:
    """Of speed and of accuracy, whichever came first.  One chain of small launches is 27 % off, and its placements differ by multiples."""
    runs = of_one_code()
    judgements = [one for one in judge_run(runs[new], runs[1 - new], RULE).judgements if one.verdict.gating]
    assert len(judgements) == 730
    others = [one for one in judgements if one.verdict.kind is not VerdictKind.PASS]
    assert [(one.case, one.kernel) for one in others] == disturbed
    assert all((one.verdict.kind, "the time was disturbed" in one.verdict.reason) == (VerdictKind.UNDECIDED, True) for one in others)
    assert all("identical machine code" in one.verdict.reason for one in judgements)


def test_times_alone_accuse_no_kernel_of_the_same_machine_code() -> None:
    new, old = (without_code(run) for run in of_one_code())
    judged = [one.verdict for one in judge_each(new, old, RULE) if one.role is Role.FUSED]
    assert sum(one.kind is VerdictKind.PASS for one in judged) > 0.9 * len(judged) > 300
    assert [one.reason for one in judged if one.kind is VerdictKind.REGRESSION] == []


@pytest.mark.parametrize("early", range(3))
@pytest.mark.parametrize("late", range(4))
def test_what_the_assembler_slowed_down_is_found_on_every_gpu(early: int, late: int) -> None:
    """The source is the same; Triton's own ptxas makes other code of it than torch's, 4 to 6 % slower in these two cases."""
    judged = {place(one): one.verdict for one in judge_run(late_ones()[late], nightlies()[early], RULE).judgements}
    found = {where: verdict.change for where, verdict in judged.items() if verdict.gating and verdict.kind is VerdictKind.REGRESSION}
    if (late, early) == (0, 2):
        del found["norm_scale_shift_gate_select01", "batch4_257x1536", "norm_scale_shift_gate_select01/fused_triton@1"]
    first, second = (
        {("norm_scale_shift", case, f"norm_scale_shift/fused_triton@{version}") for case in ("frames_8", "batch4_frames_16")}
        for version in (1, 2)
    )
    assert second <= set(found) <= first | second, "and no other kernel is accused"
    assert all(change is not None and 1.035 < change.value < 1.065 for change in found.values())


def test_a_mode_that_one_process_had_leaves_the_same_machine_code_undecided_and_accuses_nobody() -> None:
    """Two kernels on one case took 4 % longer in all twelve placements of one process, on the same board."""
    baseline, new = last_two()
    assert baseline.environment.device_uuid == new.environment.device_uuid
    judged = [one for one in judge_run(new, baseline, SCATTER).judgements if one.verdict.gating]
    assert len(judged) == 730
    assert all("identical machine code" in one.verdict.reason for one in judged)
    case = ("residual_gate_norm_scale_shift", "bench_1024x4096")
    fused = {(*case, f"residual_gate_norm_scale_shift/fused_triton@{version}") for version in (1, 2)}
    assert {place(one) for one in judged if one.verdict.kind is VerdictKind.UNDECIDED} == fused
    assert verdicts_of(judged) == {VerdictKind.PASS: 728, VerdictKind.UNDECIDED: 2}
    other_way = [one for one in judge_run(baseline, new, SCATTER).judgements if one.verdict.gating]
    assert {place(one) for one in other_way if one.verdict.kind is VerdictKind.UNDECIDED} == fused, "the baseline's process had the mode"
    assert verdicts_of(other_way) == {VerdictKind.PASS: 728, VerdictKind.UNDECIDED: 2}
    alone = [one for one in judge_each(without_code(new), without_code(baseline), SCATTER) if one.role is Role.FUSED]
    assert {place(one) for one in alone if one.verdict.kind is VerdictKind.REGRESSION} == fused, "times alone do accuse them"


def test_a_nightly_that_looks_twice_passes_everything_that_has_a_say() -> None:
    """On a third board.  Of nine cases that were in doubt two were undecided; names that two suites share made four of the others."""
    baseline, new = last_two()[0], looked_twice()
    judged = [one for one in judge_run(new, baseline, SCATTER).judgements if one.verdict.gating]
    assert verdicts_of(judged) == {VerdictKind.PASS: 730}
    again = {summary.case.key: summary.suspicion for summary in new.cases if summary.suspicion}
    assert len(again) == 9
    assert sum("(undecided)" in reason for reason in again.values()) == 2
    timed = [(one.case_key in again, one.measurement.processes) for one in new.results if one.measurement is not None]
    assert {processes for suspicion, processes in timed if suspicion} == {8}
    assert {processes for suspicion, processes in timed if not suspicion} == {1}
    said = [one.verdict.reason for one in judged if f"{one.suite}:{one.case}" in again]
    assert all("measured in 8 fresh processes, because it was a suspect after the first" in reason for reason in said)
    assert judge_run(new, baseline, SCATTER).unexplained == (), "two improvements beyond 2 % are within the scatter between runs"


def verdicts_of(judged: Iterable[Judgement]) -> Counter[VerdictKind]:
    return Counter(one.verdict.kind for one in judged)


@pytest.mark.parametrize("pair", list(combinations(range(5), 2)))
def test_a_gate_of_one_late_nightly_against_another_accuses_nobody(pair: tuple[int, int]) -> None:
    """Whichever came first, between two boards and commits too.  Fifty kernels of the first hold other code, and only times judge them."""
    for new, old in (pair, pair[::-1]):
        judged = [one for one in judge_run(late_ones()[new], late_ones()[old], SCATTER).judgements if one.verdict.gating]
        assert set(verdicts_of(judged)) <= {VerdictKind.PASS, VerdictKind.UNDECIDED}
        assert verdicts_of(judged)[VerdictKind.PASS] >= 704


def test_code_of_another_assembler_came_back_from_tritons_cache() -> None:
    """The first late nightly ran after tests that had left code of torch's ptxas in Triton's folder of compiled kernels."""
    early, before, after = nightlies()[2], of_one_code()[0], last_two()[0]
    codes = [{place(one): one.code for one in run.results if one.role not in (Role.COMPILED, Role.PEER)} for run in (early, before, after)]
    changed = {where for where, code in codes[2].items() if code is not None and codes[1][where] != code}
    assert len(changed) == 50
    assert all("triton" in kernel for _, _, kernel in changed)
    assert sum(codes[0][where] == codes[1][where] for where in changed) == 46
    assert not any(codes[0][where] == codes[2][where] for where in changed)


@pytest.mark.parametrize("shared", [False, True], ids=["of the kernel", "that the split chain shares"])
def test_a_loss_of_accuracy_planted_over_the_stored_baseline_is_found(shared: bool) -> None:
    """Its records hold what rounding alone makes, so that the split chain is no yardstick."""
    old, new = last_two()
    worse = msgspec.structs.replace(new, results=[less_accurate(one, shared) for one in new.results])
    found = [one.verdict for one in judge_run(worse, old, RULE).judgements if one.role is Role.FUSED]
    assert sum(one.kind is VerdictKind.REGRESSION and one.reason.startswith("accuracy: ") for one in found) > 0.9 * len(found) > 300


def test_a_loss_of_accuracy_planted_in_a_real_nightly_is_found() -> None:
    """Of 15 %, in every fused kernel and case of which errors of its outputs are known."""
    new, old = of_one_code()
    worse = msgspec.structs.replace(new, results=[less_accurate(one) for one in new.results])
    found = [one.verdict for one in judge_run(worse, old, RULE).judgements if one.role is Role.FUSED]
    assert sum(one.kind is VerdictKind.REGRESSION and one.reason.startswith("accuracy: ") for one in found) > 0.9 * len(found) > 300


def less_accurate(result: Result, shared: bool = False) -> Result:
    """The result with errors 15 % larger, by other code if known.  `shared`: the split chain, beside which it was checked, lost as much."""
    if result.accuracy is None or result.role is not Role.FUSED:
        return result
    split = 1.15 if shared else 1.0
    outputs = tuple(
        msgspec.structs.replace(one, rms=1.15 * max(one.rms, one.floor), split_rms=split * one.split_rms) for one in result.accuracy.outputs
    )
    code = None if result.code is None else f"less accurate {result.code}"
    return msgspec.structs.replace(result, accuracy=msgspec.structs.replace(result.accuracy, outputs=outputs), code=code)


def slowed(run: Run, share: float, places: Collection[Place] | None = None) -> Run:
    """The run with every fused kernel, or what is in these places, slower by this share in all replicates alike, by other code if known."""

    def slower(result: Result) -> Result:
        timing = result.measurement
        if timing is None or not (result.role is Role.FUSED if places is None else place(result) in places):
            return result
        time = Estimate(*(bound * (1 + share) for bound in (timing.time_us.value, timing.time_us.low, timing.time_us.high)))
        code = None if result.code is None else "changed"
        return msgspec.structs.replace(result, measurement=msgspec.structs.replace(timing, time_us=time), code=code)

    return msgspec.structs.replace(run, results=[slower(result) for result in run.results])


@pytest.mark.parametrize(("share", "duration"), [(0.03, FROM_50), (0.04, FROM_10), (0.05, FROM_3)])
def test_slowdowns_planted_in_real_nightlies_are_found(share: float, duration: int) -> None:
    """Each by itself, before the rate of false findings, which asks less of many."""
    found = []
    for old, new in combinations(nightlies(), 2):
        timings = {place(one): one.measurement for one in new.results}
        for one in judge_each(slowed(without_code(new), share), scoped_baseline(without_code(new), without_code(old)), RULE):
            timing = timings.get(place(one))
            if one.role is not Role.FUSED or one.verdict.change is None or timing is None:
                continue
            if call_class(timing.time_us.value, timing.kernels) == (False, duration):
                found.append(one.verdict.kind is VerdictKind.REGRESSION)
    assert len(found) > 300
    assert statistics.mean(found) > (0.99 if duration >= FROM_10 else 0.9)


@pytest.mark.parametrize(
    ("share", "duration", "everywhere", "alone"), [(0.03, FROM_50, 0.91, 0.7), (0.04, FROM_10, 0.95, 0.7), (0.05, FROM_3, 0.82, 0.5)]
)
def test_the_whole_gate_finds_planted_slowdowns_or_leaves_them_undecided(
    share: float, duration: int, everywhere: float, alone: float
) -> None:
    """Of one kernel in all its cases, and of every tenth in one case alone, which must stand among some 690 comparisons."""
    together: list[VerdictKind] = []
    single: list[VerdictKind] = []
    for old, new in combinations(nightlies(), 2):
        timed = {place(one) for one in judge_each(new, old, RULE) if one.verdict.change is not None}
        fused = [(one, one.measurement) for one in new.results if one.role is Role.FUSED and place(one) in timed]
        these = [place(one) for one, timing in fused if timing and call_class(timing.time_us.value, timing.kernels) == (False, duration)]
        for kernel in sorted({kernel for _, _, kernel in these}):
            slow = slowed(new, share, {place(one) for one in new.results if one.kernel == kernel})
            judged = judge_run(slow, old, RULE).judgements
            together += [one.verdict.kind for one in judged if one.kernel == kernel and place(one) in these]
        for where in these[::10]:
            judged = judge_run(slowed(new, share, {where}), old, RULE).judgements
            single += [one.verdict.kind for one in judged if place(one) == where]
    assert {*together, *single} == {VerdictKind.REGRESSION, VerdictKind.UNDECIDED}
    assert together.count(VerdictKind.REGRESSION) > everywhere * len(together)
    assert alone * len(single) < single.count(VerdictKind.REGRESSION) < 0.95 * len(single)
