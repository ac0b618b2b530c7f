"""The form of a kernel's call, for checked and timed calls alike: tensors by position, the rest by name, no garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .kernel import Kernel
from .op import Op
from .signature import positional_names


def call_form(op: Op, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments and keywords of a call, as model code gives them."""
    positional = positional_names(op.schema)
    return tuple(arguments[name] for name in positional), {name: value for name, value in arguments.items() if name not in positional}


def bound_call(op: Op, kernel: Kernel, arguments: Mapping[str, Any]) -> Callable[[], Any]:
    """A no-argument callable that calls `kernel` as model code does: tensors by position, the rest by name."""
    values, keywords = call_form(op, arguments)
    return lambda: kernel(*values, **keywords)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Stop garbage collection, as `timeit` does.  A collection would stop the host in the middle of a call, and would walk every profiler
    record again and again (a fifth of the cost of a timed call)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
