"""What a failure says about a candidate: exceptions, exit statuses and signals as statuses with a sentence."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from ..errors import FusebenchError
from ..runner.workers.cause import COMPILE_ERROR_NAMES
from ..schema.evaluation import EvaluationStatus

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


def of_exit(returncode: int | None, doing: str) -> CandidateError:
    """The failure of a process that ended during `doing`.

    A kill without a sender is the kernel's answer to a process that takes too much memory.
    """
    if returncode is None:
        return CandidateError(EvaluationStatus.CRASHED, f"its process closed the pipe to the judge during {doing}")
    if returncode >= 0:
        return CandidateError(EvaluationStatus.CRASHED, f"its process ended with exit status {returncode} during {doing}")
    name = signal.Signals(-returncode).name if -returncode in set(signal.Signals) else f"signal {-returncode}"
    status = EvaluationStatus.OUT_OF_MEMORY if name == "SIGKILL" else EvaluationStatus.CRASHED
    text = f"its process was killed by {name} during {doing}"
    return CandidateError(status, text + (", as the system does with one that takes too much memory" if name == "SIGKILL" else ""))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        seen.append(link)
        yield link
        link = link.__cause__ or link.__context__
