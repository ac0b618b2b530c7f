"""`fusebench ab`: two commits of a repository, from the command line to a folder, a table, one JSON document and an exit code."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome

from fusebench.device import resolve_device
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import CheckTask, MeasureTask
from fusebench.schema import ExitCode, VerdictKind
from fusebench.store.calibration_note import calibration_file
from fusebench.store.comparison_folder import read_comparison
from fusebench.store.comparison_record import Comparison
from fusebench.store.run_folder import read_samples
from helpers.kills import interrupted_lock

Fusebench = Callable[..., Outcome]
pytestmark = pytest.mark.usefixtures("forked_workers")
QUICK = ["ab", "--suite", "scale", "--case", "even", "--device", "cpu", "--cache", "warm"]
KERNEL = """from fusebench import kernel


@kernel("scale", "{name}", version=1, role="fused", language="torch")
def {name}(x, *, factor=2.0):
    {body}
    x.mul_(factor)
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def write(project: Path, name: str, body: str = "pass") -> None:
    (project / "kernels" / "scale" / f"{name}.py").write_text(KERNEL.format(name=name, body=body))


def commit(project: Path, message: str) -> None:
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", message)


@pytest.fixture
def project(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits: a first with `scale/plain@1`, and a second that changes nothing of the kernels."""
    monkeypatch.setenv("FUSEBENCH_LOCK_DIR", str(toy_project.parent / "locks"))
    (toy_project / ".gitignore").write_text("results/\n__pycache__/\n")
    write(toy_project, "plain")
    git(toy_project, "init", "-q", "-b", "main")
    commit(toy_project, "one")
    (toy_project / "README").write_text("two\n")
    commit(toy_project, "two")
    return toy_project


def kept(project: Path) -> Comparison:
    (folder,) = (project / "results" / "runs").iterdir()
    assert folder.name.endswith("_ab")
    assert {file.name for file in folder.iterdir()} == {"ab.json", "samples.parquet", "report.md"}
    return read_comparison(folder)


@pytest.mark.usefixtures("spawned_workers")
def test_two_commits_with_the_same_kernels_pass_and_leave_a_record(fusebench: Fusebench, project: Path) -> None:
    outcome = fusebench(*QUICK, "--base", "HEAD~1", "--time-identical", "--json")
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    document = json.loads(outcome.stdout)
    assert {row["kernel"]: row["verdict"] for row in document["results"]} == {
        "scale/fast@2": "pass", "scale/plain@1": "pass", "scale/split@1": "pass",
    }  # fmt: skip
    assert document["base"]["commit"] == git(project, "rev-parse", "HEAD~1")
    assert document["head"] == {"commit": git(project, "rev-parse", "HEAD"), "dirty": False}
    record = kept(project)
    (folder,) = (project / "results" / "runs").iterdir()
    rendered = fusebench("report", folder.name)
    assert (rendered.exit_code, rendered.stdout) == (ExitCode.PASS, (folder / "report.md").read_text())
    refused = fusebench("report", str(folder), "--format", "junit")
    assert (refused.exit_code, "is of `fusebench ab`" in refused.stderr) == (ExitCode.USAGE, True)
    assert record.complete
    assert {pair.kernel for pair in record.aa_pairs} == {"scale/plain@1", "scale/split@1", "control (scale/plain@1)"}
    arms = set(read_samples(Path(document["run"]))["arm"])
    assert arms == {"copy", "stream", "control", "scale/plain@1", "base:scale/plain@1", "scale/split@1", "base:scale/split@1"}
    assert "identical source" in (Path(document["run"]) / "report.md").read_text()
    assert git(project, "status", "--porcelain") == ""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The tasks that workers are given; they do none of them."""
    tasks: list[object] = []

    def refuse(_: WorkerProcess, task: CheckTask | MeasureTask, *rest: object) -> None:
        tasks.append(task)
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkerProcess, "ask", refuse)
    return tasks


def test_identical_source_is_said_at_once_and_nothing_is_measured_or_kept(fusebench: Fusebench, project: Path, asked: list[object]) -> None:
    (project / "suites" / "more.toml").write_text((project / "suites" / "scale.toml").read_text().replace('"scale"', '"more"', 1))
    outcome = fusebench(*QUICK, "--base", "HEAD~1")
    assert (outcome.exit_code, asked) == (ExitCode.PASS, [])
    assert outcome.stdout.startswith("identical source: every file of the kernels folders is the same here and in ")
    assert "--time-identical measures all the same" in outcome.stdout
    document = json.loads(fusebench(*QUICK, "--base", "HEAD~1", "--json").stdout)
    assert (document["identical_source"], document["exit_code"], document["results"], document["run"]) == (True, 0, [], None)
    assert document["head"] == {"commit": git(project, "rev-parse", "HEAD"), "dirty": True}
    assert not (project / "results" / "runs").exists()


