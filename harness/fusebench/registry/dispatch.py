"""`dispatch`: a callable for model code that always works and reports which kernel it chose, and why.

`torch.compile(fullgraph=True)` traces the callable (see `registry.traced`); `registry.counting` counts its calls by kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from ..schema import Role
from .collection import Collection, load_collection
from .counting import Selection, counting
from .kernel import Kernel, reason_not_runnable
from .launching import trace
from .op import Op
from .repeats import Layout, Repeats
from .replay import MOST_LAYOUTS, Call, aligned, describe_call, repeat
from .traced import operator_of


class _Known:
    """The choice for calls of one layout, and the launches that repeat such a call, once they are recorded."""

    __slots__ = ("kernel", "layout", "selection")

    def __init__(self, kernel: Kernel, selection: Selection) -> None:
        self.kernel = kernel
        self.selection = selection
        self.layout: Layout | None = None


class Dispatcher:
    """Callable with the arguments of the op.  In-place ops overwrite their arguments and return them as a tuple."""

    def __init__(self, collection: Collection, op: Op, prefer: Role) -> None:
        from torch.compiler import is_compiling

        self.op = op
        self.prefer = prefer
        self.roots = collection.roots
        self.candidates = _in_order(collection, op, prefer)
        """Kernels in the order in which they are tried."""
        self._fallback = collection.kernel(f"{op.name}/{op.split_reference}")
        self._chosen: dict[tuple[Any, str], tuple[Kernel, Selection]] = {}
        self._seen: dict[tuple[Any, ...], _Known] = {}
        """Earlier choices, by the layouts of a call's arguments. A repeated call pays for this look-up."""
        self._repeats = Repeats(op.output_places if op.in_place else None)
        """Repeats calls whose choice and launches are recorded, without describing them. Whoever changes a choice clears it."""
        self._eager = self._repeats.before(self._plain)
        self._is_compiling = is_compiling
        self._in_graph = operator_of(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_compiling():
            return self._in_graph(*args, **kwargs)
        if counting.calls is not None:
            return self._plain(args, kwargs, write=False, counted=True)
        return self._eager(args, kwargs)

    def call_uncounted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An eager call that `count_calls` does not see: a graph that calls the dispatcher is counted as a whole."""
        return self._eager(args, kwargs)

    def _plain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], write: bool, *, counted: bool = False) -> Any:
        """A call that is described first.

        Args:
            write: whether to write a function that repeats it.
        """
        call = describe_call(args, kwargs)
        known = self._select(call, args, kwargs)
        if counted and counting.calls is not None:
            counting.calls[known.selection] += 1
        return self._run(known, call, args, kwargs, write=write)

    def explain(self, *args: Any, **kwargs: Any) -> Selection:
        """The kernel that a call with these arguments would run, and why."""
        return self._select(describe_call(args, kwargs), args, kwargs).selection

    @property
    def fallbacks(self) -> list[Selection]:
        """Every distinct fallback that calls so far have taken, eager and traced."""
        return [selection for _, selection in self._chosen.values() if selection.fallback]

    def select_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Kernel, Selection]:
        """The choice for fake tensors, whose sizes may be symbols. Sizes that a kernel's `supports` reads become guards of the trace."""
        with trace():
            self.op.fix_widths(args, kwargs)
            params, device = self.op.params_of(*args, **kwargs), self.op.device_of(*args, **kwargs)
            try:
                hash(params)
            except TypeError:  # symbolic sizes: the choice itself stands for them
                found = self._choose(params, device)
                return self._chosen.setdefault((found[1], device), found)
            return self._choose_once(params, device)

    def _run(self, known: _Known, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, write: bool) -> Any:
        kernel, layout = known.kernel, known.layout
        if layout is not None and kernel.replays and aligned(call):
            if write:
                self._repeats.add(layout, args, kwargs)
            returned = repeat(layout, call.addresses)
        else:
            returned = kernel.call_described(call, args, kwargs)
            if kernel.replays:
                known.layout = kernel.recorded(call)
        return self.op.handed_back(returned, args, kwargs) if self.op.in_place else returned

    def _select(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Known:
        try:
            return self._seen[call.layouts]
        except (KeyError, TypeError):  # a new layout, or an unhashable argument, which `params_of` refuses by name
            params, device = self.op.params_of(*args, **kwargs), self.op.device_of(*args, **kwargs)
        if len(self._seen) >= MOST_LAYOUTS:
            self._seen.clear()
        known = self._seen[call.layouts] = _Known(*self._choose_once(params, device))
        return known

    def _choose_once(self, params: Any, device: str) -> tuple[Kernel, Selection]:
        key = (params, device)
        if key not in self._chosen:
            self._chosen[key] = self._choose(params, device)
        return self._chosen[key]

    def _choose(self, params: Any, device: str) -> tuple[Kernel, Selection]:
        declined: list[tuple[str, str]] = []
        for kernel in self.candidates:
            part = f"covers only a part of the op: {kernel.covers}" if kernel.covers else None
            reason = part or reason_not_runnable(kernel, device) or kernel.reason_unsupported(params)
            if reason is None:
                return kernel, Selection(kernel=str(kernel.id), fallback=False, declined=tuple(declined))
            declined.append((str(kernel.id), reason))
        return self._fallback, Selection(kernel=str(self._fallback.id), fallback=True, declined=tuple(declined))


def _in_order(collection: Collection, op: Op, prefer: Role) -> list[Kernel]:
    """Kernels of the preferred role: the op's dispatch order first, then by name; the newest version of each first."""
    order = {name: place for place, name in enumerate(op.dispatch_order)}
    kernels = [kernel for kernel in collection.kernels_of(op.name) if kernel.role is prefer]
    return sorted(kernels, key=lambda kernel: (order.get(kernel.id.name, len(order)), kernel.id.name, -kernel.id.version))


def dispatch(op: str, *, prefer: str = "fused", collection: Collection | None = None) -> Dispatcher:
    """A callable that runs the best supported kernel of `op` for its arguments, or the split chain.

    Args:
        op: name of the op.
        prefer: the role to try first.
        collection: where to look; by default the kernel roots of the surrounding project, and installed entry points.

    Raises:
        UnknownNameError: no such op.
        UsageError: no such role.
    """
    try:
        role = Role(prefer)
    except ValueError:
        raise UsageError(f"prefer={prefer!r} is not a role; expected one of {', '.join(Role)}") from None
    source = collection if collection is not None else _project_collection()
    return Dispatcher(source, source.op(op), role)


@functools.cache
def _project_collection() -> Collection:
    from ..config import find_project

    return load_collection(find_project().kernels)
