"""Verdicts of a run and the exit code that follows, with and without a stored baseline."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.schema import ExitCode, Role, Run, Status, VerdictKind
from fusebench.store.baselines import promote
from fusebench.store.calibration_note import with_calibration
from fusebench.store.run_folder import write_run
from fusebench.verdict.baseline.compare_to_baseline import judge_run, with_verdicts
from fusebench.verdict.margins.rule import MarginRule
from fusebench.verdict.record_validation import load_valid_baseline

WHERE = ("flux_1024", "qknorm_rope/fused_triton@2")


@pytest.fixture
def results(tmp_path: Path, synthetic: ModuleType) -> Path:
    """A results folder with a baseline of the synthetic device."""
    folder = tmp_path / "results"
    run = synthetic.make_run(run_id="base")
    promote(write_run(folder / "runs", run, synthetic.make_samples(run)), folder)
    return folder


def judged(run: Run, results: Path, rule: MarginRule) -> Run:
    """`run` with its verdicts by what is stored in `results`, as `fusebench run` records it."""
    run = with_calibration(run, results)
    return with_verdicts(run, judge_run(run, load_valid_baseline(results, run.environment.device_name), rule))


def verdict(run: Run) -> Any:
    return next(result for result in run.results if (result.case, result.kernel) == WHERE).verdict


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({}, VerdictKind.PASS, ExitCode.PASS),
        ({"slow": {WHERE: 1.2}}, VerdictKind.REGRESSION, ExitCode.REGRESSION),
        ({"slow": {WHERE: 0.8}}, VerdictKind.IMPROVEMENT, ExitCode.PASS),
        ({"slow": {WHERE: 1.03}}, VerdictKind.UNDECIDED, ExitCode.UNDECIDED),
        ({"errors": {WHERE: 1.4}}, VerdictKind.REGRESSION, ExitCode.REGRESSION),
        ({"status": {WHERE: (Status.WRONG, "off by one")}}, VerdictKind.ERROR, ExitCode.KERNEL_FAILED),
        ({"status": {WHERE: (Status.NOT_MEASURED, "no time")}}, VerdictKind.UNDECIDED, ExitCode.UNDECIDED),
        ({"timer": "cuda_events"}, VerdictKind.INCOMPARABLE, ExitCode.PASS),
    ],
)
def test_against_a_stored_baseline(results: Path, synthetic: ModuleType, change: dict[str, Any], kind: VerdictKind, code: ExitCode) -> None:
    run = judged(synthetic.make_run(run_id="new", **change), results, MarginRule())
    assert verdict(run).kind is kind
    assert verdict(run).reason
    assert run.exit_code == code


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (Status.MEASURED, VerdictKind.INCOMPARABLE, ExitCode.PASS),
        (Status.WRONG, VerdictKind.ERROR, ExitCode.KERNEL_FAILED),
        (Status.CRASHED, VerdictKind.ERROR, ExitCode.KERNEL_FAILED),
        (Status.HUNG, VerdictKind.ERROR, ExitCode.KERNEL_FAILED),
        (Status.OUT_OF_MEMORY, VerdictKind.ERROR, ExitCode.KERNEL_FAILED),
        (Status.COMPILE_ERROR, VerdictKind.ERROR, ExitCode.KERNEL_FAILED),
        (Status.NOT_MEASURED, VerdictKind.UNDECIDED, ExitCode.UNDECIDED),
        (Status.UNSUPPORTED, None, ExitCode.PASS),
        (Status.NOT_RUNNABLE, None, ExitCode.PASS),
        (Status.CHECKED, None, ExitCode.PASS),
    ],
)
def test_without_a_baseline_nothing_is_called_a_pass(
    tmp_path: Path, synthetic: ModuleType, status: Status, kind: VerdictKind | None, code: ExitCode
) -> None:
    run = judged(synthetic.make_run(status={WHERE: (status, "because")}), tmp_path, MarginRule())
    found = verdict(run)
    assert (found.kind if found is not None else None) is kind
    assert run.exit_code == code
    assert VerdictKind.PASS not in {result.verdict.kind for result in run.results if result.verdict is not None}


def test_without_a_baseline_a_verdict_says_how_to_store_one(tmp_path: Path, synthetic: ModuleType) -> None:
    found = verdict(judged(synthetic.make_run(), tmp_path, MarginRule()))
    assert "no baseline is stored for NVIDIA H200" in found.reason
    assert "fusebench baseline promote" in found.reason


def test_the_margin_decides(results: Path, synthetic: ModuleType) -> None:
    run = synthetic.make_run(run_id="new", slow={WHERE: 1.06})
    assert judged(run, results, MarginRule()).exit_code == ExitCode.REGRESSION
    assert judged(run, results, MarginRule(0.1)).exit_code == ExitCode.PASS


def test_a_kernel_that_is_only_checked_is_judged_by_its_accuracy(tmp_path: Path, synthetic: ModuleType) -> None:
    checked = {"status": {WHERE: (Status.CHECKED, "needs a GPU to be timed")}}
    base = synthetic.make_run(run_id="base", **checked)
    promote(write_run(tmp_path / "runs", base, synthetic.make_samples(base)), tmp_path)
    assert verdict(judged(synthetic.make_run(run_id="same", **checked), tmp_path, MarginRule())).kind is VerdictKind.PASS
    worse = judged(synthetic.make_run(run_id="worse", errors={WHERE: 1.4}, **checked), tmp_path, MarginRule())
    assert verdict(worse).kind is VerdictKind.REGRESSION
    assert worse.exit_code == ExitCode.REGRESSION


def test_what_the_run_found_already_stays_in_the_exit_code(results: Path, synthetic: ModuleType) -> None:
    failed = synthetic.make_run(run_id="new", slow={WHERE: 1.2}, exit_code=5)
    assert judged(failed, results, MarginRule()).exit_code == ExitCode.KERNEL_FAILED, "a failed kernel outranks a regression"


def test_a_shrunken_suite_is_a_warning_unless_what_is_left_was_all_that_was_asked_for(results: Path, synthetic: ModuleType) -> None:
    less = synthetic.make_run(run_id="new", cases=synthetic.CASES[:4])
    assert any("suite qknorm_rope has shrunk" in warning for warning in judged(less, results, MarginRule()).warnings)
    (warning,) = judged(msgspec.structs.replace(less, selected_cases="*_*"), results, MarginRule()).warnings
    assert "suite qknorm_rope has shrunk" in warning, "a case that was asked for is missing"
    assert judged(msgspec.structs.replace(less, selected_cases="*[!m]"), results, MarginRule()).warnings == []
    few = synthetic.make_run(run_id="new", kernels=[WHERE[1], synthetic.BASELINE], selected_kernels=WHERE[1])
    assert judged(few, results, MarginRule()).warnings == []
    other = synthetic.make_run(run_id="new", suite="other")
    assert judged(other, results, MarginRule()).warnings == [], "a suite that was not asked for has not shrunk"


def test_an_improvement_without_a_cause_is_a_warning(results: Path, synthetic: ModuleType) -> None:
    faster = synthetic.make_run(run_id="new", slow={WHERE: 0.9})
    (warning,) = judged(faster, results, MarginRule()).warnings
    assert warning.startswith("unexplained improvement of qknorm_rope/fused_triton@2 on qknorm_rope:flux_1024: -10.00 %")
    other_triton = synthetic.make_run(run_id="new", slow={WHERE: 0.9}, environment={"triton": "3.9.0"})
    assert judged(other_triton, results, MarginRule()).warnings == []


def test_a_regression_of_a_run_is_held_against_all_its_comparisons(tmp_path: Path, synthetic: ModuleType) -> None:
    wide = synthetic.make_run(run_id="base", half=0.012)
    promote(write_run(tmp_path / "runs", wide, synthetic.make_samples(wide)), tmp_path)
    borderline = judged(synthetic.make_run(run_id="new", half=0.012, slow={WHERE: 1.053}), tmp_path, MarginRule())
    assert (verdict(borderline).kind, borderline.exit_code) == (VerdictKind.UNDECIDED, ExitCode.UNDECIDED)
    assert verdict(borderline).p_value < 0.05 < verdict(borderline).adjusted_p
    assert verdict(borderline).margin == MarginRule().margin


def test_a_baseline_that_no_measurement_gives_is_refused(results: Path, synthetic: ModuleType) -> None:
    record = synthetic.as_version_2(results / "baselines" / "nvidia_h200")
    record.write_text(record.read_text().replace('"replicates": 12', '"replicates": 1'))
    with pytest.raises(RunRecordError, match=r"baseline base cannot be judged: .*too few samples"):
        judged(synthetic.make_run(run_id="new"), results, MarginRule())


def test_a_run_whose_identical_code_reads_slower_is_undecided_and_warned_of(tmp_path: Path, synthetic: ModuleType) -> None:
    base = synthetic.with_code(synthetic.make_run(run_id="base"))
    promote(write_run(tmp_path / "runs", base, synthetic.make_samples(base)), tmp_path)
    slower = synthetic.make_run(run_id="new", slow={WHERE: 1.1})
    run = judged(synthetic.with_code(slower), tmp_path, MarginRule())
    assert (verdict(run).kind, run.exit_code) == (VerdictKind.UNDECIDED, ExitCode.UNDECIDED)
    (warning,) = run.warnings
    assert warning.startswith("identical machine code differed by up to 10.00 %")
    changed = judged(synthetic.with_code(slower, [WHERE[1]]), tmp_path, MarginRule())
    assert (verdict(changed).kind, changed.warnings) == (VerdictKind.REGRESSION, [])


COMPILED = ("flux_1024", "qknorm_rope/compiled@1")


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"slow": {COMPILED: 1.2}}, VerdictKind.REGRESSION, ExitCode.PASS),
        ({"slow": {COMPILED: 1.04}}, VerdictKind.UNDECIDED, ExitCode.PASS),
        ({"slow": {COMPILED: 0.8}}, VerdictKind.IMPROVEMENT, ExitCode.PASS),
        ({"slow": {COMPILED: 1.2, WHERE: 1.2}}, VerdictKind.REGRESSION, ExitCode.REGRESSION),
    ],
)
def test_the_speed_of_compiled_code_is_recorded_and_advisory(
    results: Path, synthetic: ModuleType, change: dict[str, Any], kind: VerdictKind, code: ExitCode
) -> None:
    run = judged(synthetic.make_run(run_id="new", **change), results, MarginRule())
    found = next(result for result in run.results if (result.case, result.kernel) == COMPILED)
    assert (found.verdict.kind, found.verdict.gating, run.exit_code) == (kind, False, code)
    assert found.verdict.reason.endswith("; advisory: torch.compile chooses its code anew in every process")
    assert run.warnings == [], "what is tuned anew in every process needs no explanation"


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"errors": {COMPILED: 1.4}}, VerdictKind.REGRESSION, ExitCode.REGRESSION),
        ({"status": {COMPILED: (Status.WRONG, "off by one")}}, VerdictKind.ERROR, ExitCode.KERNEL_FAILED),
        ({"status": {COMPILED: (Status.NOT_MEASURED, "no time")}}, VerdictKind.UNDECIDED, ExitCode.UNDECIDED),
    ],
)
def test_what_is_no_matter_of_its_speed_keeps_its_say(
    results: Path, synthetic: ModuleType, change: dict[str, Any], kind: VerdictKind, code: ExitCode
) -> None:
    run = judged(synthetic.make_run(run_id="new", **change), results, MarginRule())
    found = next(result for result in run.results if (result.case, result.kernel) == COMPILED)
    assert (found.verdict.kind, found.verdict.gating, run.exit_code) == (kind, True, code)
    assert "no say" not in found.verdict.reason


def test_a_peer_that_fails_says_that_it_is_advisory(tmp_path: Path, synthetic: ModuleType) -> None:
    run = synthetic.make_run(status={WHERE: (Status.CRASHED, "boom")})
    theirs = msgspec.structs.replace(
        run, results=[msgspec.structs.replace(one, role=Role.PEER) if (one.case, one.kernel) == WHERE else one for one in run.results]
    )
    found = judged(theirs, tmp_path, MarginRule())
    assert (found.exit_code, verdict(found).kind, verdict(found).gating) == (ExitCode.PASS, VerdictKind.ERROR, False)
    assert verdict(found).reason == "boom; advisory: only its own library can mend a peer"
