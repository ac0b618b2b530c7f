"""How long the judge waits for an answer: CPU time that the process got is progress, so a slow compiler on a busy machine is no hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..schema.evaluation import EvaluationStatus
from .failures import CandidateError
from .phases import Phases

LOOK_S = 1.0
"""Wall time between two looks at the CPU time of a process whose answer is missing; most answers come before the first."""
HUNG_AFTER_S = 5.0
"""A process that made progress within so many seconds of the deadline did not hang: the budget was too small."""
_PROGRESS_SHARE = 0.02
"""Least share of a processor that is progress: a tree that sleeps uses less, and one among forty that compute gets more."""
_BUDGET_SHARE, _COMPILE_S = 0.5, 60.0
"""CPU time from which a first call without an answer is a loop rather than a compiler when the budget ends, as a share of the whole budget
and at most: torch.compile of an op's chain takes some 20 s.  With a larger budget a loop is `hung` on a busy machine, too."""
_PATIENCE, _LEAST_ANSWER_S, _FIRST_IDLE_S = 30.0, 15.0, 60.0


@dataclass(frozen=True)
class Patience:
    """How long the judge waits for one answer."""

    deadline: float
    """As `time.monotonic` has it."""
    idle_s: float = 120.0
    """Wall time without progress after which the process hangs."""
    busy_s: float = float("inf")
    """CPU time after which it hangs."""
    spent_s: float = float("inf")
    """CPU time from which it counts as hung, not as short of time, if the deadline comes."""


@dataclass
class Limits:
    """How long the judge waits within one evaluation."""

    deadline: float
    """Of the evaluation, as `time.monotonic` has it."""
    longest_s: float = 0.0
    """Wall time of the longest batch so far."""
    phases: Phases = field(default_factory=Phases)
    """Where the time went."""

    def __post_init__(self) -> None:
        self._whole_s = self.deadline - time.monotonic()
        self._answer_s = _FIRST_IDLE_S

    def learn(self, seconds: float) -> None:
        """Take a batch's time into account: later ones of its shape are compiled, and get `_PATIENCE` times the longest so far."""
        self.longest_s = max(self.longest_s, seconds)
        self._answer_s = max(_LEAST_ANSWER_S, _PATIENCE * self.longest_s)

    def first(self, idle_s: float = _FIRST_IDLE_S) -> Patience:
        """For a request that may compile: an import, a question about a shape, a first call of a shape.  The budget bounds its CPU time.

        Args:
            idle_s: wall time without progress after which it hangs.
        """
        return Patience(self.deadline, idle_s=idle_s, spent_s=min(_BUDGET_SHARE * self._whole_s, _COMPILE_S))

    def later(self) -> Patience:
        """For calls of a shape that has been called before."""
        return Patience(self.deadline, idle_s=self._answer_s, busy_s=self._answer_s, spent_s=max(HUNG_AFTER_S, _PATIENCE * self.longest_s))

    def require_time(self) -> None:
        """Raise CandidateError (`undecided`) once the budget has ended."""
        if time.monotonic() >= self.deadline:
            raise CandidateError(EvaluationStatus.UNDECIDED, "the budget ended first; raise --budget")


class Waiting:
    """The progress of a process while its answer is missing."""

    def __init__(self, patience: Patience, cpu_ns: Callable[[], int]) -> None:
        """`cpu_ns`: CPU time that the process and all that it started have used."""
        self._patience, self._cpu_ns = patience, cpu_ns
        self._began = self._looked = self._moved = time.monotonic()
        self._cpu: int | None = None
        self._busy_s = 0.0

    @property
    def next_look(self) -> float:
        """When to look next, as `time.monotonic` has it."""
        return min(self._patience.deadline, time.monotonic() + LOOK_S)

    def look(self, doing: str) -> CandidateError | None:
        """The failure of a process without an answer to `doing`: `hung`, or `undecided` at the deadline; None to wait on."""
        patience, now, cpu = self._patience, time.monotonic(), self._cpu_ns()
        if self._cpu is not None:
            # Several threads progress no faster than one here: a limit in seconds means the same for every kernel.
            worked = min((cpu - self._cpu) / 1e9, now - self._looked)
            self._busy_s += max(0.0, worked)
            if worked > _PROGRESS_SHARE * (now - self._looked):
                self._moved = now
        self._cpu, self._looked = cpu, now
        ended, waited, idle = now >= patience.deadline, now - self._began, now - self._moved
        if idle >= (HUNG_AFTER_S if ended else patience.idle_s):
            return CandidateError(EvaluationStatus.HUNG, f"no answer for {waited:.0f} s during {doing}, and no progress for {idle:.0f} s")
        had = f"after {waited:.0f} s with {self._busy_s:.0f} s of CPU time"
        if self._busy_s >= (patience.spent_s if ended else patience.busy_s):
            more = "; raise --budget if it compiles for so long" if ended else ""
            return CandidateError(EvaluationStatus.HUNG, f"no answer to {doing} {had}{more}")
        if ended:
            return CandidateError(EvaluationStatus.UNDECIDED, f"the budget ended during {doing}, {had}; raise --budget")
        return None
