"""A run against a baseline: what is a regression, what passes, and what cannot be compared."""

from __future__ import annotations

import random
from collections import Counter
from types import ModuleType

import msgspec
import pytest

from fusebench.schema import CacheState, Estimate, ExitCode, Role, Run, SamplingPlan, Status, Verdict, VerdictKind
from fusebench.verdict.baseline.judgement import Basis, Judgement, Presence, judge_each
from fusebench.verdict.exit_status import gate_exit_code
from fusebench.verdict.margins.rule import MarginRule

RULE = MarginRule()


def by_place(judgements: list[Judgement]) -> dict[tuple[str, str], Judgement]:
    return {(judgement.case, judgement.kernel): judgement for judgement in judgements}


def test_an_unchanged_run_passes_everywhere(synthetic: ModuleType) -> None:
    judgements = judge_each(synthetic.make_run(), synthetic.make_run(), RULE)
    assert len(judgements) == 30
    assert {judgement.verdict.kind for judgement in judgements} == {VerdictKind.PASS}
    assert gate_exit_code(judgements) is ExitCode.PASS


@pytest.mark.parametrize(
    ("factor", "kind", "code"),
    [
        (1.06, VerdictKind.REGRESSION, ExitCode.REGRESSION),
        (1 / 1.06, VerdictKind.IMPROVEMENT, ExitCode.PASS),
        (1.02, VerdictKind.UNDECIDED, ExitCode.UNDECIDED),
    ],
)
def test_a_planted_change_is_found_where_it_is_and_nowhere_else(
    synthetic: ModuleType, factor: float, kind: VerdictKind, code: ExitCode
) -> None:
    place = ("zimage_1024", synthetic.FUSED)
    judgements = judge_each(synthetic.make_run(slow={place: factor}), synthetic.make_run(), RULE)
    found = by_place(judgements)
    assert found[place].verdict.kind is kind
    assert found[place].basis is Basis.RATIO
    assert found[place].verdict.change is not None
    assert found[place].verdict.change.value == pytest.approx(factor)
    assert Counter(judgement.verdict.kind for judgement in judgements)[VerdictKind.PASS] == 29
    assert gate_exit_code(judgements) is code


def with_yardsticks(run: Run, *, stream: float | None = 1.0, copy: float | None = 1.0) -> Run:
    """`run`, its yardsticks slower by these factors, or without them."""

    def scaled(time: Estimate, factor: float | None) -> Estimate | None:
        return None if factor is None else Estimate(time.value * factor, time.low * factor, time.high * factor)

    cases = [
        msgspec.structs.replace(one, stream_us=scaled(one.stream_us, stream), copy_us=scaled(one.copy_us, copy))
        for one in run.cases
        if one.stream_us is not None and one.copy_us is not None
    ]
    return msgspec.structs.replace(run, cases=cases)


def everywhere(synthetic: ModuleType, factor: float) -> dict[tuple[str, str], float]:
    return {(case, kernel): factor for case in synthetic.CASES for kernel in synthetic.KERNELS}


def test_a_slower_machine_slows_the_yardsticks_too_and_accuses_nobody(synthetic: ModuleType) -> None:
    run = with_yardsticks(synthetic.make_run(slow=everywhere(synthetic, 1.2)), stream=1.2, copy=1.2)
    judgements = judge_each(run, synthetic.make_run(), RULE)
    assert {judgement.verdict.kind for judgement in judgements} == {VerdictKind.PASS}
    assert all(judgement.verdict.reason.startswith("relative to the streaming yardstick: ") for judgement in judgements)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_stream_that_moved_is_named_and_no_kernel_accused_or_praised(synthetic: ModuleType, factor: float) -> None:
    judgements = judge_each(with_yardsticks(synthetic.make_run(), stream=factor), synthetic.make_run(), RULE)
    assert {judgement.verdict.kind for judgement in judgements} == {VerdictKind.PASS}
    assert all("unchanged, so what moved is not this kernel" in judgement.verdict.reason for judgement in judgements)


def test_what_the_split_chain_does_is_no_matter_of_the_fused_kernel(synthetic: ModuleType) -> None:
    """Its several launches scatter most, and it is a kernel under test itself."""
    faster_split = {(case, synthetic.BASELINE): 0.9 for case in synthetic.CASES}
    found = by_place(judge_each(synthetic.make_run(slow=faster_split), synthetic.make_run(), RULE))
    assert found["flux_1024", synthetic.FUSED].verdict.kind is VerdictKind.PASS
    assert found["flux_1024", synthetic.BASELINE].verdict.kind is VerdictKind.IMPROVEMENT
    both = {("flux_1024", kernel): 1.08 for kernel in (synthetic.BASELINE, synthetic.FUSED)}
    found = by_place(judge_each(synthetic.make_run(slow=both), synthetic.make_run(), RULE))
    assert {found["flux_1024", kernel].verdict.kind for kernel in (synthetic.BASELINE, synthetic.FUSED)} == {VerdictKind.REGRESSION}


