"""How kernel code launches a Triton function so that a trace, a replay or a machine-code listener sees the launch.

Also answers the two questions kernels and argument checks ask about the process: is Triton interpreting, is torch tracing an operator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .launches.machine_code import current_listener
from .launches.replay import Watched, current_recorder

_tracing: ContextVar[bool] = ContextVar("fusebench_tracing", default=False)


def interpreting() -> bool:
    """Whether Triton kernels run in the interpreter in this process (`TRITON_INTERPRET=1`)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def launchable(jit_function: Any) -> Any:
    """`jit_function`, wrapped when a trace of its torch operator, a replay or a machine-code listener must see the launch.

    Kernel authors write `launchable(_kernel)[grid](...)`. Without an observer this returns `jit_function` itself.
    """
    if not _tracing.get():
        recorder = current_recorder()
        if recorder is not None:
            return recorder.watch(jit_function)
        return jit_function if current_listener() is None else Watched(jit_function, None)
    return _Traced(jit_function)


class _Traced:
    """A Triton function whose launch torch traces. Sizes that are constants of its code must not be symbols."""

    def __init__(self, jit_function: Any) -> None:
        self._jit_function = jit_function
        self._constants = {parameter.name for parameter in jit_function.params if parameter.is_constexpr}

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        import torch

        launch = torch.library.wrap_triton(self._jit_function)[grid]

        def fixed(*args: Any, **kwargs: Any) -> Any:
            sizes = {name: int(kwargs[name]) for name in self._constants if isinstance(kwargs.get(name), torch.SymInt)}
            return launch(*args, **(kwargs | sizes))

        return fixed


def tracing() -> bool:
    """Whether torch is tracing a fused kernel's operator: it then accepts only `num_warps` and `num_stages` as launch options."""
    return _tracing.get()


@contextmanager
def trace() -> Iterator[None]:
    """Mark the block as the trace of a fused kernel's operator."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)
