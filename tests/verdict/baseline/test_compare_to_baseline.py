"""Identical machine code in a gate: it is never accused, it shows the noise, and what is no larger than that noise is no finding."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.schema import ExitCode, Result, Run, VerdictKind
from fusebench.verdict.baseline.compare_to_baseline import RunJudgement, judge_run
from fusebench.verdict.baseline.judgement import Judgement
from fusebench.verdict.baseline.promotion import absorbed_changes
from fusebench.verdict.exit_status import gate_exit_code
from fusebench.verdict.fdr_control import fdr_controlled
from fusebench.verdict.margins.rule import MarginRule
from fusebench.verdict.noise_floor import noise_line

RULE = MarginRule()
CASE = "flux_1024"


def gate(synthetic: ModuleType, changed: list[str], environment: Mapping[str, str] | None = None, **new: Any) -> RunJudgement:
    """A run with these kernels' code changed, against the stored one."""
    run = synthetic.with_code(synthetic.make_run(run_id="new", environment=environment, **new), changed)
    return judge_run(run, synthetic.with_code(synthetic.make_run()), RULE)


def at(judged: RunJudgement, kernel: str, case: str = CASE) -> Judgement:
    return next(one for one in judged.judgements if (one.case, one.kernel) == (case, kernel))


def test_a_planted_regression_of_changed_code_is_found(synthetic: ModuleType) -> None:
    judged = gate(synthetic, [synthetic.FUSED], slow={(CASE, synthetic.FUSED): 1.06})
    found = at(judged, synthetic.FUSED)
    assert (found.verdict.kind, found.same_code) == (VerdictKind.REGRESSION, False)
    assert gate_exit_code(judged.judgements) is ExitCode.REGRESSION


@pytest.mark.parametrize(("environment", "suspect"), [({}, "name no difference"), ({"driver": "590.1"}, "driver: 580.159 -> 590.1")])
def test_identical_code_that_reads_slower_is_undecided_and_names_suspects(
    synthetic: ModuleType, environment: dict[str, str], suspect: str
) -> None:
    judged = gate(synthetic, [], environment, slow={(CASE, synthetic.FUSED): 1.1})
    found = at(judged, synthetic.FUSED)
    assert (found.verdict.kind, found.same_code, found.kind_by_times) == (VerdictKind.UNDECIDED, True, VerdictKind.REGRESSION)
    assert found.verdict.reason.startswith("identical machine code, so what changed is not the kernel (relative to")
    assert suspect in found.verdict.reason
    assert gate_exit_code(judged.judgements) is ExitCode.UNDECIDED


def test_another_gpu_of_the_model_is_a_suspect(synthetic: ModuleType) -> None:
    judged = gate(synthetic, [], {"device_uuid": "GPU-1"}, slow={(CASE, synthetic.FUSED): 1.1})
    assert "board: GPU-00000000 -> GPU-1" in at(judged, synthetic.FUSED).verdict.reason


def widened(run: Run, kernel: str, factor: float) -> Run:
    """The run with an interval of `kernel` on CASE from a `factor`th to `factor` times its time."""

    def wide(one: Result) -> Result:
        timing = one.measurement
        assert timing is not None
        value = timing.time_us.value
        interval = msgspec.structs.replace(timing.time_us, low=value / factor, high=value * factor)
        return msgspec.structs.replace(one, measurement=msgspec.structs.replace(timing, time_us=interval))

    return msgspec.structs.replace(run, results=[wide(one) if (one.case, one.kernel) == (CASE, kernel) else one for one in run.results])


def test_what_a_disturbed_time_of_the_baseline_leaves_undecided_asks_for_another_baseline(synthetic: ModuleType) -> None:
    """No number of the run's replicates could decide it."""
    baseline, run = widened(synthetic.make_run(), synthetic.FUSED, 1.4), synthetic.make_run(run_id="new")
    reason = at(judge_run(run, baseline, RULE), synthetic.FUSED).verdict.reason
    assert "the baseline's own time has a standard error of 15 %: join quiet runs to it" in reason
    turned = at(judge_run(widened(run, synthetic.FUSED, 1.4), synthetic.make_run(), RULE), synthetic.FUSED).verdict.reason
    assert "measure with more replicates" in turned


@pytest.mark.parametrize(("factor", "kind"), [(1.6, VerdictKind.UNDECIDED), (1 / 1.6, VerdictKind.UNDECIDED), (1.05, VerdictKind.PASS)])
def test_a_disturbed_time_of_identical_code_that_is_far_off_does_not_pass(synthetic: ModuleType, factor: float, kind: VerdictKind) -> None:
    """Its placements differ by multiples, so that the interval holds any change; a late host does this to a chain of launches."""
    run = synthetic.with_code(synthetic.make_run(run_id="new", slow={(CASE, synthetic.FUSED): factor}))
    judged = judge_run(widened(run, synthetic.FUSED, 3), synthetic.with_code(synthetic.make_run()), RULE)
    found = at(judged, synthetic.FUSED)
    assert (found.verdict.kind, found.same_code) == (kind, True)
    assert ("the time was disturbed: its placements differ, standard error" in found.verdict.reason) == (kind is VerdictKind.UNDECIDED)