@pytest.mark.parametrize("file", ["scale/plain.py", "data/table.json", "shift.txt", "scale/.hidden"])
def test_any_uncommitted_file_of_the_kernels_folder_is_a_difference(
    fusebench: Fusebench, project: Path, asked: list[object], file: str
) -> None:
    changed = project / "kernels" / file
    changed.parent.mkdir(exist_ok=True)
    changed.write_text(changed.read_text() + "\n" if changed.exists() else "1")
    fusebench(*QUICK, "--base", "HEAD")
    assert asked


def test_a_kernel_file_that_does_not_load_fails_although_base_has_the_same(fusebench: Fusebench, project: Path) -> None:
    (project / "kernels" / "scale" / "broken.py").write_text("def f(:\n")
    commit(project, "broken")
    (project / "README").write_text("three\n")
    assert fusebench(*QUICK, "--base", "HEAD", "--kernel", "plain").exit_code == ExitCode.KERNEL_FAILED


def test_a_kernel_that_a_data_file_slows_down_does_not_pass(fusebench: Fusebench, project: Path) -> None:
    """With the same operators, in one commit with the same kernel files: the number of repetitions lies in a file of another folder."""
    data = project / "kernels" / "tables"
    data.mkdir()
    (data / "repetitions").write_text("0")
    count = "int((__import__('pathlib').Path(__file__).parents[1] / 'tables/repetitions').read_text())"
    write(project, "plain", f"for _ in range({count}): id(x)")
    commit(project, "a kernel that reads a file")
    (data / "repetitions").write_text("20000")
    outcome = fusebench(*QUICK, "--base", "HEAD", "--kernel", "plain", "--no-evidence", "--json")
    assert outcome.stdout, (outcome.exit_code, outcome.stderr)
    (row,) = json.loads(outcome.stdout)["results"]
    assert (row["verdict"], row["same_code"], outcome.exit_code) == ("undecided", True, ExitCode.UNDECIDED), row["reason"]
    assert row["changed_files"] == ["tables/repetitions"]
    assert row["reason"].startswith("identical machine code, +")
    assert "the difference lies in a file that the kernel reads (tables/repetitions) or in the measurement" in row["reason"]


def test_a_slower_kernel_in_a_dirty_tree_is_a_regression_with_exit_code_1(fusebench: Fusebench, project: Path) -> None:
    """With real processes; the change is large, since the CPU of a test machine sees no small one."""
    write(project, "plain", "for _ in range(30): x.add_(0.0)")
    write(project, "extra")
    (project / "kernels" / "scale" / "fast.py").unlink()
    outcome = fusebench(*QUICK, "--base", "HEAD", "--kernel", "[!s]*")
    assert outcome.exit_code == ExitCode.REGRESSION, outcome.output
    found = {one.kernel: one for one in kept(project).kernels}
    assert found["scale/plain@1"].verdict.kind is VerdictKind.REGRESSION
    assert found["scale/plain@1"].confirmation is not None
    assert len(found["scale/plain@1"].confirmation.estimates) == 5
    assert kept(project).environment.git_dirty
    for said in ("confirmed by 5 of 5 fresh processes", "changed: scale/plain.py", "scale/extra@1: new:", "scale/fast@2: removed:"):
        assert said in outcome.stdout


def test_a_less_accurate_kernel_is_a_regression_with_exit_code_1(fusebench: Fusebench, project: Path) -> None:
    """In bfloat16 tolerance of the split chain, and twice as far from the reference as it was."""
    (project / "kernels" / "scale" / "split.py").write_text(
        (project / "kernels" / "scale" / "split.py").read_text().replace("(x * factor,)", "((x.double() * factor * (1 + 3e-7)).float(),)")
    )
    write(project, "plain", "x.mul_(1 + 2e-7)")
    commit(project, "inaccurate split, and a kernel that is better than it")
    write(project, "plain", "x.mul_(1 + 3e-7)")
    outcome = fusebench(*QUICK, "--base", "HEAD", "--kernel", "plain", "--json")
    (row,) = json.loads(outcome.stdout)["results"]
    assert (row["verdict"], outcome.exit_code) == ("regression", ExitCode.REGRESSION), row["reason"]
    assert "accuracy: rms error of output 'x' is" in row["reason"]


def test_a_commented_kernel_is_identical_machine_code(fusebench: Fusebench, project: Path) -> None:
    write(project, "plain", "pass  # a comment")
    outcome = fusebench(*QUICK, "--base", "HEAD", "--kernel", "plain", "--json")
    (row,) = json.loads(outcome.stdout)["results"]
    assert (row["verdict"], row["same_code"], row["changed_files"]) == ("pass", True, ["scale/plain.py"])
    assert row["replicates"] == 0


