"""A nightly and a pull request end with the exit code of what happened and a sentence that says so: failure is never silence."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.ci.findings import Declarations
from fusebench.ci.jobs import Nightly, PullRequestJob, changed_ops, nightly, pull_request, recorded_run, static_gate
from fusebench.ci.settings import PullRequest
from fusebench.ci.texts import JobOutcome
from fusebench.config import Project
from fusebench.errors import UsageError
from fusebench.schema import Status
from fusebench.store.history_file import keep_run, write_history
from fusebench.store.run_folder import read_run, write_run

Row = Callable[..., dict[str, Any]]
ERROR = {"verdict": "error", "decides": True, "change": None, "reason": "wrong"}


@pytest.fixture
def run(project: Project, synthetic: ModuleType) -> Path:
    return write_run(project.results / "runs", synthetic.make_run(cases=("flux_1024",)), [])


def gated(rows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"run": "r1", "baseline": "b1", "reason": "", "judgements": rows} | fields


def night(script: Any, project: Project, **wanted: Any) -> JobOutcome:
    return nightly(Nightly(wait_s=5, **wanted), project, project.root / "out", script.steps())


def test_a_good_night_runs_gates_and_renders(script: Any, project: Project, run: Path, judgement: Row) -> None:
    script.says("run", document={"run": str(run)}).says("gate", document=gated([judgement(verdict="pass")]))
    found = night(script, project, budget_s=60.0, exports=("bencher",))
    assert (found.exit_code, found.lines, found.device) == (0, [], "NVIDIA H200")
    assert [call[0] for call in script.calls] == ["run", "gate", "report", "report", "report"]
    assert script.calls[0] == ["run", "--suite", "nightly", "--device", "cuda", "--wait", "5", "--budget", "60", "--json"]
    assert [call[3] for call in script.calls[2:]] == ["md", "html", "bencher"]


WHAT_HAPPENED: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "no GPU": (
        {"exit": 3, "stderr": "error: GPU 0 is busy\n", "stdout": ""},
        {},
        3,
        "no run: no GPU that is fit to measure (exit code 3): GPU 0 is busy",
    ),
    "usage": (
        {"exit": 2, "stderr": "error: no suite x\n", "stdout": ""},
        {},
        2,
        "no run: wrong usage or configuration (exit code 2): no suite x",
    ),
    "no document": ({"exit": 0, "stdout": "not json"}, {}, 70, "no run: pass (exit code 0): it did not say why"),
    "fault": ({"exit": 70, "stdout": ""}, {}, 70, "no run: fault of fusebench (exit code 70): it did not say why"),
    "crash": ({"exit": 139, "stdout": ""}, {}, 70, "no run: failure (exit code 139): it did not say why"),
    "no baseline": ({}, {"exit": 4, "document": gated([], baseline=None, reason="keep one")}, 4, "no baseline: keep one"),
    "garbled": (
        {},
        {"exit": 2, "stderr": "error: run r1 is garbled\n", "stdout": ""},
        2,
        "gate: wrong usage or configuration (exit code 2): run r1 is garbled",
    ),
    "kernel": ({"exit": 5}, {"document": gated([])}, 5, "run: a kernel failed (exit code 5): it did not say why"),
}


@pytest.mark.parametrize("happened", WHAT_HAPPENED)
def test_whatever_kept_a_night_from_a_verdict_has_an_exit_code_and_a_line(script: Any, project: Project, run: Path, happened: str) -> None:
    run_says, gate_says, code, line = WHAT_HAPPENED[happened]
    script.says("run", **({"document": {"run": str(run)}} | run_says)).says("gate", **gate_says)
    found = night(script, project)
    assert (found.exit_code, found.lines[0]) == (code, line)


def test_a_failed_kernel_of_a_first_night_is_told_although_there_is_no_baseline(
    script: Any, project: Project, synthetic: ModuleType
) -> None:
    failed = synthetic.make_run(cases=("flux_1024",), status={("flux_1024", synthetic.FUSED): (Status.WRONG, "output q is 1, not 2")})
    folder = write_run(project.results / "runs", failed, [])
    script.says("run", exit=5, document={"run": str(folder)}).says("gate", exit=4, document=gated([], baseline=None, reason="keep one"))
    found = night(script, project)
    (told,) = found.judged
    assert (told.kernel, told.verdict, told.gating, told.reason) == (synthetic.FUSED, "error", True, "wrong: output q is 1, not 2")
    assert (found.exit_code, found.lines) == (5, ["no baseline: keep one"])
    script.says("gate", exit=5, document=gated([{"suite": "qknorm_rope", "case": "flux_1024", "kernel": synthetic.FUSED, **ERROR}]))
    assert [one.by for one in night(script, project).judged] == ["gate"], "told once"


def test_altered_records_are_told_once_however_the_night_ends(script: Any, project: Project, run: Path, judgement: Row) -> None:
    said = "the calibration of NVIDIA H200 was altered after it was written: nvidia_h200.json does not fit its seal (x.json); restore it"
    for command in ("gate", "report"):
        script.says(command, stderr=f"warning: {said}\n", document=gated([judgement(verdict="pass")]))
    found = night(script.says("run", document={"run": str(run)}), project)
    assert (found.exit_code, found.lines) == (0, [said])


def test_a_regression_by_the_gate_alone_fails_the_night(script: Any, project: Project, run: Path, judgement: Row) -> None:
    script.says("run", document={"run": str(run)}).says("gate", exit=1, document=gated([judgement()]))
    found = night(script, project)
    assert (found.exit_code, found.lines, found.judged[0].verdict) == (1, [], "regression")


def test_a_report_that_cannot_be_made_is_told_and_fails_the_night(script: Any, project: Project, run: Path, judgement: Row) -> None:
    script.says("run", document={"run": str(run)}).says("gate", exit=1, document=gated([judgement()]))
    script.says("report", exit=2, stderr="error: disk full\n")
    found = night(script, project)
    assert found.exit_code == 70
    assert "report --format md: wrong usage or configuration (exit code 2): disk full" in found.lines


def test_the_run_is_copied_to_a_folder_or_url_and_a_failed_copy_is_told(script: Any, project: Project, run: Path, tmp_path: Path) -> None:
    script.says("run", document={"run": str(run)}).says("gate", document=gated([]))
    assert night(script, project, upload=str(tmp_path / "archive")).exit_code == 0
    assert (tmp_path / "archive" / run.name / "run.json").is_file()
    assert night(script, project, upload="memory://archive").exit_code == 0
    (tmp_path / "file").touch()
    failed = night(script, project, upload=str(tmp_path / "file"))
    assert failed.exit_code == 70
    assert failed.lines[0].startswith(f"upload to {tmp_path / 'file'} failed")


def test_a_command_beyond_its_limit_is_ended_and_says_so(script: Any) -> None:
    script.says("ab", sleep=60)
    step = script.steps().run("ab", ["ab"], limit_s=0.5)
    assert (step.exit_code, step.reason) == (70, "error: ended after 0.5 s, its limit")


def test_what_a_command_says_is_shown_harmless_and_its_last_reason_kept(script: Any) -> None:
    script.says("run", exit=4, stderr="::error::planted\nundecided: budget\nnote: \x1b[2J\n")
    step = script.steps()
    assert step.run("run", ["run"]).reason == "undecided: budget"
    assert all(line.isprintable() and not line.startswith("::") for line in script.echoed)


def test_a_dry_run_takes_a_folder_or_a_run_of_the_history_or_a_baseline(project: Project, synthetic: ModuleType, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    with pytest.raises(UsageError, match="no recorded run"):
        recorded_run(project, None, scratch)
    baseline = write_run(project.results / "baselines", synthetic.make_run(run_id="b"), [])
    assert recorded_run(project, None, scratch) == baseline
    write_history(project.results / "history" / "nvidia_h200.parquet", map(keep_run, synthetic.make_history(3)))
    for _ in range(2):  # a second dry run into the same folder
        assert read_run(recorded_run(project, None, scratch)).id == "n002"
    assert read_run(recorded_run(project, "n001", scratch)).id == "n001"
    assert recorded_run(project, str(baseline), scratch) == baseline
    with pytest.raises(UsageError, match="no recorded run n009"):
        recorded_run(project, "n009", scratch)


def test_a_recorded_run_that_cannot_be_read_is_told(script: Any, project: Project, run: Path) -> None:
    (run / "run.json").write_text("{")
    found = night(script, project, recorded=run)
    assert found.exit_code == 2
    assert found.lines[0].startswith("no run: wrong usage or configuration (exit code 2): ")
    assert script.calls == []


def test_a_static_gate_without_a_baseline_is_undecided(script: Any) -> None:
    script.says("static", exit=4, stdout="", stderr="undecided: no baseline for sm_120\n")
    found = static_gate("nightly", ["sm_120"], script.steps())
    assert (found.exit_code, found.lines) == (4, ["static: undecided (exit code 4): no baseline for sm_120"])


# pull requests

SETTINGS = PullRequest(suites=("scale",), gpus=("h200",), budget_minutes=10, wait_minutes=1)


def compiled(**reasons: str) -> dict[str, Any]:
    rows = [
        {"target": "sm_90", "case": "scale:big", "kernel": kernel, "kind": "pass", "reason": reason} for kernel, reason in reasons.items()
    ]
    ops = dict.fromkeys(["scale", *(kernel.partition("/")[0] for kernel in reasons)])
    return {"cases": {op: [f"{op}:big"] for op in ops}, "judgements": rows}


@pytest.fixture
def repository(project: Project) -> Project:
    """The project as a git repository with one commit."""
    for command in (["init", "-q"], ["add", "kernels"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *command], cwd=project.root, check=True)
    return project


def job(script: Any, project: Project, clock: Callable[[], float] = lambda: 0.0, **wanted: Any) -> JobOutcome:
    given = PullRequestJob(**({"settings": SETTINGS, "base": "HEAD"} | wanted))
    return pull_request(given, project, Declarations(project.root, project.kernels), script.steps(), clock)


def test_nothing_is_timed_where_nothing_changed_and_it_says_so(script: Any, repository: Project) -> None:
    script.says("ab --static", document=compiled(**{"scale/fast@2": "identical machine code"}))
    found = job(script, repository)
    assert (found.exit_code, found.lines) == (0, ["nothing was timed: no kernel's machine code or source has changed"])
    assert len(script.calls) == 1


def test_a_comment_in_a_kernel_is_not_timed_and_a_changed_chain_is(script: Any, repository: Project) -> None:
    """`scale/chain@1` is PyTorch: no compiler says whether it changed."""
    script.says("ab --static", document=compiled(**{"scale/fast@2": "identical machine code"}))
    script.says("ab", document={"device": "NVIDIA H200", "results": []})
    for name, calls in (("fast.py", 1), ("chain.py", 3)):
        with (repository.root / "kernels" / "scale" / name).open("a") as file:
            file.write("# a comment\n")
        job(script, repository)
        assert len(script.calls) == calls
    assert script.calls[-1][:4] == ["ab", "--base", "HEAD", "--suite"]
    assert script.calls[-1][script.calls[-1].index("--op") + 1] == "scale"


def test_other_machine_code_is_timed_and_a_regression_fails(script: Any, repository: Project) -> None:
    row = {
        "case": "big",
        "suite": "scale",
        "op": "scale",
        "kernel": "scale/fast@2",
        "role": "fused",
        "verdict": "regression",
        "reason": "slower",
        "change": 1.03,
    }
    script.says("ab --static", document=compiled(**{"scale/fast@2": "instructions: 10 -> 12"}))
    script.says("ab", exit=1, document={"device": "NVIDIA H200", "results": [row]})
    found = job(script, repository)
    assert (found.exit_code, found.device, found.lines) == (1, "NVIDIA H200", [])
    assert [one.verdict for one in found.judged if one.by == "ab"] == ["regression"]


def test_each_changed_op_is_timed_with_the_globs_that_match_something_of_it(script: Any, repository: Project) -> None:
    """Planted defect: the options as they stand would be refused, since `shift` has no kernel `fast` and no case `sm*`."""
    for op in ("shift", "other"):
        (repository.root / "kernels" / op).mkdir()
        (repository.root / "kernels" / op / "op.py").touch()
    document = compiled(**{"scale/fast@2": "spills", "shift/wide@1": "spills", "other/fast@1": "spills"})
    document["cases"] = {"scale": ["scale:small"], "shift": ["scale:big"]}
    script.says("ab --static", document=document).says("ab", document={"device": "NVIDIA H200", "results": []})
    settings = PullRequest(suites=("scale",), gpus=("h200",), op=("scale", "shift"), case=("sm*", "big"), kernel=("fast", "shift/*"))
    found = job(script, repository, settings=settings)
    chosen = [" ".join(call[3 + ("--static" in call) : call.index("--arch" if "--arch" in call else "--device")]) for call in script.calls]
    assert chosen == [
        "--suite scale --op scale --op shift --case sm* --case big --kernel fast --kernel shift/*",
        "--suite scale --op scale --case sm* --kernel fast",
        "--suite scale --op shift --case big --kernel shift/*",
    ]
    assert (found.exit_code, found.lines) == (0, ["changed, but without a selected case or kernel, and not timed: other"])


def test_a_spent_budget_leaves_ops_undecided_by_name(script: Any, repository: Project) -> None:
    second = repository.root / "kernels" / "shift"
    second.mkdir()
    (second / "op.py").touch()
    script.says("ab --static", document=compiled(**{"scale/fast@2": "spills", "shift/fast@1": "spills"}))
    script.says("ab", document={"device": "NVIDIA H200", "results": []})
    times = iter([0.0, 10.0, 590.0])
    found = job(script, repository, clock=lambda: next(times))
    assert (found.exit_code, found.lines) == (4, ["shift: not compared, the budget of 10 minutes was spent"])
    options = script.calls[1]
    assert options[options.index("--budget") + 1] == "590"


def test_waiting_for_a_busy_gpu_does_not_use_up_the_budget(script: Any, repository: Project) -> None:
    second = repository.root / "kernels" / "shift"
    second.mkdir()
    (second / "op.py").touch()
    script.says("ab --static", document=compiled(**{"scale/fast@2": "spills", "shift/fast@1": "spills"}))
    script.says("ab", document={"device": "NVIDIA H200", "results": [], "waited_s": 500.0})
    times = iter([0.0, 10.0, 590.0])
    found = job(script, repository, clock=lambda: next(times))
    assert (found.exit_code, found.lines) == (0, [])
    assert [call[call.index("--budget") + 1] for call in script.calls[1:]] == ["590", "510"]


def test_a_runner_without_a_gpu_measures_nothing_and_no_gpu_is_told(script: Any, repository: Project) -> None:
    script.says("ab --static", exit=1, document=compiled(**{"scale/fast@2": "spills"}))
    script.says("ab", exit=3, stdout="", stderr="error: no NVIDIA driver\n")
    assert job(script, repository, static_only=True).exit_code == 1
    assert len(script.calls) == 1
    found = job(script, repository)
    assert (found.exit_code, found.lines) == (3, ["scale: no GPU that is fit to measure (exit code 3): no NVIDIA driver"])


def test_without_a_gpu_the_other_ops_do_not_wait_for_one_again(script: Any, repository: Project) -> None:
    (repository.root / "kernels" / "shift").mkdir()
    (repository.root / "kernels" / "shift" / "op.py").touch()
    script.says("ab --static", document=compiled(**{"scale/fast@2": "spills", "shift/fast@1": "spills"}))
    script.says("ab", exit=3, stdout="", stderr="error: GPU 0 is busy\n")
    found = job(script, repository)
    lines = ["scale: no GPU that is fit to measure (exit code 3): GPU 0 is busy", "shift: not compared, since no GPU is fit to measure"]
    assert (found.exit_code, found.lines, len(script.calls)) == (3, lines, 2)


def test_an_unknown_base_ends_the_job(script: Any, repository: Project) -> None:
    script.says("ab --static", exit=2, stdout="", stderr="error: --base: unknown\n")
    assert job(script, repository, base="nosuch").exit_code == 2
    script.says("ab --static", document=compiled())
    with pytest.raises(UsageError, match="fetch-depth"):
        job(script, repository, base="nosuch")


def test_a_dry_run_reads_recorded_comparisons(script: Any, repository: Project, tmp_path: Path) -> None:
    script.says("ab --static", document=compiled(**{"scale/fast@2": "spills"}))
    missing = job(script, repository, recorded=tmp_path / "recorded")
    assert (missing.exit_code, "nothing recorded" in missing.lines[0]) == (4, True)
    (tmp_path / "recorded").mkdir()
    document = {"exit_code": 0, "device": "NVIDIA H200", "results": []}
    (tmp_path / "recorded" / "scale.json").write_text(json.dumps(document))
    found = job(script, repository, recorded=tmp_path / "recorded")
    assert (found.exit_code, found.dry, found.lines) == (0, True, [])
    assert msgspec.json.decode(msgspec.json.encode(found), type=JobOutcome) == found


def test_a_shared_helper_times_every_op(project: Project) -> None:
    shared = project.root / "kernels" / "_shared"
    shared.mkdir()
    declared = Declarations(project.root, project.kernels)
    assert changed_ops([], ["kernels/_shared/tiles.py"], declared, project) == ["scale"]
    assert changed_ops([], ["docs/x.md"], declared, project) == []
