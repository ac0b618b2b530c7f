"""What the runner says while it works; how that is shown is the command line's business."""

from __future__ import annotations

from typing import Protocol

from ..schema import Case, Result


class Reporter(Protocol):
    """Receives progress.  Every method may be called often; none may raise."""

    def begin(self, cases: int) -> None:
        """The run starts."""

    def case(self, number: int, cases: int, case: Case, shape: str) -> None:
        """Case `number` (from 1) starts."""

    def step(self, text: str, done: int = 0, total: int = 0) -> None:
        """What is being done within the case, `done` of `total` where that is known."""

    def result(self, result: Result) -> None:
        """A kernel's result on a case is final."""

    def line(self, text: str, *, failed: bool = False) -> None:
        """Something of the case is final, in words; `failed` asks for attention."""

    def note(self, text: str) -> None:
        """Something that a reader should know."""

    def end(self) -> None:
        """The run is over, whatever became of it."""
