"""The command as a whole: help, version, and how failures end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench import __version__
from fusebench.cli import main as main_module
from fusebench.errors import DeviceUnfitError, FusebenchError, UsageError

Run = Callable[..., Any]


def make_list_raise(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("fusebench.cli.selection.load_project", fail)


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


def test_a_defect_of_fusebench_is_not_worded_away(fusebench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    make_list_raise(monkeypatch, ZeroDivisionError("a bug"))
    assert isinstance(fusebench("list", "ops").exception, ZeroDivisionError)


def test_the_console_script_exits_with_the_commands_code(monkeypatch: pytest.MonkeyPatch) -> None:
    make_list_raise(monkeypatch, DeviceUnfitError("busy"))
    monkeypatch.setattr("sys.argv", ["fusebench", "list", "ops"])
    with pytest.raises(SystemExit) as caught:
        main_module.main()
    assert caught.value.code == 3


def test_version(fusebench: Run) -> None:
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


def test_help_says_what_the_exit_codes_mean(fusebench: Run) -> None:
    assert "3 device not fit" in " ".join(fusebench("--help").stdout.split())


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
