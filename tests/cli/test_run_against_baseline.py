"""`fusebench run` and `gate` where a run has been promoted: what regressed, and what was not asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome

from fusebench.naming import device_slug
from fusebench.runner.run.looks import PROCESSES
from fusebench.runner.workers.protocol import Measured, TimeTask
from fusebench.schema import ExitCode, Result, Run
from fusebench.store.run_folder import read_run, seal_of
from helpers import night_figures, run_bench
from helpers.run_bench import QUICK, FakeWorkers, add_kernel, measured, only_run

Fusebench = Callable[..., Outcome]

project, workers = run_bench.project, run_bench.workers


def promote_a_run(fusebench: Fusebench, project: Path) -> None:
    """Make the project's first run, and promote it."""
    assert fusebench(*QUICK).exit_code == ExitCode.PASS
    assert fusebench("baseline", "promote", str(only_run(project)), "--force").exit_code == 0


def test_a_slower_kernel_is_a_regression_against_the_promoted_run(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    promote_a_run(fusebench, project)
    assert fusebench(*QUICK).exit_code == ExitCode.PASS
    workers.timed = lambda task: measured(task, 2.8)
    slower = fusebench(*QUICK, "--json")
    assert slower.exit_code == ExitCode.REGRESSION
    verdicts = {(result["case"], result["kernel"]): result["verdict"] for result in json.loads(slower.stdout)["results"]}
    assert verdicts["even", "scale/plain@1"] == "regression"
    assert verdicts["even", "scale/split@1"] == "pass"
    assert fusebench(*QUICK, "--margin", "0.9").exit_code == ExitCode.PASS


def slow_at_first(fusebench: Fusebench, project: Path, workers: FakeWorkers, *arguments: str) -> tuple[Outcome, Run]:
    """A run against a baseline whose first process runs the kernel slower, and fresh ones do not."""
    promote_a_run(fusebench, project)
    workers.timed = lambda task: measured(task, 2.8)
    workers.timed_again = lambda task: measured(task, 2.0)
    outcome = fusebench(*QUICK, *arguments)
    return outcome, read_run(Path(outcome.stdout.rstrip().rpartition("run: ")[2]))


def test_a_run_is_judged_and_confirmed_against_the_run_that_is_named(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, tmp_path: Path
) -> None:
    promote_a_run(fusebench, project)
    workers.timed = lambda task: measured(task, 2.8)
    slower = Path(fusebench(*QUICK, "--no-confirm").stdout.rstrip().rpartition("run: ")[2])
    assert fusebench(*QUICK, "--baseline", str(slower)).exit_code == ExitCode.PASS
    assert workers.asked_again == []
    night_figures.write(night_figures.without_digests(read_run(slower)), tmp_path / "bare")
    assert not seal_of(tmp_path / "bare").altered
    workers.timed = lambda task: measured(task, 5.0)
    assert fusebench(*QUICK, "--baseline", str(tmp_path / "bare")).exit_code == ExitCode.REGRESSION
    assert len(workers.asked_again) == 2 * PROCESSES
    workers.tasks.clear()
    unknown = fusebench(*QUICK, "--baseline", "no-such-run")
    assert (unknown.exit_code, "no-such-run" in unknown.stderr, workers.tasks) == (ExitCode.USAGE, True, []), unknown.output


def plain_on_even(run: Run) -> Result:
    return next(result for result in run.results if (result.case, result.kernel) == ("even", "scale/plain@1"))


def test_what_only_the_first_process_finds_slower_passes_and_the_record_says_why(
    fusebench: Fusebench, project: Path, workers: FakeWorkers
) -> None:
    outcome, run = slow_at_first(fusebench, project, workers)
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    assert len(workers.asked_again) == 2 * PROCESSES
    assert (
        outcome.stderr.count(f"suspect after its first measurement, so remeasured in {PROCESSES} fresh processes: scale/plain@1 +40.0 %")
        == 2
    )
    found = plain_on_even(run)
    assert found.measurement is not None
    assert (found.measurement.processes, found.measurement.time_us.value) == (PROCESSES, pytest.approx(2.0035, rel=1e-4))
    assert found.verdict is not None
    assert f"measured in {PROCESSES} fresh processes, because it was a suspect after the first" in found.verdict.reason
    assert [summary.suspicion.partition(" [")[0] for summary in run.cases] == ["scale/plain@1 +40.0 %"] * 2


def test_what_every_process_finds_slower_is_a_regression_and_the_gate_agrees(
    fusebench: Fusebench, project: Path, workers: FakeWorkers
) -> None:
    promote_a_run(fusebench, project)
    workers.timed = lambda task: measured(task, 2.8)
    run, folder, gate = gated(fusebench)
    assert (run.exit_code, gate.exit_code) == (ExitCode.REGRESSION, ExitCode.REGRESSION)
    found = plain_on_even(read_run(folder))
    assert found.verdict is not None
    assert f"measured in {PROCESSES} fresh processes" in found.verdict.reason
    assert f"measured in {PROCESSES} fresh processes" in " ".join(gate.stdout.split())


@pytest.mark.parametrize("arguments", [("--processes", "2"), ("--processes", "9"), ("--precision", "0.02")])
def test_a_run_of_several_processes_is_confirmed_too(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, arguments: tuple[str, str]
) -> None:
    """Its fresh processes are none of those that measured first, and as many as these where there were more than eight."""
    promote_a_run(fusebench, project)
    fresh = max(PROCESSES, int(float(arguments[1])))
    first = 2 * ((8 if arguments[0] == "--precision" else int(arguments[1])) - 1)

    def slow_then_usual(task: TimeTask) -> Measured:
        return measured(task, 2.8 if len(workers.asked_again) <= first else 2.0)

    workers.timed = lambda task: measured(task, 2.8)
    workers.timed_again = slow_then_usual
    outcome = fusebench(*QUICK, *arguments)
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    assert len(workers.asked_again) == first + 2 * fresh
    found = plain_on_even(read_run(Path(outcome.stdout.rstrip().rpartition("run: ")[2]))).measurement
    assert found is not None
    assert (found.processes, found.looks) == (fresh, 2)
    workers.timed_again = lambda task: measured(task, 2.8)
    assert fusebench(*QUICK, *arguments).exit_code == ExitCode.REGRESSION


def test_without_confirmation_the_verdict_is_that_of_one_process(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    outcome, run = slow_at_first(fusebench, project, workers, "--no-confirm")
    assert (outcome.exit_code, workers.asked_again) == (ExitCode.REGRESSION, [])
    assert [summary.suspicion for summary in run.cases] == ["", ""]


def test_a_complete_run_goes_on_with_the_suspects_that_are_left(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123456789abcdef")
    outcome, _ = slow_at_first(fusebench, project, workers, "--no-confirm")
    assert outcome.exit_code == ExitCode.REGRESSION
    stopped = Path(outcome.stdout.rstrip().rpartition("run: ")[2])
    refused = fusebench("run", "--resume", str(stopped), "--no-confirm")
    assert refused.exit_code == ExitCode.USAGE
    assert "is complete, and no suspect of it is left to remeasure" in refused.stderr
    workers.timed = lambda task: pytest.fail("its cases are taken over")
    resumed = fusebench("run", "--resume", str(stopped))
    assert resumed.exit_code == ExitCode.PASS, resumed.output
    assert len(workers.asked_again) > 0
    again = fusebench("run", "--resume", resumed.stdout.rstrip().rpartition("run: ")[2])
    assert again.exit_code == ExitCode.USAGE, "nothing is left now"


def test_the_help_says_how_many_processes(fusebench: Fusebench) -> None:
    text = " ".join(fusebench("run", "--help").stdout.split())
    assert f"suspects in up to {PROCESSES} fresh processes" in text


@pytest.mark.parametrize("what", ["baselines", "calibration"])
def test_a_stored_record_that_cannot_be_read_ends_a_run_before_anything_is_measured(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, what: str
) -> None:
    assert fusebench(*QUICK).exit_code == ExitCode.PASS
    device = device_slug(read_run(only_run(project)).environment.device_name)
    record = project / "results" / what / (f"{device}/run.json" if what == "baselines" else f"{device}.json")
    record.parent.mkdir(parents=True)
    record.write_text('{"version": 1, "schema_version": 1, "no')
    workers.tasks.clear()
    refused = fusebench(*QUICK)
    assert (refused.exit_code, str(record) in refused.stderr, workers.tasks) == (ExitCode.USAGE, True, []), refused.output
    assert record.read_text() == '{"version": 1, "schema_version": 1, "no'


@pytest.mark.usefixtures("project")
def test_a_folder_that_takes_no_run_is_named_before_anything_is_measured(fusebench: Fusebench, workers: FakeWorkers) -> None:
    refused = fusebench(*QUICK, "--out", "pyproject.toml")
    assert (refused.exit_code, refused.stderr.count("\n"), workers.tasks) == (ExitCode.USAGE, 1, []), refused.output
    assert "pyproject.toml: nothing can be written there" in refused.stderr
    assert "--out DIR" in refused.stderr


def gated(fusebench: Fusebench, *arguments: str) -> tuple[Outcome, Path, Outcome]:
    """A run, its folder and its gate; `latest` would not do, since two runs of one second are equally new."""
    run = fusebench(*QUICK, *arguments)
    folder = run.stdout.rstrip().rpartition("run: ")[2]
    return run, Path(folder), fusebench("gate", folder)


@pytest.fixture
def against_the_whole_suite(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> FakeWorkers:
    """A baseline of every case and kernel, and workers for the runs that are held against it."""
    add_kernel(project, "other")
    promote_a_run(fusebench, project)
    return workers


@pytest.mark.usefixtures("against_the_whole_suite")
@pytest.mark.parametrize("glob", ["even", "e*", "scale:even"])
def test_a_run_of_one_case_and_kernel_passes_the_gate_of_the_whole_suite(fusebench: Fusebench, glob: str) -> None:
    run, folder, gate = gated(fusebench, "--case", glob, "--kernel", "plain@1")
    assert (run.exit_code, "has shrunk" in run.stdout) == (ExitCode.PASS, False), run.output
    assert gate.exit_code == ExitCode.PASS, gate.output
    assert f"only the cases '{glob}' were asked for, and are judged\n" in gate.stdout
    assert "only the kernels 'plain@1' and their baselines were asked for, and are judged\n" in gate.stdout
    assert "not selected by this run, and not judged: scale:odd\n" in gate.stdout
    document = json.loads(fusebench("gate", str(folder), "--json").stdout)
    assert (document["not_selected"], document["not_selected_cases"], document["shrunken"]) == ([], ["scale:odd"], [])
    assert {(row["case"], row["kernel"]) for row in document["judgements"]} == {("even", "scale/plain@1"), ("even", "scale/split@1")}


def test_a_regression_of_the_one_case_that_was_asked_for_is_found(fusebench: Fusebench, against_the_whole_suite: FakeWorkers) -> None:
    against_the_whole_suite.timed = lambda task: measured(task, 2.8)
    run, _, gate = gated(fusebench, "--case", "even")
    assert (run.exit_code, gate.exit_code) == (ExitCode.REGRESSION, ExitCode.REGRESSION)


@pytest.mark.usefixtures("against_the_whole_suite")
@pytest.mark.parametrize("arguments", [[], ["--case", "*"], ["--case", "scale:*"], ["--op", "scale"]])
def test_a_case_that_was_asked_for_and_is_gone_is_a_shrunken_suite(fusebench: Fusebench, project: Path, arguments: list[str]) -> None:
    suite = project / "suites" / "scale.toml"
    suite.write_text(suite.read_text().replace('"odd"', '"strange"'))
    run, folder, gate = gated(fusebench, *arguments)
    assert "suite scale has shrunk" in run.stdout
    assert (gate.exit_code, "1 case is gone: odd" in gate.stdout) == (ExitCode.UNDECIDED, True), gate.output
    record = read_run(folder)
    asked_for = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert (record.selected_cases, record.selected_op) == (asked_for.get("--case"), asked_for.get("--op"))
    assert ("only cases of the op 'scale' were asked for, and are judged\n" in gate.stdout) == ("--op" in arguments)
