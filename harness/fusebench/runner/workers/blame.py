"""Whose failure is it?  No kernel is blamed for what another one did to the process that both were called in.

A kernel that fails in a process that has called others is tried again in one that has not. If it passes there, an earlier kernel spoiled
the process: the one is looked for, by halves, whose calls before it make it fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ...schema import Status
from .failures import FailureLog, shorter
from .process import WorkerProcess
from .protocol import Checked, CheckTask, Failure, Progress, Reply


class Fair(msgspec.Struct, frozen=True):
    """A reply to a check, and the earlier kernel that had spoiled the process."""

    reply: Reply
    disturber: str = ""
    """The kernel that made another one fail; empty if there is none, or if it was not found."""
    remark: str = ""
    """The failure that was not the kernel's own, in words; empty if there was none."""


def ask_fairly(worker: WorkerProcess, task: CheckTask, failures: FailureLog, on_progress: Callable[[Progress], None]) -> Fair:
    """The reply to a check, which is the kernel's own doing; a kernel that is known to fail is not called."""
    kernel, key = task.kernel, task.case.key
    if (known := failures.taken_over(kernel, key)) is not None:
        return Fair(known)
    task = msgspec.structs.replace(task, silence_s=failures.silence_s(kernel, worker.silence_s))
    before = worker.called_before(kernel)
    reply = worker.ask(task, on_progress)
    if not _is_failure(reply):
        return Fair(reply)
    if (gone := _device_gone(worker, reply)) is not None:
        return Fair(gone)
    _note(failures, task, reply)
    if isinstance(reply, Failure) and (reply.tampered or reply.unfit):
        return Fair(reply)
    if not before or failures.is_own(kernel):
        failures.note_own(kernel)
        return Fair(reply)
    return _tried_alone(worker, task, failures, on_progress, first=reply, before=before)


def _device_gone(worker: WorkerProcess, reply: Reply) -> Failure | None:
    """The failure of a device that no process can use any more; then no kernel is to blame."""
    if not isinstance(reply, Failure) or not (reply.broken or reply.lost):
        return None
    start = worker.until_ready()
    return start if start is not None and start.unfit else None


def _tried_alone(
    worker: WorkerProcess,
    task: CheckTask,
    failures: FailureLog,
    on_progress: Callable[[Progress], None],
    *,
    first: Reply,
    before: Sequence[str],
) -> Fair:
    """The reply of a process that has called no other kernel; where it passes there, who of `before` spoiled the first process."""
    kernel, key = task.kernel, task.case.key
    hung = isinstance(first, Failure) and first.status is Status.HUNG
    alone = msgspec.structs.replace(task, silence_s=shorter(worker.silence_s) if hung else task.silence_s)
    worker.renew()
    second = worker.ask(alone, on_progress)
    if _is_failure(second):
        failures.note_own(kernel)
        _note(failures, task, second)
        return Fair(first if hung else second)
    failures.absolve(kernel, key)

    def spoiled_by(suspects: Sequence[str]) -> bool:
        worker.renew()
        for suspect in suspects:
            worker.ask(msgspec.structs.replace(task, kernel=suspect), on_progress)
        return _is_failure(worker.ask(alone, on_progress))

    remark = f"{kernel} failed in a process that had called {', '.join(before)} before, and not in a process of its own: {_words(first)}"
    disturber = search(before, spoiled_by)
    worker.renew()
    if disturber:
        reason = f"it spoils its process for others: {kernel} fails after it, and not without it: {_words(first)}"
        failures.note(disturber, key, Failure(status=Status.CRASHED, reason=reason, kernel=disturber, tampered=True))
    return Fair(second, disturber, remark)


def search(suspects: Sequence[str], spoiled_by: Callable[[Sequence[str]], bool]) -> str:
    """The one of `suspects` that spoils the process by itself, found by halves; empty if there is none.

    Many together may spoil what none of them does, as by the memory that their buffers take: then none is to blame.
    """
    left = list(suspects)
    if not left or not spoiled_by(left):
        return ""
    seen = True
    """Whether `left` was seen to spoil; otherwise it follows from the other half, which did not."""
    while len(left) > 1:
        half = left[: len(left) // 2]
        seen = spoiled_by(half)
        left = half if seen else left[len(half) :]
    return left[0] if seen or spoiled_by(left) else ""


def _is_failure(reply: Reply) -> bool:
    return isinstance(reply, Failure) or (isinstance(reply, Checked) and not reply.accuracy.passed)


def _note(failures: FailureLog, task: CheckTask, reply: Reply) -> None:
    if isinstance(reply, Failure):
        failures.note(task.kernel, task.case.key, reply)


def _words(reply: Reply) -> str:
    return reply.reason if isinstance(reply, Failure) else reply.accuracy.reason if isinstance(reply, Checked) else ""
