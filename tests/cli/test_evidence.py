"""Evidence about regressions in `ab`, `run` and `gate`: what a kernel that was edited so that it spills looks like in each."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from click.testing import Result as Outcome

from fusebench.runner.ab.strategy import ComparisonStrategy
from fusebench.runner.engine import Engine
from fusebench.runner.run.strategy import RunStrategy
from fusebench.schema import ExitCode, Role, Run, Verdict, VerdictKind
from fusebench.store.baselines import promote
from fusebench.store.comparison_folder import read_comparison
from fusebench.store.comparison_record import ComparedCase, ComparedKernel, RevisionPresence
from fusebench.store.record_files import encode_record
from fusebench.store.run_folder import read_run, write_record, write_run
from fusebench.verdict.record_validation import load_valid_baseline

STATIC_PROJECT = Path(__file__).parents[1] / "static_project"
SPILLING = "unit_sum/spilling@1"
SPILLED = "bytes of spill stores"
Fusebench = Callable[..., Outcome]
Canned = Callable[..., Run]
pytestmark = pytest.mark.usefixtures("forked_workers", "forked_compilers")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the module: what a test compiled, the next one knows."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def project(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: a repository whose one commit holds sound kernels; in the checkout one of them is edited so that it spills."""
    root = tmp_path / "project"
    shutil.copytree(STATIC_PROJECT, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(root)
    monkeypatch.setenv("FUSEBENCH_CACHE_DIR", str(cache_folder))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (root / ".gitignore").write_text("results/\n__pycache__/\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "sound")
    edit(root, "SPILLING = {}", 'SPILLING = {"num_warps": 1, "maxnreg": 24}')
    return root


def edit(root: Path, old: str, new: str) -> None:
    file = root / "kernels" / "unit_sum" / "in_triton.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.fixture
def canned(synthetic: ModuleType) -> Canned:
    """`canned(run_id=…, slow=1.2, environment={…})`: a run of the project's kernels as an H200 would give it."""

    def make(slow: float = 1.0, **fields: Any) -> Run:
        run = synthetic.make_run(cases=["flux_1024"], slow={("flux_1024", synthetic.FUSED): slow}, **fields)
        text = encode_record(run).decode().replace(synthetic.FUSED, SPILLING).replace("flux_1024", "rows").replace(synthetic.OP, "unit_sum")
        text = re.sub(r'"params": \{[^}]*\}', '"params": {"rows": 4096, "columns": 1024}', text)
        return msgspec.json.decode(text, type=Run)

    return make


@pytest.fixture
def judged(project: Path, canned: Canned, synthetic: ModuleType) -> Callable[..., None]:
    """`judged(slow=…, baseline={…}, run={…})`: a stored baseline and a run `new`, with these facts in their environments."""

    def store(slow: float = 1.2, baseline: dict[str, Any] | None = None, run: dict[str, Any] | None = None) -> None:
        head = {"git_commit": git(project, "rev-parse", "HEAD")}
        results = project / "results"
        before = canned(run_id="base", environment=head)
        promote(write_run(results / "runs", before, synthetic.make_samples(before)), results)
        dated = msgspec.structs.replace(before, environment=msgspec.structs.replace(before.environment, **(baseline or {})))
        write_record(results / "baselines" / "nvidia_h200", dated)
        after = canned(run_id="new", slow=slow, environment=head | {"git_dirty": True} | (run or {}), created="2026-07-28T00:00:00Z")
        write_run(results / "runs", after, synthetic.make_samples(after))

    return store


def evidence_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The one attachment of the one regression."""
    (row,) = [row for row in rows if row["verdict"] == "regression"]
    assert [row["kernel"] for row in rows if "attachments" in row] == [row["kernel"]] == [SPILLING]
    (attachment,) = row["attachments"]
    return attachment


def test_gate_shows_what_changed_since_the_baselines_commit(
    project: Path, fusebench: Fusebench, judged: Callable[..., None], cache_folder: Path
) -> None:
    judged()
    plain = fusebench("gate", "new")
    assert (plain.exit_code, SPILLED in plain.stdout, "evidence" in plain.stderr) == (1, False, False)
    shown = fusebench("gate", "new", "--evidence")
    assert shown.exit_code == 1
    assert re.search(rf"{SPILLED} +0 +[1-9]\d* +worse", shown.stdout), shown.output
    attachment = evidence_of(json.loads(fusebench("gate", "new", "--evidence", "--json").stdout)["judgements"])
    head = git(project, "rev-parse", "HEAD")[:12]
    assert attachment["title"] == f"static evidence for sm_90 (NVIDIA H200): commit {head} → this checkout"
    assert attachment["notes"] == [f"this checkout stands for the run's kernels: the run was made with uncommitted changes on {head}"]


def test_a_run_of_a_commit_is_shown_by_that_commits_kernels(project: Path, fusebench: Fusebench, judged: Callable[..., None]) -> None:
    """Not by those that lie here now."""
    judged(run={"git_dirty": False})
    attachment = evidence_of(json.loads(fusebench("gate", "new", "--evidence", "--json").stdout)["judgements"])
    assert (attachment["rows"], attachment["notes"]) == ([], ["compiled to the same code in both revisions and launched alike"])


def test_without_the_commit_stored_evidence_is_what_was_before(project: Path, fusebench: Fusebench, judged: Callable[..., None]) -> None:
    judged(baseline={"git_dirty": True})
    none = evidence_of(json.loads(fusebench("gate", "new", "--evidence", "--json").stdout)["judgements"])
    assert none["rows"] == []
    assert "nothing to hold it against: the baseline was made with uncommitted changes on" in none["notes"][0]
    spoilt = (project / "kernels" / "unit_sum" / "in_triton.py").read_text()
    git(project, "checkout", "-q", ".")
    assert fusebench("static", "--suite", "unit_sum", "--arch", "sm_90", "--promote").exit_code == 0
    (project / "kernels" / "unit_sum" / "in_triton.py").write_text(spoilt)
    result = fusebench("gate", "new", "--evidence", "--json")
    attachment = evidence_of(json.loads(result.stdout)["judgements"])
    assert (result.exit_code, attachment["title"].count("stored static evidence triton-")) == (1, 1)
    assert SPILLED in {row[1] for row in attachment["rows"]}


@pytest.mark.parametrize("slow", [1.0, 1.2])
def test_gate_imports_no_torch_and_without_a_regression_nothing_that_compiles(
    project: Path, judged: Callable[..., None], slow: float
) -> None:
    judged(slow=slow)
    script = (
        "import sys\n"
        "from fusebench.cli.main import app\n"
        "try:\n"
        "    app(['gate', 'new', '--evidence'])\n"
        "except SystemExit as end:\n"
        "    print('ended with', end.code)\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=project, timeout=120)
    imported = set(done.stdout.splitlines()[-1].split())
    assert f"ended with {int(slow > 1)}" in done.stdout
    assert not imported & {"torch", "triton"}
    assert ("fusebench.evidence.collecting" in imported) == (slow > 1)


@pytest.mark.usefixtures("judged")
def test_run_keeps_it_in_the_record_and_in_the_reports(
    project: Path, fusebench: Fusebench, judged: Callable[..., None], canned: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged()
    slower = canned(run_id="made", slow=1.2, environment={"git_dirty": True}, created="2026-07-29T00:00:00Z")
    stored = load_valid_baseline(project / "results", "NVIDIA H200")
    monkeypatch.setattr("fusebench.runner.run.command.load_valid_baseline", lambda *_: stored)  # as if the H200's run were this CPU's
    monkeypatch.setattr(Engine, "run", lambda *_: None)
    monkeypatch.setattr(RunStrategy, "record", lambda self, **_: slower)
    result = fusebench("run", "--suite", "unit_sum", "--case", "rows", "--device", "cpu", "--json")
    assert result.exit_code == ExitCode.REGRESSION, result.output
    document = json.loads(result.stdout)
    folder = Path(document["run"])
    (kept,) = [one for one in read_run(folder).results if one.attachments]
    assert (kept.kernel, SPILLED in {row[1] for row in kept.attachments[0].rows}) == (SPILLING, True)
    assert evidence_of(document["results"])["rows"] == [list(row) for row in kept.attachments[0].rows]
    assert f"| 1 | {SPILLED} | 0 |" in (folder / "report.md").read_text()
    assert SPILLED in fusebench("report", str(folder), "--format", "html").stdout
    without = fusebench("run", "--suite", "unit_sum", "--case", "rows", "--device", "cpu", "--no-evidence", "--out", "elsewhere")
    assert (without.exit_code, SPILLED in without.stdout, "evidence" in without.stderr) == (ExitCode.REGRESSION, False, False)


@pytest.fixture
def slower_in_ab(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `ab` would measure, it finds the spilling kernel slower and another one as fast as it was."""
    record = ComparisonStrategy.record

    def found(self: ComparisonStrategy, **known: Any) -> Any:
        fields = {"suite": "unit_sum", "case": "rows", "op": "unit_sum", "role": Role.FUSED, "presence": RevisionPresence.BOTH}
        verdicts = {SPILLING: VerdictKind.REGRESSION, "unit_sum/longer@1": VerdictKind.PASS, "unit_sum/split@1": VerdictKind.REGRESSION}
        kernels = [
            ComparedKernel(**fields, kernel=kernel, verdict=Verdict(kind=kind, reason="planted")) for kernel, kind in verdicts.items()
        ]
        cases = [ComparedCase(case=case, shape="4096x1024") for case in self.planned]  # type: ignore[attr-defined]
        return msgspec.structs.replace(record(self, **known), cases=cases, kernels=kernels, exit_code=1)

    monkeypatch.setattr(Engine, "run", lambda self, cases: setattr(self.strategy, "planned", cases))
    monkeypatch.setattr(ComparisonStrategy, "record", found)


AB = ("ab", "--suite", "unit_sum", "--case", "rows", "--device", "cpu", "--base", "HEAD")


@pytest.mark.usefixtures("slower_in_ab")
def test_ab_attaches_it_to_the_regressions_that_are_compiled_here(project: Path, fusebench: Fusebench) -> None:
    result = fusebench(*AB, "--json")
    assert result.exit_code == ExitCode.REGRESSION, result.output
    document = json.loads(result.stdout)
    attached = {row["kernel"]: row.get("attachments", []) for row in document["results"]}
    assert {kernel: len(found) for kernel, found in attached.items()} == {SPILLING: 1, "unit_sum/longer@1": 0, "unit_sum/split@1": 0}
    record = read_comparison(Path(document["run"]))
    (kept,) = [one for one in record.kernels if one.attachments]
    assert (kept.attachments[0].title, kept.attachments[0].notes) == (
        f"static evidence for sm_90 (NVIDIA H200): commit {git(project, 'rev-parse', 'HEAD')[:12]} → this checkout",
        (),
    )
    assert {"bytes of spill stores", "registers", "resident warps", "instructions"} <= {row[1] for row in kept.attachments[0].rows}
    assert f"| 1 | {SPILLED} | 0 |" in (Path(document["run"]) / "report.md").read_text()
    assert re.search(rf"{SPILLED} +0 +[1-9]\d* +worse", fusebench(*AB).stdout)


@pytest.mark.usefixtures("project", "slower_in_ab")
def test_ab_leaves_it_out_when_told_and_says_why_where_it_failed(fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusebench.evidence import static_attachment
    from fusebench.evidence.static_process import StaticWorkerError

    def lost(*_: Any, **__: Any) -> None:
        raise StaticWorkerError("the process was lost")

    monkeypatch.setattr(static_attachment, "collect", lost)
    without = fusebench(*AB, "--no-evidence")
    assert (without.exit_code, "evidence" in without.output) == (ExitCode.REGRESSION, False)
    failed = fusebench(*AB, "--json")
    assert failed.exit_code == ExitCode.REGRESSION, "the verdict stands"
    (row,) = [row for row in json.loads(failed.stdout)["results"] if "attachments" in row]
    assert row["attachments"][0]["notes"] == ["not collected: the process was lost"]
    assert "not collected: the process was lost" in fusebench(*AB).stdout


ON_GPU = AB[: AB.index("--device")] + AB[AB.index("--base") :]
"""The same on the machine's GPU, which is a fake: what is to be measured is planted, and Nsight Compute is a script."""


@pytest.fixture
def counted(project: Path, with_gpu: Any, fake_ncu: Any) -> Any:
    """A machine with counters, by which the spilling kernel needs 96 registers and needed 72."""
    fake_ncu.behave(kernels={SPILLING: {"rows": [0]}}, base_kernels={SPILLING: {"rows": [1]}})
    return fake_ncu


def captures(fake_ncu: Any) -> int:
    return sum("--export" in call["arguments"] for call in fake_ncu.calls)


@pytest.mark.usefixtures("slower_in_ab")
def test_on_a_gpu_ab_attaches_counters_of_both_sides_too(project: Path, fusebench: Fusebench, counted: Any) -> None:
    result = fusebench(*ON_GPU, "--json")
    assert result.exit_code == ExitCode.REGRESSION, result.output
    document = json.loads(result.stdout)
    (row,) = [row for row in document["results"] if "attachments" in row]
    static, counters = row["attachments"]
    assert (static["kind"], counters["kind"], row["kernel"]) == ("static", "counters", SPILLING)
    head = git(project, "rev-parse", "HEAD")[:12]
    assert counters["title"] == f"hardware counters of NVIDIA H200, caches flushed: commit {head} → this checkout"
    assert ["registers per thread", "72", "96", "+33.3 % (worse)"] in counters["rows"]
    assert any(note.startswith("this checkout: limited by registers") for note in counters["notes"])
    assert captures(counted) == 2
    assert f"evidence, hardware counters: {SPILLING} on unit_sum:rows, this checkout (2)" in result.stderr
    assert "| registers per thread | 72 | 96 |" in (Path(document["run"]) / "report.md").read_text()


@pytest.mark.usefixtures("slower_in_ab")
@pytest.mark.parametrize("lacking", ["ncu", "permission"])
def test_without_counters_ab_says_why_and_ends_as_ever(
    fusebench: Fusebench, counted: Any, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "ncu":
        monkeypatch.setenv("FUSEBENCH_NCU", "/nowhere/ncu")
    else:
        counted.behave(forbidden=True)
    result = fusebench(*ON_GPU)
    assert result.exit_code == ExitCode.REGRESSION, result.output
    remedy = {"ncu": "name the file `ncu` itself, or unset the variable", "permission": "NVreg_RestrictProfilingToAdminUsers=0"}
    assert re.search(rf"  not collected: .*{remedy[lacking]}", result.stdout), result.output
    assert re.search(rf"{SPILLED} +0 +[1-9]\d* +worse", result.stdout), "the other evidence is there"


@pytest.mark.usefixtures("slower_in_ab")
def test_no_evidence_reads_no_counters(fusebench: Fusebench, counted: Any) -> None:
    assert fusebench(*ON_GPU, "--no-evidence").exit_code == ExitCode.REGRESSION
    assert counted.calls == []


@pytest.mark.parametrize("dirty", [False, True])
def test_on_a_gpu_run_attaches_counters_against_the_baselines_commit(
    fusebench: Fusebench, counted: Any, judged: Callable[..., None], canned: Canned, monkeypatch: pytest.MonkeyPatch, *, dirty: bool
) -> None:
    judged(baseline={"git_dirty": dirty})
    slower = canned(run_id="made", slow=1.2, created="2026-07-29T00:00:00Z")
    monkeypatch.setattr(Engine, "run", lambda *_: None)
    monkeypatch.setattr(RunStrategy, "record", lambda self, **_: slower)
    result = fusebench("run", "--suite", "unit_sum", "--case", "rows", "--json")
    assert result.exit_code == ExitCode.REGRESSION, result.output
    (row,) = [row for row in json.loads(result.stdout)["results"] if "attachments" in row]
    counters = row["attachments"][1]
    if dirty:
        assert counters["notes"][0].startswith("not collected: nothing to hold it against: the baseline was made with uncommitted changes")
    else:
        assert ["registers per thread", "72", "96", "+33.3 % (worse)"] in counters["rows"]
    assert captures(counted) == (0 if dirty else 2)


def test_gate_captures_nothing_even_where_it_could(fusebench: Fusebench, counted: Any, judged: Callable[..., None]) -> None:
    judged()
    shown = fusebench("gate", "new", "--evidence")
    assert (shown.exit_code, SPILLED in shown.stdout, "counters" in shown.stdout) == (ExitCode.REGRESSION, True, False)
    assert counted.calls == []


# Planted errors far above those of a float32 sum, which grow where a row's values cancel.
ROUGH = """
import triton
import triton.language as tl

from fusebench import kernel

OPTIONS = {"num_warps": 4}
ERROR = 2e-4


@triton.jit
def _rough(x_ptr, columns, BLOCK: tl.constexpr, ERROR: tl.constexpr):
    column = tl.arange(0, BLOCK)
    at = x_ptr + tl.program_id(0) * columns + column
    x = tl.load(at)
    tl.store(at, x / tl.sum(x, 0) * (1 + ERROR * (1 - 2 * (column % 2))))


@kernel("unit_sum", "rough", version=1, role="fused", language="triton")
def rough(x):
    _rough[(x.shape[0],)](x, x.stride(0), BLOCK=x.shape[1], ERROR=ERROR, **OPTIONS)
"""
SPLIT = """
import torch

from fusebench import kernel


@kernel("unit_sum", "split", version=1, role="split", language="torch")
def split(x):
    sign = 1 - 2 * (torch.arange(x.shape[1], device=x.device) % 2)
    return ((x.double() / x.double().sum(dim=-1, keepdim=True) * (1 + 3e-4 * sign)).float(),)
"""


def test_ab_end_to_end_on_a_kernel_that_became_less_accurate_and_spills(project: Path, fusebench: Fusebench) -> None:
    """With real processes and nothing in their place, which takes its seconds: on a CPU it is a Triton kernel's error that regresses."""
    kernels = project / "kernels" / "unit_sum"
    (kernels / "rough.py").write_text(ROUGH)
    (kernels / "split.py").write_text(SPLIT)
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "an inaccurate split chain, and a kernel that is better than it")
    (kernels / "rough.py").write_text(
        ROUGH.replace("ERROR = 2e-4", "ERROR = 3e-4").replace('"num_warps": 4', '"num_warps": 1, "maxnreg": 24')
    )
    result = fusebench("ab", "--suite", "unit_sum", "--kernel", "rough", "--device", "cpu", "--base", "HEAD", "--json")
    assert result.exit_code == ExitCode.REGRESSION, result.output
    rows = json.loads(result.stdout)["results"]
    assert [row["case"] for row in rows] == ["rows", "again"]
    assert rows[0]["attachments"] == rows[1]["attachments"], "the same work under another name"
    assert SPILLED in {row[1] for row in rows[0]["attachments"][0]["rows"]}