def test_a_kernel_that_slows_down_together_with_the_stream_has_not_passed(synthetic: ModuleType) -> None:
    run = with_yardsticks(synthetic.make_run(slow=everywhere(synthetic, 1.08)), stream=1.08)
    found = by_place(judge_each(run, synthetic.make_run(), RULE))["flux_1024", synthetic.FUSED].verdict
    assert found.kind is VerdictKind.UNDECIDED
    assert found.reason.startswith("relative to the copy yardstick +8.0 %")
    assert "in raw time +8.0 %" in found.reason
    assert "slower, and the streaming yardstick with it" in found.reason
    assert found.change is not None
    assert found.change.value == pytest.approx(1.0, abs=0.01), "what it is held against as noise is how far it moved by itself"


def test_a_kernel_that_slows_down_less_than_the_stream_has_not_improved(synthetic: ModuleType) -> None:
    run = with_yardsticks(synthetic.make_run(slow={("flux_1024", synthetic.FUSED): 1.1}), stream=1.2)
    fused = by_place(judge_each(run, synthetic.make_run(), RULE))["flux_1024", synthetic.FUSED]
    assert fused.verdict.kind is VerdictKind.UNDECIDED
    assert "relative to the copy yardstick +10.0 %" in fused.verdict.reason


@pytest.mark.parametrize("raw", [0.85, 1.0])
def test_yardsticks_that_were_disturbed_in_the_baseline_accuse_no_kernel_that_takes_no_longer(synthetic: ModuleType, raw: float) -> None:
    run = with_yardsticks(synthetic.make_run(slow=everywhere(synthetic, raw)), stream=0.55, copy=0.6)
    judgements = judge_each(run, synthetic.make_run(), RULE)
    assert {one.verdict.kind for one in judgements} == {VerdictKind.UNDECIDED}
    assert all(
        one.verdict.reason.startswith("in raw time ") and "so either the machine changed" in one.verdict.reason for one in judgements
    )


def test_a_slower_kernel_on_another_board_that_is_faster_is_a_regression(synthetic: ModuleType) -> None:
    run = with_yardsticks(synthetic.make_run(slow=everywhere(synthetic, 0.9)), stream=0.8, copy=0.8)
    environment = msgspec.structs.replace(run.environment, device_uuid="GPU-other")
    judgements = judge_each(msgspec.structs.replace(run, environment=environment), synthetic.make_run(), RULE)
    assert {one.verdict.kind for one in judgements} == {VerdictKind.REGRESSION}, "raw times of two boards do not compare"


def test_a_copy_that_became_faster_alone_accuses_nobody(synthetic: ModuleType) -> None:
    """Copies of a few megabytes scatter by 2 % between runs: they are asked only where raw times moved as well."""
    judgements = judge_each(with_yardsticks(synthetic.make_run(), copy=0.9), synthetic.make_run(), RULE)
    assert {judgement.verdict.kind for judgement in judgements} == {VerdictKind.PASS}


def test_without_any_yardstick_raw_times_need_the_same_fingerprint(synthetic: ModuleType) -> None:
    place = ("flux_1024", synthetic.BASELINE)
    old = synthetic.make_run(copy=False, kernels=[synthetic.BASELINE])
    slower = synthetic.make_run(copy=False, kernels=[synthetic.BASELINE], slow={place: 1.1})
    found = by_place(judge_each(slower, old, RULE))[place]
    assert (found.verdict.kind, found.basis) == (VerdictKind.REGRESSION, Basis.RAW)
    newer = synthetic.make_run(copy=False, kernels=[synthetic.BASELINE], slow={place: 1.1}, environment={"triton": "3.9.0"})
    found = by_place(judge_each(newer, old, RULE))[place]
    assert (found.verdict.kind, found.basis) == (VerdictKind.INCOMPARABLE, Basis.NONE)
    assert "triton: 3.6.0 -> 3.9.0" in found.verdict.reason


