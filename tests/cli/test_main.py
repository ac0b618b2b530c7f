"""The command as a whole: help, version, and how failures end."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench import __version__
from fusebench.cli import main as main_module
from fusebench.errors import DeviceUnfitError, FusebenchError, UsageError, describe_unknown
from fusebench.schema import EXIT_PRECEDENCE, ExitCode, worst_exit_code

Run = Callable[..., Any]


def make_list_raise(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("fusebench.cli.shared.selection.load_project", fail)


@pytest.mark.parametrize(("error", "code"), [(UsageError("what and why"), 2), (DeviceUnfitError("what and why"), 3)])
def test_an_error_is_one_line_and_its_own_exit_code(
    fusebench: Run, monkeypatch: pytest.MonkeyPatch, error: FusebenchError, code: int
) -> None:
    make_list_raise(monkeypatch, error)
    result = fusebench("list", "ops")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", "error: what and why\n")


def test_an_interrupt_is_a_word_and_exit_code_130(fusebench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    make_list_raise(monkeypatch, KeyboardInterrupt())
    result = fusebench("list", "ops")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("a bug"), EOFError("a bug"), BrokenPipeError(errno.EPIPE, "a bug"), RuntimeError("a bug"), MemoryError("a bug")],
    ids=lambda error: type(error).__name__,
)
def test_a_fault_of_fusebench_keeps_its_traceback_and_is_no_regression(
    fusebench: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Of an EOFError and a broken pipe typer would make exit code 1 without a word."""
    make_list_raise(monkeypatch, error)
    result = fusebench("list", "ops")
    assert (result.exit_code, result.stdout) == (ExitCode.FAULT, ""), result.output
    lines = result.stderr.splitlines()
    assert (lines[0], lines[-2]) == ("Traceback (most recent call last):", f"{type(error).__name__}: {error}")
    assert lines[-1].startswith(f"error: this is a fault of fusebench {__version__} ")
    assert "report it with the traceback" in lines[-1]


def test_a_fault_in_a_command_of_a_group_is_one_too(fusebench: Run, monkeypatch: pytest.MonkeyPatch, toy_project: Path) -> None:
    monkeypatch.setattr("fusebench.store.baselines.list_baselines", lambda results: 1 / 0)
    assert fusebench("baseline", "show").exit_code == ExitCode.FAULT


def _run_as_module() -> None:
    """What `python -m fusebench` runs.  pytest rewrites a package that holds a plugin, and `runpy` cannot run a rewritten module."""
    source = Path(main_module.__file__).parents[1] / "__main__.py"
    exec(compile(source.read_text(), source, "exec"), {"__name__": "__main__", "__package__": "fusebench"})


@pytest.mark.parametrize(("error", "code"), [(DeviceUnfitError("busy"), 3), (ZeroDivisionError("a bug"), 70), (KeyboardInterrupt(), 130)])
@pytest.mark.parametrize("start", [main_module.main, _run_as_module], ids=["script", "module"])
def test_the_process_exits_with_the_commands_code(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[], object], error: BaseException, code: int
) -> None:
    make_list_raise(monkeypatch, error)
    monkeypatch.setattr("sys.argv", ["fusebench", "list", "ops"])
    with pytest.raises(SystemExit) as caught:
        start()
    assert caught.value.code == code


WITH_RICH = "import typer; from fusebench.cli.shared.output import console; typer.echo = console().print"


@pytest.mark.parametrize("prepared", ["", WITH_RICH], ids=["plain", "rich"])
def test_a_reader_who_leaves_is_neither_a_regression_nor_a_fault(toy_project: Path, prepared: str) -> None:
    read, written = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", f"{prepared}\nfrom fusebench.cli.main import main; main()", "list", "ops"]
    done = subprocess.run(command, cwd=toy_project, stdout=written, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(written)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_fault_outranks_every_verdict() -> None:
    assert worst_exit_code(list(ExitCode)) is ExitCode.FAULT
    assert sorted(EXIT_PRECEDENCE) == sorted(ExitCode)


def test_version(fusebench: Run) -> None:
    """Planted defect: the changelog spoke of 0.3.0 while the command called itself 0.2.0."""
    newest = re.search(r"^## (\S+)", (Path(__file__).parents[2] / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == __version__
    result = fusebench("--version")
    assert (result.exit_code, result.stdout) == (0, f"fusebench {__version__}\n")


def test_no_arguments_show_the_help(fusebench: Run) -> None:
    result = fusebench()
    assert "Usage: fusebench" in result.output
    assert result.exit_code in (0, 2)  # click 8.2 and later call it a usage error


@pytest.mark.parametrize("arguments", [["--help"], ["list", "-h"]])
def test_help_is_plain_text(fusebench: Run, arguments: list[str]) -> None:
    result = fusebench(*arguments)
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: fusebench")
    assert "╭" not in result.stdout


@pytest.mark.parametrize("group", [[], ["baseline"], ["catalogue"], ["suite"], ["ci"]])
def test_a_list_of_commands_cuts_no_sentence_and_their_options_name_no_python_type(fusebench: Run, group: list[str]) -> None:
    """Planted defects: `Check whether this machine is fit to measure: GPU, driver,...`, and `--rounds <int range>`."""
    listed = fusebench(*group, "--help").stdout.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert listed
    for line in listed:
        assert line.endswith("."), line
        assert not line.endswith(".."), line
        assert " range>" not in fusebench(*group, line.split()[0], "--help").stdout


def test_help_says_what_the_exit_codes_mean(fusebench: Run) -> None:
    text = " ".join(fusebench("--help").stdout.split())
    for said in ("1 regression", "3 device not fit", "70 a fault of fusebench itself", "130 interrupted"):
        assert said in text
    assert "70 a fault of fusebench itself, which is no verdict" in " ".join(fusebench("gate", "--help").stdout.split())


@pytest.mark.parametrize("arguments", [["lsit"], ["list", "--sute", "x"], ["--frobnicate"]])
def test_usage_errors_exit_2(fusebench: Run, arguments: list[str]) -> None:
    result = fusebench(*arguments)
    assert result.exit_code == 2
    assert "No such" in result.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *((command, option) for command in ("run", "ab") for option in ("--margin", "--budget", "--wait", "--kernel-timeout")),
        ("run", "--precision"),
        *(("calibrate", option) for option in ("--budget", "--wait", "--kernel-timeout")),
    ],
)
def test_nan_is_no_number(fusebench: Run, toy_project: Path, command: str, option: str) -> None:
    result = fusebench(command, option, "nan", "--device", "cpu")
    assert (result.exit_code, f"'{option}': found nan, expected a number" in result.stderr) == (2, True), result.output
    assert not (toy_project / "results").exists()


def test_a_name_that_resembles_none_gets_no_suggestion() -> None:
    """Planted defect: `nope` was asked whether it meant `qknorm_rope`."""
    assert "did you mean" not in describe_unknown("op", "nope", ["qknorm_rope", "rotary_embedding"])
    assert "did you mean 'smoke'?" in describe_unknown("suite", "smok", ["smoke", "edges"])
