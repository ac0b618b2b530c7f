"""What of the harness a candidate replaced in its own process: clocks, torch's functions, the collector, the harness's own modules.

It proves nothing for a candidate that also replaces this check; the judge's other checks need no honesty of the process.  It names the
culprit where a candidate patches what it can reach, and it keeps honest kernels from being measured by a patched harness.
"""

from __future__ import annotations

import builtins
import gc
import inspect
import sys
import threading
import time
from types import FunctionType
from typing import Any

import torch
from torch import _C

_WATCHED = (
    ("builtins", builtins, "isinstance type getattr len max min sum zip enumerate all any int tuple list dict"),
    ("time", time, "perf_counter perf_counter_ns monotonic process_time_ns thread_time_ns sleep"),
    ("gc", gc, "collect disable enable"),
    ("torch", torch, "empty empty_like zeros frombuffer sum equal allclose isclose is_tensor"),
    ("torch.Tensor", torch.Tensor, "copy_ clone data_ptr untyped_storage numel stride fill_"),
    ("torch.cuda", torch.cuda, "synchronize Event current_stream Stream"),
    ("torch.autograd.profiler", torch.autograd.profiler, "profile _prepare_profiler _enable_profiler _disable_profiler"),
    ("threading", threading, "Thread"),
)
_HOOKS = frozenset({"sys.setprofile", "sys.settrace", "sys.monitoring.register_callback"})


class Tampering:
    """Remembers the functions that the harness and its timers use; made before the candidate's file is loaded."""

    def __init__(self) -> None:
        watched: list[tuple[str, Any, str]] = [(where, owner, name) for where, owner, names in _WATCHED for name in names.split()]
        harness = [module for name, module in sorted(sys.modules.items()) if name.startswith("fusebench.") and module is not None]
        for module in harness:
            names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("__")]
            watched += [(module.__name__, module, name) for name in names]
        self._watched = [(where, owner, name, getattr(owner, name, None)) for where, owner, name in watched]
        self._classes = [
            (f"{value.__module__}.{value.__qualname__}.{key}", value, key, member)
            for value in {id(value): value for module in harness for value in vars(module).values() if _ours(value)}.values()
            for key, member in vars(value).items()
            if callable(member)
        ]
        functions = [found for *_, found in self._watched] + [member for *_, member in self._classes]
        # Once each, since most modules import functions of others, and spelled out in `_replaced`: all of it is read after every batch.
        plain = {id(one): one for one in map(_plain_function, functions) if one is not None}
        self._code = [(one, one.__code__, one.__defaults__, one.__kwdefaults__) for one in plain.values()]
        self._modes = _modes()
        self._methods = dict(vars(torch.Tensor))
        self._collections = list(gc.callbacks)
        self._hooks: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        # A hook of the interpreter runs the kernel's code between two lines of the harness, and may be gone when somebody looks for it.
        if event in _HOOKS:
            self._hooks.append(event)

    def found(self) -> str:
        """The first replacement, in words; empty if there is none."""
        if replaced := self._replaced():
            return replaced
        if _modes() != self._modes:
            return "a dispatch or function mode of torch was left on"
        if self._hooks:
            return f"{self._hooks[0]} was called, whose hook runs between the harness's own lines"
        if gc.callbacks != self._collections:
            return "a function was put into gc.callbacks, which runs between the calls"
        now = vars(torch.Tensor)
        # A name that is new hides a method of the class beneath, which is written in C and cannot be replaced itself.
        names = {name for name, value in self._methods.items() if callable(value) and now.get(name) is not value}
        names |= {name for name in now.keys() - self._methods.keys() if hasattr(_C.TensorBase, name)}
        return f"torch.Tensor.{min(names)} was replaced" if names else ""

    def _replaced(self) -> str:
        """The first function, or code of one, that is not what it was."""
        for where, owner, name, before in self._watched:
            if getattr(owner, name, None) is not before:
                return f"{where}.{name} was replaced"
        for name, owner, key, member in self._classes:
            if vars(owner).get(key) is not member:
                return f"{name} was replaced"
        for function, code, defaults, keywords in self._code:  # a function can be given other code while it stays the same function
            if function.__code__ is not code or function.__defaults__ is not defaults or function.__kwdefaults__ is not keywords:
                return f"the code of {function.__module__}.{function.__qualname__} was replaced"
        return ""


def _ours(value: Any) -> bool:
    return isinstance(value, type) and value.__module__.startswith("fusebench.")


def _plain_function(value: Any) -> FunctionType | None:
    """The Python function behind a function, a method or a property; None if it is written in C."""
    value = getattr(value, "__func__", getattr(value, "fget", value))
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None


def _modes() -> tuple[int, int]:
    return _C._len_torch_dispatch_stack(), _C._len_torch_function_stack()
