"""docs/pytest.md tells the truth: its Python blocks and its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from helpers.pytest_session import TESTS, Session

GUIDE = (TESTS.parent / "docs" / "pytest.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ pytest (.*)$", GUIDE, re.MULTILINE)


def test_the_python_blocks_run(session: Session, project: Path) -> None:
    hooks = [block for block in BLOCKS if "pytest_collection_modifyitems" in block]
    tests = [block for block in BLOCKS if block not in hooks]
    (project / "conftest.py").write_text("\n".join(hooks))
    for number, block in enumerate(tests):
        (project / f"test_block{number}.py").write_text(block)
    done = session("--fusebench-device=cpu", *(f"test_block{number}.py" for number in range(len(tests))))
    assert "2 passed" in done.stdout or "than speed(min_speedup=1.1) allows" in done.stdout, done.stdout + done.stderr
    assert len(re.findall(r"^(?:PASSED|FAILED) ", done.stdout, re.MULTILINE)) == len(tests) == 2
    assert "ERROR" not in done.stdout


def test_the_shown_failure_has_the_words_of_a_real_one() -> None:
    from fusebench.pytest_plugin import markers, measured_function

    shown = GUIDE.split("reads like this:")[1].split("```")[1]
    source = Path(markers.__file__).read_text() + Path(measured_function.__file__).read_text()
    for words in (" allows", "measured:", "asked:", "device:", "next:", "us a call", "shows whether it became slower"):
        assert words in shown, words
        assert words in source, words


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [one for one in COMMANDS if "--benchmark-json" in one])
def test_a_whole_suite_runs(session: Session, project: Path, command: str) -> None:
    _as_the_repository(project)
    done = session(*shlex.split(command), "--fusebench-device=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "out.json").exists()
    assert "qknorm_rope/split_torch@1[interleaved_256]" in done.stdout


@pytest.mark.exhaustive
def test_the_other_commands_run_in_their_order(session: Session, project: Path) -> None:
    _as_the_repository(project)
    commands = [one for one in COMMANDS if "--benchmark-json" not in one]
    assert len(commands) == 2
    for command in commands:
        done = session(*shlex.split(command), "--fusebench-device=cpu")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "(NOW)" in done.stdout


def test_every_option_is_in_the_table(session: Session) -> None:
    named = set(re.findall(r"--fusebench-\w+", GUIDE))
    assert named == set(re.findall(r"--fusebench-\w+", session("--help").stdout))


def _as_the_repository(project: Path) -> None:
    """Make `project` a project of the repository's kernels and suites."""
    folders = {name: [(TESTS.parent / name).as_posix()] for name in ("kernels", "suites")}
    lines = [f"{name} = {value}".replace("'", '"') for name, value in folders.items()]
    (project / "pyproject.toml").write_text("[tool.fusebench]\nshipped = false\n" + "\n".join(lines) + "\n")
