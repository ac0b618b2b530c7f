"""Progress on stderr: a live line on a terminal, one plain line per result elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer

from ...schema import FAILED_STATUSES, Case, Result, Status
from .output import remark

if TYPE_CHECKING:
    from rich.status import Status as Spinner


def make_reporter() -> PlainReporter | LiveReporter:
    """The reporter that suits stderr."""
    return LiveReporter() if sys.stderr.isatty() else PlainReporter()


class _Notes:
    """Notes on stderr, and the ones that came before the measurement began."""

    def __init__(self) -> None:
        self.opening: set[str] = set()
        self._begun = False

    def begin(self) -> None:
        self._begun = True

    def note(self, text: str) -> None:
        if not self._begun:
            self.opening.add(text)
        remark("note", text)


class _Absent:
    """Kernels that cannot run on this machine: counted, and named once at the end instead of once per case."""

    def __init__(self) -> None:
        self._kernels: dict[str, None] = {}
        self._results = 0

    def takes(self, result: Result) -> bool:
        if result.status is not Status.NOT_RUNNABLE:
            return False
        self._kernels[result.kernel.partition("/")[2] or result.kernel] = None
        self._results += 1
        return True

    def line(self) -> str:
        pairs = f"{self._results} kernel-case pair{'' if self._results == 1 else 's'}"
        return f"not runnable here ({pairs}): {', '.join(self._kernels)}" if self._results else ""


class PlainReporter(_Notes):
    """Plain lines, for logs."""

    def __init__(self) -> None:
        super().__init__()
        self._absent = _Absent()

    def begin(self) -> None:
        super().begin()
        self._started = time.monotonic()

    def case(self, number: int, cases: int, case: Case, shape: str) -> None:
        self._say(f"[{number}/{cases}] {case.key}  {shape}  ({time.monotonic() - self._started:.0f} s)")

    def step(self, text: str, done: int = 0, total: int = 0) -> None: ...

    def result(self, result: Result) -> None:
        if not self._absent.takes(result):
            self.line(describe(result))

    def line(self, text: str, *, failed: bool = False) -> None:
        self._say(f"    {text}")

    def end(self) -> None:
        if line := self._absent.line():
            self._say(line)
        self._say(f"done in {time.monotonic() - self._started:.0f} s")

    def _say(self, line: str) -> None:
        from ...report.escape import text

        typer.echo(text(line), err=True)


class LiveReporter(_Notes):
    """A spinner with the current step; results that need attention stay on the screen."""

    def __init__(self) -> None:
        super().__init__()
        self._spinner: Spinner | None = None
        self._case = ""

    def begin(self) -> None:
        super().begin()
        from rich.console import Console

        self._console = Console(stderr=True, markup=False, highlight=False)
        self._spinner = self._console.status("starting")
        self._spinner.start()

    def case(self, number: int, cases: int, case: Case, shape: str) -> None:
        self._case = f"[{number}/{cases}] {case.key}  {shape}"
        self.step("")

    def step(self, text: str, done: int = 0, total: int = 0) -> None:
        if self._spinner is not None:
            from rich.text import Text

            from ...report.escape import text as safe

            counted = f" {done}/{total}" if total else ""
            shown = "  ".join(part for part in (self._case, f"{text}{counted}") if part)
            self._spinner.update(Text(safe(shown), no_wrap=True, overflow="ellipsis"))

    def result(self, result: Result) -> None:
        if result.status in FAILED_STATUSES:
            self.line(describe(result), failed=True)

    def line(self, text: str, *, failed: bool = False) -> None:
        if failed:
            from ...report.escape import text as safe

            self._console.print(safe(f"{self._case}: {text}"), style="red")
        else:
            self.step(text)

    def end(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()


def describe(result: Result) -> str:
    """One line: kernel, status, time or reason."""
    words = [result.kernel, result.status.value]
    if result.measurement is not None:
        words.append(f"{result.measurement.time_us.value:.2f} us")
        if result.measurement.speedup is not None:
            words.append(f"{result.measurement.speedup.value:.2f}x")
    if result.reason:
        words.append(f"({result.reason})")
    return "  ".join(words)
