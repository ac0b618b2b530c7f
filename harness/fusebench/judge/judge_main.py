"""Entry point of the judge's process: `python -m fusebench.judge.judge_main READ WRITE DEVICE`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(read_fd: int, write_fd: int, device: str) -> None:
    """Answer the command line's tasks until it closes its pipe."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from ..errors import FusebenchError
    from .channel.protocol import Channel, ChannelClosedError
    from .channel.tasks import TASKS, Expect, Finished, Unable
    from .confinement.isolation import protect
    from .starting import Starter

    protection = protect()
    channel = Channel(read_fd, write_fd)
    starter, judge = Starter(), None
    signal.signal(signal.SIGTERM, _end)
    try:
        while True:
            task = channel.receive(TASKS)
            starter.candidate_ahead(task)
            if judge is None:
                starter.baseline_ahead(task)
                from .judge import Judge  # imports torch, as the processes do meanwhile

                judge = Judge(device, protection, starter)
            if isinstance(task, Expect):
                continue
            try:
                channel.send(Finished(evaluation=judge.evaluate(task, channel.send)))
            except ChannelClosedError:
                raise
            except (FusebenchError, OSError) as error:
                channel.send(Unable(reason=str(error)))
    except ChannelClosedError:
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        starter.close()
        if judge is not None:
            judge.close()


def _end(number: int, frame: object) -> None:
    """Let the candidate end and its folder be removed, once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    code = 0
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    except SystemExit as ended:
        code = int(ended.code or 0)
    sys.stdout.flush()
    os._exit(code)  # nothing is left to do, and taking torch apart takes as long as half an import of it
