"""What a failure says about a candidate: exceptions, exit statuses and signals as statuses with a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import FusebenchError
from ..runner.workers.worker.cause import COMPILE_ERROR_NAMES
from ..schema.evaluation import EvaluationStatus
from .confinement.outcome import Cause, Outcome

_OUTCOMES = {Cause.HUNG: EvaluationStatus.HUNG, Cause.OUT_OF_MEMORY: EvaluationStatus.OUT_OF_MEMORY}
_MEMORY_NAMES = frozenset({"OutOfMemoryError", "MemoryError"})


class CandidateError(FusebenchError):
    """The candidate failed; the evaluation of the case ends with this status and reason."""

    def __init__(self, status: EvaluationStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def status_of(error: BaseException) -> EvaluationStatus:
    """The status of a kernel that raised `error`."""
    names = {kind.__name__ for link in _chain(error) for kind in type(link).__mro__}
    texts = " ".join(str(link)[:500] for link in _chain(error))
    if names & _MEMORY_NAMES or "can't allocate memory" in texts or "out of memory" in texts:
        return EvaluationStatus.OUT_OF_MEMORY
    return EvaluationStatus.COMPILE_ERROR if names & COMPILE_ERROR_NAMES else EvaluationStatus.CRASHED


def of_outcome(outcome: Outcome, doing: str) -> CandidateError:
    """The failure of a process that ended during `doing`."""
    return CandidateError(_OUTCOMES.get(outcome.cause, EvaluationStatus.CRASHED), f"its process {outcome.describe()} during {doing}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        seen.append(link)
        yield link
        link = link.__cause__ or link.__context__
