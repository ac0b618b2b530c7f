"""Entry of a measuring process: `python -m fusebench.models.process_main TASK ANSWER`, both JSON files; progress goes to stderr."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from ..errors import FusebenchError
from ..store.record_files import encode_record
from .work import ModelTask, work

REFUSED = "refused"
"""Key of an answer that is an error of usage: its message."""
MARK = "\x1eprogress "
"""Begins a line of stderr that is progress."""


def main(arguments: list[str]) -> int:
    task = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ModelTask)
    answer = Path(arguments[1])
    try:
        found = work(task, lambda text: print(f"{MARK}{text}", file=sys.stderr, flush=True))
    except FusebenchError as error:
        answer.write_bytes(msgspec.json.encode({REFUSED: str(error), "exit_code": int(error.exit_code)}))
        return 1
    answer.write_bytes(encode_record(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