@pytest.mark.parametrize("factor", [1.0, 1.02, 1 / 1.02])
def test_identical_code_inside_the_margin_or_across_it_passes(synthetic: ModuleType, factor: float) -> None:
    judged = gate(synthetic, [], slow={(CASE, synthetic.FUSED): factor})
    found = at(judged, synthetic.FUSED).verdict
    assert found.kind is VerdictKind.PASS
    assert found.reason.startswith("identical machine code; ")
    assert ("is noise" in found.reason) == (factor > 1.0)
    assert ("not slower" in found.reason) == (factor < 1.0)
    assert (found.p_value, found.adjusted_p) == (None, None), "its answer was known beforehand"
    assert gate_exit_code(judged.judgements) is ExitCode.PASS


def test_identical_code_that_reads_faster_is_undecided_and_an_unexplained_improvement(synthetic: ModuleType) -> None:
    judged = gate(synthetic, [], slow={(CASE, synthetic.FUSED): 0.95})
    assert at(judged, synthetic.FUSED).verdict.kind is VerdictKind.UNDECIDED
    ((one),) = judged.unexplained
    assert (one.case, one.kernel) == (CASE, synthetic.FUSED)
    assert "machine code is the baseline's" in one.reason


@pytest.mark.parametrize(
    ("twin", "kind"), [(1.07, VerdictKind.UNDECIDED), (1 / 1.07, VerdictKind.UNDECIDED), (1.02, VerdictKind.REGRESSION)]
)
def test_a_finding_no_larger_than_what_identical_code_showed_is_undecided(synthetic: ModuleType, twin: float, kind: VerdictKind) -> None:
    """The twin is a kernel of the same class of durations, in another case, slower or faster."""
    other = f"{synthetic.OP}/fused_triton@1"
    judged = gate(synthetic, [synthetic.FUSED], slow={(CASE, synthetic.FUSED): 1.06, ("zimage_1024", other): twin})
    found = at(judged, synthetic.FUSED).verdict
    assert found.kind is kind
    assert ("but identical code of such calls differed by up to 7.00 % in this comparison" in found.reason) == (twin != 1.02)


def test_a_kernel_that_was_split_into_launches_is_held_to_what_one_launch_showed(synthetic: ModuleType) -> None:
    """Its margin is that of one launch; the noise of chains would hide what the split cost."""
    chain = f"{synthetic.OP}/fused_triton@1"
    run = synthetic.with_code(synthetic.make_run(slow={(CASE, synthetic.FUSED): 1.06, ("zimage_1024", chain): 1.09}), [synthetic.FUSED])
    old = synthetic.with_code(synthetic.make_run())

    def with_launches(run: Run, kernels: list[str]) -> Run:
        def doubled(one: Result) -> Result:
            assert one.measurement is not None
            return msgspec.structs.replace(one, measurement=msgspec.structs.replace(one.measurement, kernels=2))

        return msgspec.structs.replace(run, results=[doubled(one) if one.kernel in kernels else one for one in run.results])

    judged = judge_run(with_launches(run, [synthetic.FUSED, chain]), with_launches(old, [chain]), RULE)
    assert at(judged, synthetic.FUSED).verdict.kind is VerdictKind.REGRESSION
    judged = judge_run(with_launches(run, [synthetic.FUSED, chain]), with_launches(old, [synthetic.FUSED, chain]), RULE)
    assert at(judged, synthetic.FUSED).verdict.kind is VerdictKind.UNDECIDED


def test_identical_code_of_other_durations_says_nothing(synthetic: ModuleType) -> None:
    """split_torch takes 234 us and more, the fused kernel 28."""
    noisy = {("zimage_1024", f"{synthetic.OP}/split_torch@1"): 1.2}
    judged = gate(synthetic, [synthetic.FUSED], slow={(CASE, synthetic.FUSED): 1.06, **noisy})
    assert at(judged, synthetic.FUSED).verdict.kind is VerdictKind.REGRESSION
    assert at(judged, f"{synthetic.OP}/split_torch@1", "zimage_1024").verdict.kind is VerdictKind.UNDECIDED


def test_what_slows_all_unchanged_kernels_down_alike_neither_passes_nor_hides_what_changed(synthetic: ModuleType) -> None:
    slow = {(case, kernel): 1.1 for case in synthetic.CASES for kernel in synthetic.KERNELS}
    judged = gate(synthetic, [synthetic.FUSED], slow={**slow, (CASE, synthetic.FUSED): 1.1 * 1.08})
    assert at(judged, synthetic.FUSED).verdict.kind is VerdictKind.REGRESSION
    unchanged = at(judged, f"{synthetic.OP}/fused_triton@1").verdict
    assert (unchanged.kind, unchanged.reason.startswith("identical machine code, so what changed is not the kernel")) == (
        VerdictKind.UNDECIDED,
        True,
    )
    noise = max(spread.largest for spread in judged.aa_spreads if not spread.several_launches)
    assert noise == pytest.approx(0.1, abs=0.01), "a changed kernel must be slower than the unchanged ones became"


