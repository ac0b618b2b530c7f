"""Shell completion, asked for as shells ask: by environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.cli.main import app
from fusebench.cli.shared.completion import complete_in_bash

Run = Callable[..., Any]


def in_bash(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """What bash is told after `fusebench` and these words, the last of which is being typed; as bash splits them."""
    monkeypatch.setenv("_FUSEBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(["fusebench", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return complete_in_bash(os.environ, lambda: app(prog_name="fusebench")).split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["li"], ["list"]),
        (["run", "--suite", ""], ["models/toy", "scale"]),
        (["check", "--suite", "mod"], ["models/toy"]),
        (["run", "--suite", "scale", "--suite", "mo"], ["models/toy"]),
        (["static", "--op", "s"], ["scale"]),
        (["ab", "--case", "e"], ["even"]),
        (["run", "--suite", "models/toy", "--case", "models/toy", ":", ""], ["even", "odd"]),
        (["run", "--case", "=", "od"], ["odd"]),
        (["run", "--kernel", "fa"], ["fast", "fast@2"]),
        (["run", "--kernel", "fast", "@"], ["2"]),
        (["run", "--suite", "scale", "--kernel", "fast", "--kernel", "scale/s"], ["scale/split@1"]),
        (["ncu", "--kernel", "scale/fast", "@", "2"], ["2"]),
        (["run", "--suite", "nope", "--case", "e"], []),
        (["run", "--op", "nope", "--kernel", "f"], []),
    ],
)
def test_names_are_completed_in_bash(
    fusebench: Run, toy_project: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: list[str]
) -> None:
    fusebench("list", "kernels")
    assert in_bash(monkeypatch, *words) == expected


def test_completion_loads_no_kernel_and_says_nothing_of_broken_files(
    toy_project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fusebench.registry.Declarations.load_kernels", lambda *_: pytest.fail("kernels were loaded"))
    assert in_bash(monkeypatch, "run", "--kernel", "f") == []
    (toy_project / "kernels" / "scale" / "op.py").write_text("raise ValueError('planted')\n")
    (toy_project / "suites" / "bad.toml").write_text("[suite")
    assert in_bash(monkeypatch, "run", "--op", "s") == []
    assert in_bash(monkeypatch, "run", "--suite", "sc") == ["scale"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "fusebench run --suite mod"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "fusebench run --suite mod", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_other_shells_are_answered(
    toy_project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str, variables: dict[str, str]
) -> None:
    for name, value in {"_FUSEBENCH_COMPLETE": f"complete_{shell}", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        app(prog_name="fusebench")
    assert "models/toy" in capsys.readouterr().out
