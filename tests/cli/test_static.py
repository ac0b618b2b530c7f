"""`fusebench static` and `fusebench ab --static`: tables, JSON, gate, exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from fusebench.evidence.records import KernelEvidence
from fusebench.store.static_baselines import promote_static, read_static

STATIC_PROJECT = Path(__file__).parents[1] / "static_project"
SELECTION = ("--suite", "unit_sum", "--arch", "sm_90", "--jobs", "2")
Fusebench = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("forked_compilers")


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the module: what a test compiled, the next one knows."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def project(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: a copy of the project, in a git repository with one commit."""
    root = tmp_path / "project"
    shutil.copytree(STATIC_PROJECT, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(root)
    monkeypatch.setenv("FUSEBENCH_CACHE_DIR", str(cache_folder))
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "sound")
    return root


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


def edit(root: Path, old: str, new: str) -> None:
    file = root / "kernels" / "unit_sum" / "in_triton.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def spill(root: Path) -> None:
    edit(root, "SPILLING = {}", 'SPILLING = {"num_warps": 1, "maxnreg": 24}')


@pytest.mark.usefixtures("project")
def test_json_holds_every_kernel_and_case(fusebench: Fusebench) -> None:
    result = fusebench("static", *SELECTION, "--json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    (target,) = document["targets"]
    assert (document["exit_code"], target["target"], len(target["results"])) == (0, "sm_90", 12)
    launch = target["results"][0]["launches"][0]
    assert {"grid", "threads", "dynamic_shared", "occupancy", "code"} <= set(launch)
    assert {"registers", "spill_stores", "spill_loads", "stack", "static_shared", "size", "sha256", "compiler"} <= set(launch["code"])
    assert "judgements" not in document


@pytest.mark.usefixtures("project")
def test_the_table_refers_to_machine_code_that_it_has_shown(fusebench: Fusebench) -> None:
    result = fusebench("static", *SELECTION)
    assert result.exit_code == 0
    assert result.stdout.count("same machine code as unit_sum:rows") == 6
    assert "sm_90: 12 compiled; " in result.stdout
    assert "load the kernels" not in result.stderr, "the cache knew everything"


@pytest.mark.usefixtures("project")
def test_what_the_cache_knows_needs_no_torch(fusebench: Fusebench) -> None:
    assert fusebench("static", *SELECTION).exit_code == 0
    probe = (
        "import sys; from fusebench.cli.main import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as exit: assert not exit.code\n"
        "assert 'msgspec' in sys.modules and not {'torch', 'triton'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe, "static", *SELECTION], capture_output=True, text=True, check=False)
    assert (done.returncode, "12 compiled" in done.stdout) == (0, True), done.stderr


def test_a_kernel_edited_so_that_it_spills_is_caught(project: Path, fusebench: Fusebench) -> None:
    promoted = fusebench("static", *SELECTION, "--promote")
    assert promoted.exit_code == 0
    (file,) = (project / "results" / "baselines" / "static" / "sm_90").iterdir()
    assert str(file) in promoted.stderr
    passed = fusebench("static", "--suite", "unit_sum", "--gate")
    assert (passed.exit_code, "12 pass; 12 of identical machine code" in passed.stdout) == (0, True)

    trusting = fusebench("static", "--suite", "unit_sum", "--gate", "--trust-baseline")
    assert (trusting.exit_code, "12 pass; 12 of identical machine code" in trusting.stdout) == (0, True)

    spill(project)
    trusting = fusebench("static", "--suite", "unit_sum", "--gate", "--trust-baseline", "--no-cache", "--json")
    caught = fusebench("static", "--suite", "unit_sum", "--gate", "--json")
    assert json.loads(trusting.stdout)["judgements"] == json.loads(caught.stdout)["judgements"]
    assert caught.exit_code == 1, caught.stderr
    regressions = [one for one in json.loads(caught.stdout)["judgements"] if one["kind"] == "regression"]
    assert {one["kernel"] for one in regressions} == {"unit_sum/spilling@1"}
    assert "bytes of spill stores 0 ->" in regressions[0]["reason"]
    shown = fusebench("static", "--suite", "unit_sum", "--gate")
    assert (shown.exit_code, "bytes of spill stores (worse)" in shown.stdout, "2 regression" in shown.stdout) == (1, True, True)
    limited = fusebench("static", *SELECTION, "--limited")
    assert (limited.exit_code, "unit_sum/spilling@1" in limited.stdout, "unit_sum/longer@1" in limited.stdout) == (0, True, False)
    assert "2 kernels and cases spill" in limited.stdout


@pytest.mark.usefixtures("project")
def test_trust_needs_a_gate(fusebench: Fusebench) -> None:
    refused = fusebench("static", *SELECTION, "--trust-baseline")
    assert (refused.exit_code, "pass both" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("project")
def test_the_gate_on_one_kernel_judges_that_kernel_alone(fusebench: Fusebench) -> None:
    assert fusebench("static", *SELECTION, "--promote").exit_code == 0
    passed = fusebench("static", *SELECTION, "--gate", "--kernel", "spilling", "--json")
    judged = {(one["kernel"], one["kind"]) for one in json.loads(passed.stdout)["judgements"]}
    assert (passed.exit_code, judged) == (0, {("unit_sum/spilling@1", "pass")}), passed.stderr


@pytest.mark.parametrize(
    ("kernel", "old", "new"),
    [
        pytest.param("longer", "LONGER = {}", 'LONGER = {"num_warps": 8}', id="tile"),
        pytest.param("narrower", "NARROWER = {}", 'NARROWER = {"start": 1}', id="launcher"),
        pytest.param("*", "x = x / tl.sum(x, 0)", "x = x / (tl.sum(x, 0) + 1e-6)", id="arithmetic"),
        pytest.param("*", "(x.shape[0],)", "(x.shape[0] + 1,)", id="grid"),
    ],
)
def test_a_released_version_edited_in_place_fails_the_gate_and_a_new_version_passes(
    project: Path, fusebench: Fusebench, kernel: str, old: str, new: str
) -> None:
    fusebench("static", *SELECTION, "--promote")
    edit(project, old, new)
    caught = fusebench("static", *SELECTION, "--gate", "--json")
    assert caught.exit_code == 1, caught.stderr
    regressions = [one for one in json.loads(caught.stdout)["judgements"] if one["kind"] == "regression"]
    released = {f"unit_sum/{name}@1" for name in ("unchanged", "spilling", "narrower", "fewer_warps", "longer")}
    assert {one["kernel"] for one in regressions} == (released if kernel == "*" else {f"unit_sum/{kernel}@1"})
    for one in regressions:
        assert one["reason"].startswith(f"{one['kernel']} is released and its machine code changed in place: make it version 2 (")
    refused = fusebench("static", *SELECTION, "--promote")
    assert (refused.exit_code, "make each a new version" in refused.stderr) == (2, True)
    edit(project, new, old)
    file = project / "kernels" / "unit_sum" / "in_triton.py"
    declared = file.read_text()[file.read_text().index('@kernel("unit_sum", "longer"') :]
    file.write_text(f"{file.read_text()}\n\n{declared.replace('version=1', 'version=2').replace('**LONGER', 'num_warps=8')}")
    assert fusebench("static", *SELECTION, "--gate").exit_code == 0, "a new version is the way"


def test_ab_compares_with_the_kernels_of_a_commit(project: Path, fusebench: Fusebench) -> None:
    arguments = ("ab", *SELECTION, "--static", "--base")
    assert fusebench(*arguments, "HEAD").exit_code == 0
    spill(project)
    caught = fusebench(*arguments, "main", "--json")
    assert caught.exit_code == 1, caught.stderr
    assert {one["kernel"] for one in json.loads(caught.stdout)["judgements"] if one["kind"] == "regression"} == {"unit_sum/spilling@1"}
    git(project, "commit", "--quiet", "--all", "--message", "spill")
    assert fusebench(*arguments, "HEAD").exit_code == 0
    assert fusebench(*arguments, "HEAD~1").exit_code == 1


@pytest.mark.usefixtures("project")
def test_ab_refuses_what_it_cannot_compare(fusebench: Fusebench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = fusebench("ab", *SELECTION, "--static", "--base", "mian")
    assert (unknown.exit_code, "did you mean 'main'?" in unknown.stderr) == (2, True)
    neither = fusebench("ab", *SELECTION, "--static")
    assert (neither.exit_code, "say what to compare with" in neither.stderr) == (2, True)
    outside = tmp_path / "outside"
    shutil.copytree(STATIC_PROJECT, outside)
    monkeypatch.chdir(outside)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    nowhere = fusebench("ab", *SELECTION, "--static", "--base", "HEAD")
    assert (nowhere.exit_code, "needs the git checkout" in nowhere.stderr) == (2, True)


def test_another_toolchain_is_incomparable(project: Path, fusebench: Fusebench) -> None:
    fusebench("static", *SELECTION, "--promote")
    (file,) = (project / "results" / "baselines" / "static" / "sm_90").iterdir()
    stored = read_static(file)
    elsewhere = msgspec.structs.replace(stored.toolchain, triton="3.5.9")
    file.unlink()
    results = [_of_triton(one, stored.toolchain.triton, "3.5.9") for one in stored.results]
    promote_static(msgspec.structs.replace(stored, toolchain=elsewhere, results=tuple(results)), project / "results")
    spill(project)
    result = fusebench("static", *SELECTION, "--gate")
    assert result.exit_code == 4, result.stderr
    assert "triton-3.5.9" in result.stderr
    assert "10 incomparable" in result.stdout, "five Triton kernels on two cases; NVRTC is the same, so its kernel is judged"
    assert "bytes of spill stores" in result.stdout, "what changed is shown all the same"
    assert fusebench("static", *SELECTION, "--gate", "--allow-incomparable").exit_code == 0


def _of_triton(evidence: KernelEvidence, old: str, new: str) -> KernelEvidence:
    """The evidence with every machine code made by the other version of Triton."""
    text = msgspec.json.encode(evidence).decode().replace(f"triton {old}", f"triton {new}")
    return msgspec.json.decode(text, type=KernelEvidence)


def test_a_kernel_that_does_not_compile_is_reported_and_the_rest_goes_on(project: Path, fusebench: Fusebench) -> None:
    edit(project, "x = x / tl.sum(x, 0)", "x = x / tl.no_such_function(x)")
    result = fusebench("static", *SELECTION, "--json")
    assert result.exit_code == 5
    statuses = {one["kernel"]: one["status"] for one in json.loads(result.stdout)["targets"][0]["results"]}
    assert statuses.pop("unit_sum/in_cuda@1") == "compiled"
    assert set(statuses.values()) == {"compile_error"}
    refused = fusebench("static", *SELECTION, "--promote")
    assert refused.exit_code == 2
    assert not (project / "results").exists()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--suite", "unit_sum", "--arch", "sm_91"), 2, "unknown target 'sm_91'; did you mean 'sm_90'?"),
        (("--suite", "unit_sum"), 2, "no target: pass --arch NAME"),
        (("--suite", "unit_sum", "--gate"), 2, "there is no baseline to take it from"),
        ((*SELECTION, "--gate", "--promote"), 2, "pass one of them"),
        ((*SELECTION, "--limited", "--gate"), 2, "leave it out with --gate and --json"),
        ((*SELECTION, "--promote", "--kernel", "in_cuda"), 2, "select whole suites"),
        ((*SELECTION, "--margin", "1.5"), 2, "expected a share"),
        ((*SELECTION, "--kernel", "in_cud"), 2, "did you mean 'in_cuda'?"),
        ((*SELECTION, "--gate"), 4, "no baseline for sm_90"),
    ],
)
def test_bad_usage_says_what_to_do(fusebench: Fusebench, arguments: tuple[str, ...], code: int, words: str) -> None:
    result = fusebench("static", *arguments)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr


def test_a_corrupted_baseline_is_an_error_and_left_alone(project: Path, fusebench: Fusebench) -> None:
    fusebench("static", *SELECTION, "--promote")
    (file,) = (project / "results" / "baselines" / "static" / "sm_90").iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    kept = file.read_bytes()
    for option in ("--gate", "--promote"):
        result = fusebench("static", *SELECTION, option)
        assert (result.exit_code, "corrupted" in result.stderr) == (2, True)
    assert file.read_bytes() == kept