@pytest.mark.parametrize("slow", [1.0, 1.1, 1 / 1.1])
def test_a_loss_of_accuracy_is_undecided_for_identical_code_and_a_regression_of_any_other(synthetic: ModuleType, slow: float) -> None:
    """The draws of two runs differ, and code of equal instructions is handed tensors that Python made: neither is in the digest."""
    planted: dict[str, Any] = {
        "slow": {(CASE, synthetic.FUSED): slow, ("zimage_1024", f"{synthetic.OP}/fused_triton@1"): 1.3},
        "errors": {(CASE, synthetic.FUSED): 1.4},
    }
    same = gate(synthetic, [], **planted)
    found = at(same, synthetic.FUSED).verdict
    assert (found.kind, found.gating) == (VerdictKind.UNDECIDED, True)
    assert found.reason.startswith(
        "identical machine code, so the drawn inputs differ, or the values that its Python code passes (accuracy: rms"
    )
    assert "is 1.40 x the baseline's; 1." in found.reason
    assert "repeat `fusebench check`" in found.reason
    assert gate_exit_code(same.judgements) is same.exit_code is ExitCode.UNDECIDED
    accepted = absorbed_changes(
        synthetic.with_code(synthetic.make_run(run_id="new", **planted)), synthetic.with_code(synthetic.make_run()), RULE
    )
    assert any(synthetic.FUSED in one and "1.40 x the baseline's" in one for one in accepted), "no baseline absorbs it without a reason"
    unknown = judge_run(synthetic.make_run(run_id="new", **planted), synthetic.make_run(), RULE)
    for judged in (gate(synthetic, [synthetic.FUSED], **planted), unknown):
        found = at(judged, synthetic.FUSED).verdict
        assert (found.kind, found.reason.startswith("accuracy: rms error")) == (VerdictKind.REGRESSION, True)
        assert gate_exit_code(judged.judgements) is ExitCode.REGRESSION


@pytest.mark.parametrize("side", ["run", "baseline", "both"])
def test_code_that_one_record_lacks_is_not_taken_for_equal(synthetic: ModuleType, side: str) -> None:
    run = synthetic.make_run(run_id="new", slow={(CASE, synthetic.FUSED): 1.1})
    baseline = synthetic.make_run()
    if side == "baseline":
        run = synthetic.with_code(run)
    elif side == "run":
        baseline = synthetic.with_code(baseline)
    judged = judge_run(run, baseline, RULE)
    found = at(judged, synthetic.FUSED)
    assert (found.verdict.kind, found.same_code, judged.aa_spreads) == (VerdictKind.REGRESSION, None, ())
    assert "not in both records" in noise_line(judged.aa_spreads, judged.judgements)


def test_what_identical_code_showed_is_summed_up_by_duration(synthetic: ModuleType) -> None:
    judged = gate(synthetic, [synthetic.FUSED], slow={(CASE, f"{synthetic.OP}/fused_triton@1"): 1.06})
    short, long = judged.aa_spreads
    assert (short.low_us, short.high_us, short.comparisons, short.beyond) == (10.0, 50.0, 10, 1)
    assert (long.comparisons, long.beyond, long.largest) == (10, 0, pytest.approx(0.0, abs=1e-9))
    assert noise_line(judged.aa_spreads, judged.judgements) == (
        "identical machine code differed by up to 6.00 % (10 to 50 us: 10 comparisons, 1 beyond the margin), "
        "0.00 % (50 us and more, several launches: 10 comparisons)"
    )
    changed = gate(synthetic, list(synthetic.KERNELS))
    assert "no kernel's machine code is the baseline's" in noise_line(changed.aa_spreads, changed.judgements)


def test_identical_code_is_not_counted_among_what_is_tested(synthetic: ModuleType) -> None:
    """A borderline finding among thirty comparisons is none; as the only changed kernel of one case it stands."""
    place = (CASE, synthetic.FUSED)
    wide: dict[str, Any] = {"half": 0.012}
    run, baseline = synthetic.make_run(slow={place: 1.053}, **wide), synthetic.make_run(**wide)
    known = synthetic.with_code(run)
    results = [msgspec.structs.replace(one, code="new") if (one.case, one.kernel) == place else one for one in known.results]
    coded = judge_run(msgspec.structs.replace(known, results=results), synthetic.with_code(baseline), RULE)
    assert at(coded, synthetic.FUSED).verdict.kind is VerdictKind.REGRESSION
    assert at(judge_run(run, baseline, RULE), synthetic.FUSED).verdict.kind is VerdictKind.UNDECIDED


def test_without_code_the_judgements_are_those_of_the_rate(synthetic: ModuleType) -> None:
    from fusebench.verdict.baseline.judgement import judge_each

    run: Run = synthetic.make_run(slow={(CASE, synthetic.FUSED): 1.1})
    baseline: Run = synthetic.make_run()
    assert list(judge_run(run, baseline, RULE).judgements) == fdr_controlled(judge_each(run, baseline, RULE), run, baseline, RULE)
