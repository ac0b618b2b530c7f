"""Entry of a measuring process: `python -m fusebench.models.process_main TASK ANSWER`, both JSON files; progress goes to stderr.

ANSWER is replaced after each part of the work, so that whoever ends the process at any moment has the parts before.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from ..errors import FusebenchError
from ..store.files import write_file
from ..store.record_files import encode_record
from .work import ModelTask, work

REFUSED = "refused"
"""Key of an answer that is an error of usage: its message."""
MARK = "\x1eprogress "
"""Begins a line of stderr that is progress."""
_PR_SET_PDEATHSIG = 1
"""Linux's prctl option: the signal that the process gets when its parent dies (linux/prctl.h)."""


def main(arguments: list[str]) -> int:
    task = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ModelTask)
    answer = Path(arguments[1])
    try:
        found = work(
            task,
            lambda text: print(f"{MARK}{text}", file=sys.stderr, flush=True),
            lambda so_far: write_file(answer, encode_record(so_far)),
        )
    except FusebenchError as error:
        if answer.exists():  # it holds what was measured before
            print(error, file=sys.stderr, flush=True)
        else:
            write_file(answer, msgspec.json.encode({REFUSED: str(error), "exit_code": int(error.exit_code)}))
        return 1
    write_file(answer, encode_record(found))
    return 0


if __name__ == "__main__":
    with suppress(OSError, AttributeError):  # it is in a session of its own, where a closed terminal does not end it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.exit(main(sys.argv[1:]))