def test_without_the_stream_the_copy_is_the_yardstick_and_without_both_the_baseline_kernel(synthetic: ModuleType) -> None:
    """As in records from before the stream was measured."""
    place = ("flux_1024", synthetic.FUSED)
    slow, old = synthetic.make_run(slow={place: 1.1}), synthetic.make_run()
    for sides in ((with_yardsticks(slow, stream=None), old), (slow, with_yardsticks(old, stream=None))):
        found = by_place(judge_each(*sides, RULE))[place]
        assert (found.verdict.kind, found.verdict.reason.partition(":")[0]) == (VerdictKind.REGRESSION, "relative to the copy yardstick")
    bare = with_yardsticks(slow, stream=None, copy=None)
    found = by_place(judge_each(bare, old, RULE))[place]
    assert (found.verdict.kind, found.verdict.reason.partition(":")[0]) == (VerdictKind.REGRESSION, f"relative to {synthetic.BASELINE}")
    assert found.basis is Basis.RATIO


@pytest.mark.parametrize("factor", [1.1, 1 / 1.1])
def test_a_kernel_under_test_does_not_clear_another_that_became_slower_with_it(synthetic: ModuleType, factor: float) -> None:
    """In records with one yardstick only.  What slows both kernels down (a helper that they share) is no matter of the copy."""
    both = {("flux_1024", kernel): factor for kernel in (synthetic.BASELINE, synthetic.FUSED)}
    sides = [with_yardsticks(run, stream=None) for run in (synthetic.make_run(slow=both), synthetic.make_run())]
    found = by_place(judge_each(*sides, RULE))["flux_1024", synthetic.FUSED].verdict
    assert found.kind is (VerdictKind.UNDECIDED if factor > 1 else VerdictKind.PASS)
    assert found.reason.startswith(f"relative to {synthetic.BASELINE} ")
    assert "0.0 % [-0.6 %, +0.6 %]: unchanged, so" in found.reason
    assert ("find what they share (relative to the copy yardstick: +10.0 %" in found.reason) == (factor > 1)


@pytest.mark.parametrize("what", ["timer", "cache state", "device", "schema version"])
def test_runs_of_different_kinds_are_incomparable_and_say_why(synthetic: ModuleType, what: str) -> None:
    old = synthetic.make_run()
    new: Run = {
        "timer": synthetic.make_run(timer="cuda_events"),
        "cache state": synthetic.make_run(plan=SamplingPlan(replicates=12, rounds=40, cache=CacheState.WARM, trim=0.1)),
        "device": synthetic.make_run(environment={"device_name": "NVIDIA B200"}),
        "schema version": msgspec.structs.replace(old, schema_version=old.schema_version + 1),
    }[what]
    judgements = judge_each(new, old, RULE)
    assert len(judgements) == 30
    assert all(judgement.verdict.kind is VerdictKind.INCOMPARABLE and what in judgement.verdict.reason for judgement in judgements)
    assert gate_exit_code(judgements) is ExitCode.UNDECIDED
    assert gate_exit_code(judgements, allow_incomparable=True) is ExitCode.PASS


def test_a_case_that_kept_its_name_and_changed_its_shape_is_incomparable(synthetic: ModuleType) -> None:
    (judgement,) = judge_each(
        synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.FUSED], params={"tokens": 2048}),
        synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.FUSED]),
        RULE,
    )
    assert judgement.verdict.kind is VerdictKind.INCOMPARABLE
    assert "parameter tokens: 4096 -> 2048" in judgement.verdict.reason


@pytest.mark.parametrize("status", [Status.WRONG, Status.COMPILE_ERROR, Status.CRASHED, Status.HUNG, Status.OUT_OF_MEMORY])
def test_a_kernel_that_fails_now_is_an_error(synthetic: ModuleType, status: Status) -> None:
    place = ("flux_1024", synthetic.FUSED)
    judgements = judge_each(synthetic.make_run(status={place: (status, "what happened")}), synthetic.make_run(), RULE)
    assert by_place(judgements)[place].verdict.kind is VerdictKind.ERROR
    assert by_place(judgements)[place].verdict.reason == f"{status}: what happened"
    assert gate_exit_code(judgements, allow_incomparable=True) is ExitCode.KERNEL_FAILED


