"""What starts fast: commands that need no kernel import nothing heavy.

Import counts, not seconds, are what a test can hold; the time follows from them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.forked_workers import fork_from_here

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("torch", "triton", "pandas", "matplotlib", "pyarrow", "scipy", "numpy", "jinja2", "pytest")

PROBE = """
import sys
sys.argv = ["fusebench", *sys.argv[1:]]
from fusebench.cli.main import main
try:
    main()
except SystemExit as exit:
    assert not exit.code, exit.code
print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def imported(probe: str, *arguments: str, cwd: Path = REPOSITORY, **environment: str) -> set[str]:
    """Top-level modules that a fresh process holds after running `probe` in `cwd`."""
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY / "harness")} | environment
    command = [sys.executable, "-c", probe, *arguments]
    done = subprocess.run(command, cwd=cwd, env=variables, check=True, capture_output=True, text=True, timeout=60)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("imported:"), done.stdout
    return set(last.split()[1:])


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["list", "--help"], ["list", "suites"], ["list", "suites", "--json"], ["list", "cases"], ["list", "ops"]],
    ids=" ".join,
)
def test_commands_that_need_no_kernel_import_nothing_heavy(arguments: list[str]) -> None:
    modules = imported(PROBE, *arguments)
    assert "typer" in modules, "the probe ran the command"
    assert not modules & set(HEAVY)


def test_help_needs_no_rich() -> None:
    assert "rich" not in imported(PROBE, "--help")


def test_importing_the_package_imports_no_torch() -> None:
    modules = imported('import sys, fusebench; print("imported:", *sys.modules)')
    assert not modules & {*HEAVY, "typer", "rich"}


def test_a_command_imports_no_other_command() -> None:
    whole_names = PROBE.replace('name.partition(".")[0]', "name")
    commands = {name for name in imported(whole_names, "list", "suites") if re.fullmatch(r"fusebench\.cli\.\w+_command", name)}
    assert commands == {"fusebench.cli.list_command"}


def test_no_command_imports_a_kernel_file_or_torch_into_its_own_process(tmp_path: Path, toy_project: Path) -> None:
    cache = {"FUSEBENCH_CACHE_DIR": str(tmp_path)}
    on_cpu = ("--suite", "scale", "--case", "even", "--device", "cpu")
    lines = [("list",), ("check", *on_cpu), ("run", *on_cpu, "--replicates", "2", "--rounds", "2")]
    for line in [*lines, ("ab", *on_cpu, "--base-kernels", "kernels")]:
        modules = imported(fork_from_here() + PROBE, *line, cwd=toy_project, **cache)
        assert not [name for name in modules if name in ("torch", "triton") or name.startswith("_fusebench_root")], line


def test_kernels_are_loaded_once_and_then_listed_and_refused_without(tmp_path: Path) -> None:
    # `python -c` can import from where it runs, so names there count: not where other tests make and remove folders meanwhile.
    cwd = REPOSITORY / "suites"
    cache = {"FUSEBENCH_CACHE_DIR": str(tmp_path)}
    assert "multiprocessing" in imported(PROBE, "list", "kernels", "--device", "cpu", cwd=cwd, **cache), "a process loads them"
    (kept,) = (tmp_path / "declarations").glob("*.json")
    entry = kept.read_bytes()
    again = imported(PROBE, "list", "kernels", "--suite", "nightly", "--device", "cpu", cwd=cwd, **cache)
    asked = [file.name for file in (tmp_path / "declarations").glob("*.json")], kept.read_bytes() == entry
    assert asked == ([kept.name], True), "another key: the surroundings changed; another entry: a file did"
    assert not again & {*HEAVY, "multiprocessing"}
    refused = PROBE.replace("assert not exit.code", "assert exit.code == 2")
    assert not imported(refused, "run", "--suite", "smoke", "--kernel", "nope@9", "--device", "cpu", cwd=cwd, **cache) & set(HEAVY)


USAGE_ERRORS = (
    "run",
    "run --suite nope",
    "run --suite scale --device gpu",
    "run --suite scale --timer cupti --device cpu",
    "run --suite scale --out /proc/nope",
    "check --case nope --suite scale",
    "check --op nope",
    "ab --suite nope --base HEAD",
    "static --suite nope --arch sm_90",
    "ncu --suite scale --against nope",
    "calibrate --op nope",
    "bench nope.py",
    "eval nope.py --op scale",
    "eval pyproject.toml --op nope",
    "eval pyproject.toml --op scale --suite nope",
    "eval --serve --mcp",
    "gate nope",
    "report nope",
    "list ops --op nope",
)


def test_usage_errors_come_before_any_kernel_is_imported(toy_project: Path) -> None:
    """Planted: a kernel file whose import takes for ever."""
    (toy_project / "kernels" / "scale" / "slow.py").write_text("import time\ntime.sleep(1000)\n")
    probe = """
import sys
from fusebench.cli.main import app
for line in sys.argv[1:]:
    try:
        app(line.split(), prog_name="fusebench")
    except SystemExit as exit:
        assert exit.code == 2, (line, exit.code)
print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}))
"""
    modules = imported(fork_from_here() + probe, *USAGE_ERRORS, cwd=toy_project)
    assert not modules & {"torch", "triton", "pandas", "matplotlib", "pyarrow", "scipy"}
    assert not imported(PROBE, "list", "suites", cwd=toy_project) & set(HEAVY)


def test_eval_imports_neither_torch_nor_a_kernel_file(toy_project: Path) -> None:
    """Planted: kernel files and a candidate whose import would end the process; the evaluator is a stand-in."""
    for file in ("kernels/scale/fast.py", "kernels/scale/split.py", "mine.py"):
        (toy_project / file).write_text("import os, triton\nos._exit(0)\n")
    planted = """
from fusebench.judge import evaluation
from fusebench.schema.evaluation import Evaluation, EvaluationStatus
evaluation.Evaluator.evaluate = lambda self, request, reporter: Evaluation(
    status=EvaluationStatus.CRASHED, op=request.op, stage=request.stage, file=str(request.file))
"""
    probe = planted + PROBE.replace("assert not exit.code", "assert exit.code == 5")
    modules = imported(probe, "eval", "mine.py", "--op", "scale", "--device", "cpu", cwd=toy_project)
    assert not modules & {"torch", "triton", "numpy", "pandas", "starlette", "mcp"}
