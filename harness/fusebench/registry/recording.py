"""The declarations that run while a file is imported, for the loader that imports it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_recording: ContextVar[list[Any] | None] = ContextVar("fusebench_declarations", default=None)


@contextmanager
def recording() -> Iterator[list[Any]]:
    """Collect, in order, every `@kernel` and `@define_op` that runs inside the block.

    A decorator does not know which collection its file belongs to; the loader does. Outside a recording a declaration has no side effect,
    so a unit test can import a kernel file.
    """
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
