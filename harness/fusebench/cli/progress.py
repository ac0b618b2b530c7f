"""Progress on stderr: a live line on a terminal, one plain line per result elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer

from ..schema import FAILED_STATUSES, Case, Result
from .output import remark

if TYPE_CHECKING:
    from rich.status import Status as Spinner

    from ..runner.context import Reporter


def make_reporter() -> Reporter:
    """The reporter that suits stderr."""
    return LiveReporter() if sys.stderr.isatty() else PlainReporter()


class PlainReporter:
    """Plain lines, for logs."""

    def begin(self, cases: int) -> None:
        self._started = time.monotonic()

    def case(self, number: int, cases: int, case: Case, shape: str) -> None:
        self._say(f"[{number}/{cases}] {case.key}  {shape}  ({time.monotonic() - self._started:.0f} s)")

    def step(self, text: str, done: int = 0, total: int = 0) -> None: ...

    def result(self, result: Result) -> None:
        self.line(describe(result))

    def line(self, text: str, *, failed: bool = False) -> None:
        self._say(f"    {text}")

    def note(self, text: str) -> None:
        remark("note", text)

    def end(self) -> None:
        self._say(f"done in {time.monotonic() - self._started:.0f} s")

    def _say(self, text: str) -> None:
        typer.echo(text, err=True)


class LiveReporter:
    """A spinner with the current step; results that need attention stay on the screen."""

    def __init__(self) -> None:
        self._spinner: Spinner | None = None
        self._case = ""

    def begin(self, cases: int) -> None:
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

            counted = f" {done}/{total}" if total else ""
            self._spinner.update(Text(f"{self._case}  {text}{counted}"))

    def result(self, result: Result) -> None:
        self.line(describe(result), failed=result.status in FAILED_STATUSES)

    def line(self, text: str, *, failed: bool = False) -> None:
        if failed:
            self._console.print(f"{self._case}: {text}", style="red")

    def note(self, text: str) -> None:
        remark("note", text)

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
