"""Steps of a CI job: `fusebench` commands in processes of their own, with what each said and how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..report.escape import one_line
from ..schema import ExitCode
from ..store.seal import ALTERED

_REASONS = ("error: ", "undecided: ", "unfit: ")
"""Starts of the lines in which a command says why it ended as it did."""
_REMARKS = ("warning: ", "note: ")
"""Starts of the lines in which a command remarks on a record."""
_LONGEST = 2000
"""Characters of a line that is shown."""
_GRACE_S = 120.0
"""Seconds that an ended command has to write what it measured."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One command that was carried out, or a recorded run in its place."""

    name: str
    command: str
    """As a person would type it."""
    exit_code: int
    seconds: float
    reason: str = ""
    """The last line in which it said why; empty for a pass without remarks."""
    document: Any = None
    """The JSON that it printed; None if it printed none."""
    altered: tuple[str, ...] = ()
    """The lines in which it named records that do not fit their seals."""


class Steps:
    """Carries out commands one after the other and keeps what came of them."""

    def __init__(self, folder: Path, echo: Callable[[str], None], command: Sequence[str] = (sys.executable, "-m", "fusebench")) -> None:
        self.done: list[Step] = []
        self._folder = folder
        self._echo = echo
        self._command = tuple(command)

    def run(self, name: str, arguments: Sequence[str], *, limit_s: float | None = None) -> Step:
        """`fusebench ARGUMENTS` in the project's folder; its stderr is shown line by line, harmless to GitHub's log.

        Args:
            limit_s: after this many seconds it is asked to end, and ended two minutes later; None waits.
        """
        shown = " ".join(("fusebench", *(_quoted(argument) for argument in arguments)))
        self._echo(f"$ {shown}")
        started = time.monotonic()
        reason, overdue, altered = "", False, list[str]()
        with tempfile.TemporaryFile() as out:
            process = subprocess.Popen(
                [*self._command, *arguments],
                cwd=self._folder,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            try:
                with _Deadline(process, limit_s) as deadline:
                    assert process.stderr is not None
                    for line in process.stderr:
                        safe = one_line(line, _LONGEST)
                        self._echo(safe)
                        reason = safe if line.startswith(_REASONS) else reason
                        altered += [safe.partition(": ")[2]] if ALTERED in line and line.startswith(_REMARKS) else []
                    code = process.wait()
                overdue = deadline.passed
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait(_GRACE_S)
            out.seek(0)
            document = _document(out.read())
        if overdue:
            code, reason = ExitCode.FAULT, f"error: ended after {limit_s:g} s, its limit"
        elif code < 0:
            code, reason = ExitCode.FAULT, f"error: ended by signal {-code}"
        return self.add(name, shown, code, reason, document=document, seconds=time.monotonic() - started, altered=tuple(altered))

    def add(
        self,
        name: str,
        command: str,
        exit_code: int,
        reason: str = "",
        *,
        document: Any = None,
        seconds: float = 0.0,
        altered: tuple[str, ...] = (),
    ) -> Step:
        """Keep a step that was carried out elsewhere, or could not be."""
        step = Step(
            name=name, command=command, exit_code=int(exit_code), seconds=seconds, reason=reason, document=document, altered=altered
        )
        self.done.append(step)
        self._echo(f"{name}: exit code {step.exit_code} after {seconds:.0f} s{': ' + reason if reason else ''}")
        return step


class _Deadline:
    """Asks a process to end when its time is up, and ends it when it does not."""

    def __init__(self, process: subprocess.Popen[str], limit_s: float | None) -> None:
        self.passed = False
        self._process = process
        self._timers = [] if limit_s is None else [threading.Timer(limit_s, self._ask), threading.Timer(limit_s + _GRACE_S, process.kill)]

    def __enter__(self) -> _Deadline:
        for timer in self._timers:
            timer.daemon = True
            timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()

    def _ask(self) -> None:
        self.passed = True
        self._process.terminate()


def _document(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _quoted(argument: str) -> str:
    import shlex

    return shlex.quote(argument)
