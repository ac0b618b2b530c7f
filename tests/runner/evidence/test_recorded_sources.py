"""The kernels that a stored run was made of: its commit's, else stored evidence, else a reason."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.config import Project
from fusebench.evidence.attached import EvidenceTarget, Key
from fusebench.evidence.records import StaticReport, Toolchain
from fusebench.evidence.static_attachment import EvidenceReply, EvidenceRequest, EvidenceSource
from fusebench.evidence.targets import TARGETS
from fusebench.runner.evidence import recorded_sources
from fusebench.runner.evidence.base_checkout import why_absent
from fusebench.runner.evidence.recorded_sources import NoSourcesError, OlderTimesNamed, baseline_kernels, baseline_source, run_source
from fusebench.schema import Attachment, Environment, Run
from fusebench.verdict.baseline.promotion import added_to

TOOLS = Toolchain(triton="3.9.0", ptxas="12.9.86", ptxas_blackwell="13.4.59", nvrtc="13.4.92", nvdisasm="13.1.80")
WANTED = EvidenceRequest(target=TARGETS["sm_90"], cases=(), kernels=())
STORED = StaticReport(target="sm_90", toolchain=TOOLS, results=())


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def environment(**facts: Any) -> Environment:
    return Environment(**({"device": "cuda", "device_name": "NVIDIA H200", "python": "3", "platform": "x", "fusebench": "0"} | facts))


def compile_in(roots: Sequence[Path], name: str) -> EvidenceSource:
    """In the place of a compiler: the version that the folders hold goes into the notes."""
    return lambda wanted: EvidenceReply(report=STORED, name=name, notes=tuple((root / "version").read_text() for root in roots))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project outside of any repository, on a machine with the toolchain TOOLS."""
    root = tmp_path / "project"
    (root / "kernels").mkdir(parents=True)
    (root / "kernels" / "version").write_text("two")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setattr(recorded_sources, "toolchain", lambda: TOOLS)
    return Project(root=root, kernels=(root / "kernels",), suites=(), results=root / "results")


@pytest.fixture
def commit(project: Project) -> str:
    """The project becomes a repository; its first commit holds other kernels than lie there now."""
    (project.kernels[0] / "version").write_text("one")
    git(project.root, "init", "-q", "-b", "main")
    git(project.root, "add", "-A")
    git(project.root, "commit", "-q", "-m", "one")
    (project.kernels[0] / "version").write_text("two")
    return git(project.root, "rev-parse", "HEAD")


def store(monkeypatch: pytest.MonkeyPatch, report: StaticReport) -> None:
    monkeypatch.setattr(recorded_sources, "load_static", lambda results, target, tools: (results / "some.json", report))


def test_a_commit_that_is_here_gives_its_kernels(project: Project, commit: str) -> None:
    for side in (baseline_source, run_source):
        told = side(environment(git_commit=commit), project, compile_in)(WANTED)
        assert (told.name, told.notes) == (f"commit {commit[:12]}", ("one",))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "does not say which commit it was made of"),
        ({"git_commit": "f" * 40}, "this repository does not have commit ffffffffffff: fetch it"),
        ({"git_commit": "--all"}, "this repository does not have commit --all"),
        ({"git_dirty": True}, "was made with uncommitted changes on"),
    ],
)
def test_else_stored_evidence_stands_for_a_baseline_and_this_checkout_for_a_run(
    project: Project, commit: str, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], said: str
) -> None:
    made_of = environment(**({"git_commit": commit} if "git_dirty" in facts else {}) | facts)
    with pytest.raises(NoSourcesError, match=f"{said}.*no static evidence of sm_90 is stored.*--promote"):
        baseline_source(made_of, project, compile_in)(WANTED)
    store(monkeypatch, STORED)
    told = baseline_source(made_of, project, compile_in)(WANTED)
    assert (told.name, told.report) == ("stored static evidence some", STORED)
    assert said in told.notes[0]
    told = run_source(made_of, project, compile_in)(WANTED)
    assert (told.name, told.notes[0]) == ("this checkout", "two")
    assert said in told.notes[1]


def test_a_baselines_kernels_lie_in_folders_for_as_long_as_they_are_needed(project: Project, commit: str) -> None:
    with baseline_kernels(environment(git_commit=commit), project) as folders:
        assert (folders.name, [(root / "version").read_text() for root in folders.roots]) == (f"commit {commit[:12]}", ["one"])
    assert not any(root.exists() for root in folders.roots)


def test_stored_evidence_cannot_stand_for_kernels_that_are_to_run(project: Project, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store(monkeypatch, STORED)
    dirty = environment(git_commit=commit, git_dirty=True)
    with pytest.raises(NoSourcesError, match="the baseline was made with uncommitted changes"), baseline_kernels(dirty, project):
        pass


def test_outside_of_a_repository_no_commit_is_here(project: Project) -> None:
    assert why_absent(project.root, "f" * 40) == f"{project.root} lies in no git checkout"
    with pytest.raises(NoSourcesError, match="lies in no git checkout, and no static evidence"):
        baseline_source(environment(git_commit="f" * 40), project, compile_in)(WANTED)


def test_stored_evidence_of_other_compilers_is_none(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    older = Toolchain(triton="3.6.0", ptxas="12.8.93", ptxas_blackwell="", nvrtc="13.4.92", nvdisasm="13.1.80")
    store(monkeypatch, StaticReport(target="sm_90", toolchain=older, results=()))
    with pytest.raises(NoSourcesError, match=r"some.json was made by triton 3.6.0, .* and not triton 3.9.0") as raised:
        baseline_source(environment(), project, compile_in)(WANTED)
    assert "nvrtc" not in str(raised.value), "what is the same is no reason"


def test_cases_that_a_baseline_keeps_from_another_commit_are_named(synthetic: ModuleType) -> None:
    def run(name: str, day: int, cases: Sequence[str], **facts: Any) -> Run:
        made: Run = synthetic.make_run(run_id=name, created=f"2026-07-0{day}T00:00:00Z", cases=cases, environment={"git_commit": name * 40})
        return msgspec.structs.replace(made, **facts)

    baseline = added_to(run("a", 1, synthetic.CASES), [run("b", 2, synthetic.CASES[:1], complete=False)])
    first, second = (summary.case for summary in baseline.cases[:2])

    class Shown:
        """In the place of static evidence, or of counters."""

        kind, title = "made", "made up"
        columns: tuple[str, ...] = ("figure",)

        def explain(self, suspects: Sequence[EvidenceTarget]) -> dict[Key, Attachment]:
            return {one.key: Attachment(kind=self.kind, title=self.title, columns=self.columns, notes=("one",)) for one in suspects}

    suspects = [EvidenceTarget(kernel="op/fused_triton@1", case=case) for case in (first, second)]
    told = OlderTimesNamed(baseline, Shown()).explain(suspects)
    assert told[suspects[0].key].notes == ("one",)
    note = f"the baseline's time of this case is of an earlier run (commit {'a' * 12}), whose code is not shown"
    assert told[suspects[1].key].notes == ("one", note)
    Shown.columns = ()
    assert OlderTimesNamed(baseline, Shown()).explain(suspects)[suspects[1].key].notes == ("one",), "nothing is shown"
