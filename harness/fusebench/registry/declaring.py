"""The list that declarations go into while a file is being loaded.

A decorator cannot know which collection its file belongs to; the loader can.  It opens a recording around the import, and
every `@kernel` and `@define_op` that runs inside is kept in order, even two that share a Python name.  Outside a recording a
declaration is simply an object: importing a kernel file in a unit test has no side effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_recording: ContextVar[list[Any] | None] = ContextVar("fusebench_declarations", default=None)


@contextmanager
def recording() -> Iterator[list[Any]]:
    """Collect what is declared inside the block."""
    declared: list[Any] = []
    token = _recording.set(declared)
    try:
        yield declared
    finally:
        _recording.reset(token)


def record(declaration: Any) -> None:
    """Keep `declaration` if a recording is open."""
    declared = _recording.get()
    if declared is not None:
        declared.append(declaration)