def test_a_shrunken_suite_does_not_pass_unseen(synthetic: ModuleType) -> None:
    judgements = judge_each(synthetic.make_run(cases=synthetic.CASES[:4], kernels=list(synthetic.KERNELS)[:5]), synthetic.make_run(), RULE)
    missing = [judgement for judgement in judgements if judgement.presence is Presence.MISSING]
    assert len(missing) == 6 + 4
    assert {judgement.verdict.reason.split("; ")[1] for judgement in missing} == {
        "this case is not in the run",
        "this kernel is not in the run",
    }
    assert gate_exit_code(judgements) is ExitCode.UNDECIDED
    assert gate_exit_code(judgements, allow_incomparable=True) is ExitCode.PASS


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.UNSUPPORTED, VerdictKind.INCOMPARABLE),
        (Status.NOT_RUNNABLE, VerdictKind.INCOMPARABLE),
        (Status.NOT_MEASURED, VerdictKind.UNDECIDED),
    ],
)
def test_a_kernel_that_stopped_being_measured_is_reported(synthetic: ModuleType, status: Status, kind: VerdictKind) -> None:
    place = ("flux_1024", synthetic.FUSED)
    found = by_place(judge_each(synthetic.make_run(status={place: (status, "why")}), synthetic.make_run(), RULE))[place]
    assert (found.verdict.kind, found.presence) == (kind, Presence.MISSING)
    assert "why" in found.verdict.reason


def test_a_new_kernel_is_listed_and_does_not_fail_the_gate(synthetic: ModuleType) -> None:
    judgements = judge_each(synthetic.make_run(), synthetic.make_run(kernels=list(synthetic.KERNELS)[:5]), RULE)
    new = [judgement for judgement in judgements if judgement.presence is Presence.NEW]
    assert len(new) == 5
    assert all("not in the baseline" in judgement.verdict.reason for judgement in new)
    assert gate_exit_code(judgements) is ExitCode.PASS


def test_a_gate_that_compared_nothing_has_not_passed(synthetic: ModuleType) -> None:
    judgements = judge_each(synthetic.make_run(suite="other"), synthetic.make_run(cases=()), RULE)
    assert {judgement.presence for judgement in judgements} == {Presence.NEW}
    assert gate_exit_code(judgements, allow_incomparable=True) is ExitCode.UNDECIDED
    assert gate_exit_code([]) is ExitCode.UNDECIDED


def test_a_kernel_that_neither_run_could_run_is_not_judged(synthetic: ModuleType) -> None:
    declined = {("flux_1024", synthetic.FUSED): (Status.UNSUPPORTED, "declines")}
    judgements = judge_each(synthetic.make_run(status=declined), synthetic.make_run(status=declined), RULE)
    assert ("flux_1024", synthetic.FUSED) not in by_place(judgements)


def test_accuracy_alone_is_compared_where_neither_run_timed(synthetic: ModuleType) -> None:
    place = ("flux_1024", synthetic.FUSED)
    checked = {place: (Status.CHECKED, "")}
    found = by_place(judge_each(synthetic.make_run(status=checked, errors={place: 1.3}), synthetic.make_run(status=checked), RULE))[place]
    assert found.verdict.kind is VerdictKind.REGRESSION
    same = by_place(judge_each(synthetic.make_run(status=checked), synthetic.make_run(status=checked), RULE))[place]
    assert (same.verdict.kind, same.basis) == (VerdictKind.PASS, Basis.NONE)


def test_false_alarms_between_equal_noisy_runs_are_rare(synthetic: ModuleType) -> None:
    generator = random.Random(5)
    verdicts: Counter[VerdictKind] = Counter()
    for _ in range(40):
        runs = [synthetic.make_run(noise=generator, half=0.004) for _ in range(2)]
        verdicts.update(judgement.verdict.kind for judgement in judge_each(runs[0], runs[1], RULE))
    total = sum(verdicts.values())
    assert total == 1200
    assert verdicts[VerdictKind.REGRESSION] == 0
    assert verdicts[VerdictKind.PASS] >= 0.99 * total


def test_roles_of_the_synthetic_run_are_what_these_tests_assume(synthetic: ModuleType) -> None:
    assert {result.role for result in synthetic.make_run().results} == {Role.SPLIT, Role.FUSED, Role.COMPILED}


def test_a_case_that_is_not_cold_is_compared_with_nothing(synthetic: ModuleType) -> None:
    def warmed(run: Run) -> Run:
        first = msgspec.structs.replace(run.cases[0], not_cold="it moved 9 TB/s")
        return msgspec.structs.replace(run, cases=[first, *run.cases[1:]])

    for sides in ((warmed(synthetic.make_run()), synthetic.make_run()), (synthetic.make_run(), warmed(synthetic.make_run()))):
        judgements = judge_each(*sides, MarginRule())
        touched = [one for one in judgements if one.case == "flux_1024"]
        assert {one.verdict.kind for one in touched} == {VerdictKind.INCOMPARABLE}
        assert all("labelled cold, but it moved 9 TB/s" in one.verdict.reason for one in touched)
        assert {one.verdict.kind for one in judgements if one.case != "flux_1024"} == {VerdictKind.PASS}


