"""A case timed again in fresh processes, since what one process said of it is in doubt."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..workers.pool import WorkerPool
from ..workers.process import WorkerProcess
from ..workers.protocol import Failure, Measured, MeasureTask
from .precision import LOOKS, again

PROCESSES = LOOKS[0]
"""Fresh processes that measure a case in doubt: the fewest whose interval holds the truth as often as it says, as for a precision."""
MOST_CASES = 16
"""Cases in doubt that are measured again, at most: each takes an H200 some 12 s.  Where more are slower, it is no process' mood."""


def look_again(
    task: MeasureTask, pool: WorkerPool, *, ask: Callable[[MeasureTask, WorkerProcess, str], Measured | Failure]
) -> list[Measured] | Failure:
    """What each fresh process says of the case, in order, its samples numbered from 1 on; or the first failure.

    Args:
        task: the measurement that is in doubt, with the timer that it was made with.
        ask: puts a task to a worker, with what it does in words, and answers when nothing disturbed it.
    """
    replies: list[Measured] = []
    for number, worker in enumerate(pool.fresh(PROCESSES), start=1):
        reply = ask(again(task, task.timer), worker, f"measure again in fresh process {number} of {PROCESSES}")
        if isinstance(reply, Failure):
            return msgspec.structs.replace(reply, reason=f"in fresh process {number}: {reply.reason}")
        replies.append(reply.numbered(number))
    return replies