def test_a_folder_can_be_the_other_side_where_there_is_no_repository(fusebench: Fusebench, toy_project: Path, tmp_path: Path) -> None:
    outcome = fusebench(*QUICK, "--base-kernels", str(toy_project / "kernels"), "--kernel", "split", "--time-identical")
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    assert "pass: identical source" in outcome.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to compare with: --base REF"),
        (["--base", "HEAD", "--base-kernels", "kernels"], "and not both"),
        (["--base", "mian"], "unknown git commit, branch or tag 'mian'; did you mean 'main'?"),
        (["--base-kernels", "absent"], "--base-kernels absent: no such folder"),
        (["--base", "HEAD", "--timer", "hots"], "unknown timer 'hots'"),
        (["--base", "HEAD", "--kernel", "plian"], "did you mean 'plain'?"),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(fusebench: Fusebench, project: Path, arguments: list[str], said: str) -> None:
    outcome = fusebench(*QUICK, *arguments)
    assert (outcome.exit_code, outcome.stdout) == (ExitCode.USAGE, "")
    assert said in outcome.stderr
    assert not (project / "results").exists()


@pytest.mark.parametrize("out", [[], ["--out", "pyproject.toml"]])
def test_what_could_not_be_kept_is_not_measured(
    fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch, out: list[str]
) -> None:
    """A stored calibration that cannot be read, and a folder that takes no files."""
    asked: list[object] = []
    monkeypatch.setattr(WorkerProcess, "ask", lambda *task: asked.append(task))
    if not out:
        file = calibration_file(project / "results", resolve_device("cpu").name)
        file.parent.mkdir(parents=True)
        file.write_text('{"version": 1, "no')
    outcome = fusebench(*QUICK, "--base", "HEAD", *out)
    said = "nothing can be written there" if out else "not a calibration that fusebench wrote"
    assert (outcome.exit_code, said in outcome.stderr, asked) == (ExitCode.USAGE, True, []), outcome.output


def test_outside_of_a_repository_it_is_said_what_to_do(fusebench: Fusebench, toy_project: Path) -> None:
    outcome = fusebench(*QUICK, "--base", "HEAD")
    assert outcome.exit_code == ExitCode.USAGE
    assert "--base-kernels DIR" in outcome.stderr


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (ZeroDivisionError("of our own making"), ExitCode.FAULT)])
def test_ctrl_c_and_a_fault_of_fusebench_keep_what_was_compared(
    fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    ask = WorkerProcess.ask

    def interrupted(self: WorkerProcess, task: CheckTask | MeasureTask, *rest: object) -> object:
        if task.case.name == "odd":
            raise error
        return ask(self, task, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(WorkerProcess, "ask", interrupted)
    write(project, "plain", "x.add_(0.0)")
    outcome = fusebench("ab", "--suite", "scale", "--device", "cpu", "--cache", "warm", "--base", "HEAD", "--kernel", "plain")
    assert outcome.exit_code == code
    assert "what was compared is kept, marked incomplete" in outcome.stderr
    assert re.search(r"^note: loading the kernels of commit [0-9a-f]{12}$", outcome.stderr, re.MULTILINE)
    record = kept(project)
    assert not record.complete
    assert any("a fault of fusebench: ZeroDivisionError" in warning for warning in record.warnings) == (code == ExitCode.FAULT)
    assert {one.case for one in record.kernels} == {"even"}


def test_an_error_that_ctrl_c_led_to_is_no_fault_on_record(fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusebench.runner.ab.command.explained_comparison", interrupted_lock)
    write(project, "plain", "x.add_(0.0)")
    assert fusebench(*QUICK, "--base", "HEAD", "--kernel", "plain").exit_code == 130
    record = kept(project)
    assert record.complete
    assert record.exit_code != ExitCode.FAULT
    assert not any("fault" in warning for warning in record.warnings)


@pytest.mark.parametrize("where", ["fusebench.runner.ab.strategy.judge_revisions", "fusebench.report.ab.ab_markdown"])
def test_a_fault_in_judging_or_in_the_report_keeps_what_was_compared(
    fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def faulty(*_: object) -> None:
        raise ZeroDivisionError("of our own making")

    monkeypatch.setattr(where, faulty)
    outcome = fusebench(*QUICK, "--base", "HEAD", "--kernel", "plain", "--time-identical")
    assert outcome.exit_code == ExitCode.FAULT
    (folder,) = (project / "results" / "runs").glob("*_ab")
    record = read_comparison(folder)
    assert record.complete
    assert {one.kernel for one in record.kernels} == {"scale/plain@1"}
    judged = where.endswith("ab_markdown")
    assert {one.verdict.reason == "the comparison has not ended" for one in record.kernels} == {not judged}