def test_a_suspicious_time_is_compared_with_nothing(synthetic: ModuleType) -> None:
    def doubted(run: Run) -> Run:
        first = msgspec.structs.replace(run.results[1], suspicious="it left work behind")
        return msgspec.structs.replace(run, results=[run.results[0], first, *run.results[2:]])

    for sides in ((doubted(synthetic.make_run()), synthetic.make_run()), (synthetic.make_run(), doubted(synthetic.make_run()))):
        found = [one.verdict for one in judge_each(*sides, MarginRule()) if one.verdict.kind is not VerdictKind.PASS]
        assert [one.kind for one in found] == [VerdictKind.INCOMPARABLE]
        assert "is suspicious: it left work behind" in found[0].reason


def test_a_baseline_of_another_suite_is_named(synthetic: ModuleType) -> None:
    judgements = judge_each(synthetic.make_run(suite="b"), synthetic.make_run(suite="a"), MarginRule())
    assert {one.verdict.kind for one in judgements} == {VerdictKind.INCOMPARABLE}
    assert all("a -> b" in one.verdict.reason for one in judgements)


COMPILED = ("flux_1024", "qknorm_rope/compiled@1")


@pytest.mark.parametrize(
    ("factor", "kind"), [(1.2, VerdictKind.REGRESSION), (1 / 1.2, VerdictKind.IMPROVEMENT), (1.04, VerdictKind.UNDECIDED)]
)
def test_the_speed_of_compiled_code_is_judged_and_advisory(synthetic: ModuleType, factor: float, kind: VerdictKind) -> None:
    judgements = judge_each(synthetic.make_run(slow={COMPILED: factor}), synthetic.make_run(), RULE)
    found = by_place(judgements)
    assert (found[COMPILED].verdict.kind, found[COMPILED].verdict.gating) == (kind, False)
    assert found["flux_1024", synthetic.FUSED].verdict.gating
    assert gate_exit_code(judgements) is ExitCode.PASS


@pytest.mark.parametrize("factor", [1.0, 1.2, 1 / 1.2])
def test_a_loss_of_accuracy_of_compiled_code_keeps_its_say(synthetic: ModuleType, factor: float) -> None:
    judgements = judge_each(synthetic.make_run(slow={COMPILED: factor}, errors={COMPILED: 1.4}), synthetic.make_run(), RULE)
    found = by_place(judgements)[COMPILED].verdict
    assert (found.kind, found.gating) == (VerdictKind.REGRESSION, True)
    assert gate_exit_code(judgements) is ExitCode.REGRESSION


def test_compiled_code_that_is_faster_and_no_longer_checked_keeps_its_say(synthetic: ModuleType) -> None:
    """It may be faster by being wrong, which is no matter of what the compiler chose to tune."""
    run = synthetic.make_run(slow={COMPILED: 1 / 1.2})
    unchecked = [msgspec.structs.replace(one, accuracy=None) if (one.case, one.kernel) == COMPILED else one for one in run.results]
    found = by_place(judge_each(msgspec.structs.replace(run, results=unchecked), synthetic.make_run(), RULE))[COMPILED].verdict
    assert (found.kind, found.gating) == (VerdictKind.UNDECIDED, True)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.WRONG, ExitCode.KERNEL_FAILED),
        (Status.CRASHED, ExitCode.KERNEL_FAILED),
        (Status.CHECKED, ExitCode.UNDECIDED),
    ],
)
def test_compiled_code_that_fails_or_is_no_longer_timed_keeps_its_say(synthetic: ModuleType, status: Status, code: ExitCode) -> None:
    judgements = judge_each(synthetic.make_run(status={COMPILED: (status, "why")}), synthetic.make_run(), RULE)
    assert by_place(judgements)[COMPILED].verdict.gating
    assert gate_exit_code(judgements) is code


def test_the_verdict_that_a_run_was_stored_with_decides_nothing_of_a_later_one(synthetic: ModuleType) -> None:
    silent = Verdict(kind=VerdictKind.REGRESSION, reason="5 % slower", gating=False)
    runs = [synthetic.change_results(synthetic.make_run(slow=slow), verdict=silent) for slow in ({("flux_1024", synthetic.FUSED): 1.2}, {})]
    assert gate_exit_code(judge_each(*runs, RULE)) is ExitCode.REGRESSION
