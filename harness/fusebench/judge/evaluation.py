"""One evaluation, from a request to its document."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from ..schema import Case
from ..schema.evaluation import Evaluation, Stage

if TYPE_CHECKING:
    from ..device.select import Device
    from ..runner.context import Reporter


class EvaluationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to judge, and how much it may cost."""

    roots: tuple[Path, ...]
    """Kernel folders of the project, whose ops, references and split chains are trusted."""
    file: Path
    """The candidate: read once, digested, and judged as a module of the op's folder. It is never imported by the caller."""
    op: str
    cases: tuple[Case, ...]
    """Cases that the user selected; the stage draws from them."""
    stage: Stage
    seconds: float
    """Wall time of the whole evaluation."""
    memory_bytes: int | None = None
    """Host memory that the candidate's processes may take; None for the judge's default."""


class Evaluator:
    """Judges one candidate after another on one device; the judge's and the baseline's processes stay alive in between.

    Candidates are always fresh processes.  Not thread-safe: one evaluation at a time.  `close` ends every process; `stop`, from another
    thread or a signal handler, ends the candidate of the evaluation in progress, which then ends as `undecided`.
    """

    def __init__(self, device: Device) -> None:
        self.device = device

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def evaluate(self, request: EvaluationRequest, reporter: Reporter | None = None) -> Evaluation:
        """Judge one candidate; never raises for what the candidate does."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the evaluation in progress."""
        raise NotImplementedError

    def close(self) -> None:
        """End every process."""


def evaluate(request: EvaluationRequest, device: Device, reporter: Reporter | None = None) -> Evaluation:
    """One evaluation by an `Evaluator` of its own."""
    with Evaluator(device) as evaluator:
        return evaluator.evaluate(request, reporter)
