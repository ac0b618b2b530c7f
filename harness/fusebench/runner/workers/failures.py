"""The failures of a run so far: which kernels and files are called no more, and why.

A failure whose cause cannot change is not waited for in every case, and a kernel that takes processes down does so twice at most.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from ...schema import Status
from .protocol import Failure

MOST_LOST = 2
"""Cases in which a kernel may take processes down, or hang, before it is called no more: each costs the start of another process, and a
first hang its whole limit of silence.  After one case it is called again, because a kernel may fail for one shape and work for the next."""
SAME_CAUSE = 2
"""Failures with the same words after which a kernel that does not compile, or whose library is absent, is called no more."""
UNCHANGING = ("ImportError: ", "ModuleNotFoundError: ", "it asked its process to end ")
"""Beginnings of reasons that no case changes."""
SHORTER = 10
"""After a kernel hung once, it gets this fraction of the limit of silence."""
SHORTEST_S = 5.0


class _Known(msgspec.Struct, frozen=True):
    case: str
    failure: Failure


class FailureLog:
    """Failures by kernel and by file; workers of several threads share one."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._kernels: dict[str, list[_Known]] = {}
        self._files: dict[str, Failure] = {}
        self._own: set[str] = set()

    def note(self, kernel: str, case: str, failure: Failure) -> None:
        """Keep the failure of a kernel on a case, by its key."""
        with self._guard:
            self._kernels.setdefault(kernel, []).append(_Known(case, failure))

    def taken_over(self, kernel: str, case: str) -> Failure | None:
        """The failure that a kernel has on `case` without being called; None if it is to be called."""
        with self._guard:
            known = list(self._kernels.get(kernel, ()))
        known = [one for one in known if one.case != case]
        if not known:
            return None
        last = known[-1]
        lost = [one for one in known if one.failure.lost]
        if last.failure.tampered:
            why = f"not called again, because in case {last.case} {last.failure.reason}"
        elif len({one.case for one in lost}) >= MOST_LOST:
            why = f"not called again, because it took down {len(lost)} worker processes; in case {lost[-1].case}: {lost[-1].failure.reason}"
            last = lost[-1]
        elif _cannot_change(last.failure) and len([one for one in known if one.failure.reason == last.failure.reason]) >= SAME_CAUSE:
            why = f"as in case {last.case}: {last.failure.reason}"
        else:
            return None
        return Failure(status=last.failure.status, reason=why, kernel=kernel)

    def absolve(self, kernel: str, case: str) -> None:
        """Forget the failures of a kernel on a case: another kernel caused them."""
        with self._guard:
            self._kernels[kernel] = [one for one in self._kernels.get(kernel, ()) if one.case != case]

    def spoiling(self, kernel: str, case: str) -> Failure | None:
        """The failure of a kernel that spoiled its process for others in a case, although its own check may have passed."""
        with self._guard:
            known = self._kernels.get(kernel, ())
        return next((one.failure for one in known if one.case == case and one.failure.tampered), None)

    def is_own(self, kernel: str) -> bool:
        """Whether a process that had called nothing else has shown that the kernel fails by itself."""
        with self._guard:
            return kernel in self._own

    def note_own(self, kernel: str) -> None:
        """Keep that the kernel fails by itself."""
        with self._guard:
            self._own.add(kernel)

    def silence_s(self, kernel: str, usual: float) -> float | None:
        """The limit of silence of a kernel that hung before; None for the usual one."""
        with self._guard:
            hung = any(one.failure.status is Status.HUNG for one in self._kernels.get(kernel, ()))
        return shorter(usual) if hung else None

    def exclude(self, file: str, failure: Failure) -> bool:
        """Import a kernel file no more; False if it was left out before."""
        with self._guard:
            if file in self._files:
                return False
            self._files[file] = failure
            return True

    def excluded(self) -> dict[str, str]:
        """Files that are not imported, each with the reason."""
        with self._guard:
            return {file: failure.reason for file, failure in self._files.items()}

    def of_file(self, file: str) -> Failure | None:
        """The failure of a kernel because of its file, or of the definition of its op beside it."""
        with self._guard:
            for one in (Path(file), Path(file).with_name("op.py")):
                if (found := self._files.get(str(one))) is not None:
                    return msgspec.structs.replace(found, reason=f"when {one.name} was imported, {found.reason}")
        return None


def shorter(usual: float) -> float:
    """The limit of silence for a kernel that hung, in seconds; `usual` is everybody's."""
    return max(usual / SHORTER, min(usual, SHORTEST_S))


def _cannot_change(failure: Failure) -> bool:
    return failure.status is Status.COMPILE_ERROR or failure.reason.startswith(UNCHANGING)
