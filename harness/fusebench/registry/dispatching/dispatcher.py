"""`dispatch`: a callable for model code that always works and reports which kernel it chose, and why.

Of the fused kernels that support a call it takes the one that was measured fastest (`tables`). Without a table it takes the op's default
order. `torch.compile(fullgraph=True)` traces the callable (`traced`). `counting` counts its calls by kernel.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import msgspec

from ...errors import UsageError
from ...schema import Role
from ..collection import load_collection
from ..kernel import Kernel, reason_not_runnable
from ..launches.repeats import Layout, Repeats
from ..launches.replay import MOST_LAYOUTS, Call, aligned, describe_call, repeat
from ..launching import trace
from ..lookup import Collection
from ..op import Op
from .counting import Selection, counting
from .other_code import code_today, compared_code, told
from .ranking import Ranker
from .tables import Ranking, default_order, find_table, in_order
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
        self.candidates = default_order(collection.kernels_of(op.name, choices=True), op.dispatch_order, prefer)
        """Kernels in the order in which they are tried where no table decides; tunable choices are tried where a table names them."""
        self._declared = [str(kernel.id) for kernel in collection.kernels_of(op.name, choices=True)]
        self._tables: dict[str, tuple[Ranker | None, str]] = {}
        """By GPU model; and why the default order is taken, or another model's table."""
        self._code: dict[str, str] = {}
        """Digests of the kernels' sources by `name@version`, once `explain` has read them; empty where one cannot be read."""
        self._fallback = collection.kernel(f"{op.name}/{op.split_reference}")
        self._chosen: dict[tuple[Any, str, str], tuple[Kernel, Selection]] = {}
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
        """The kernel that a call with these arguments would run, and why: see `Selection.decided_by`.

        It also says which kernels' sources changed since the measurements. For that it reads the sources, which no call does.
        """
        selection = self._select(describe_call(args, kwargs), args, kwargs).selection
        gpu = _gpu_of(self.op.device_of(*args, **kwargs), args, kwargs)
        ranker = self._tables[gpu][0] if gpu in self._tables else None
        ranking = self._ranking(self.op.params_of(*args, **kwargs), gpu) if ranker is not None else None
        if ranker is None or ranking is None or not ranking.entries:
            return selection
        names = {time.kernel for entry in ranking.entries for time in entry.times}
        if missing := names - self._code.keys():
            self._code |= dict.fromkeys(missing, "") | code_today(self.op.name, missing, self.roots)
        today = {name: self._code[name] for name in names if self._code[name]}
        other = told(compared_code(ranker.table, ranking.entries, today))
        return msgspec.structs.replace(selection, decided_by=f"{selection.decided_by}; {other}") if other else selection

    @property
    def fallbacks(self) -> list[Selection]:
        """Every distinct fallback that calls so far have taken, eager and traced."""
        return [selection for _, selection in self._chosen.values() if selection.fallback]

    def select_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Kernel, Selection]:
        """The choice for fake tensors, whose sizes may be symbols. Sizes that a kernel's `supports` reads become guards of the trace."""
        with trace():
            self.op.fix_widths(args, kwargs)
            params, device = self.op.params_of(*args, **kwargs), self.op.device_of(*args, **kwargs)
            gpu = _gpu_of(device, args, kwargs)
            try:
                hash(params)
            except TypeError:  # symbolic sizes: the choice itself stands for them
                found = self._choose(params, device, gpu)
                return self._chosen.setdefault((found[1], device, gpu), found)
            return self._choose_once(params, device, gpu)

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
        known = self._seen[call.layouts] = _Known(*self._choose_once(params, device, _gpu_of(device, args, kwargs)))
        return known

    def _choose_once(self, params: Any, device: str, gpu: str) -> tuple[Kernel, Selection]:
        key = (params, device, gpu)
        if key not in self._chosen:
            self._chosen[key] = self._choose(params, device, gpu)
        return self._chosen[key]

    def _choose(self, params: Any, device: str, gpu: str) -> tuple[Kernel, Selection]:
        declined: list[tuple[str, str]] = []
        ranking = self._ranking(params, gpu)
        for kernel in in_order(self.candidates, ranking):
            part = f"covers only a part of the op: {kernel.covers}" if kernel.covers else None
            reason = part or reason_not_runnable(kernel, device) or kernel.reason_unsupported(params)
            if reason is None:
                return kernel, Selection(kernel=str(kernel.id), fallback=False, declined=tuple(declined), decided_by=ranking.why)
            declined.append((str(kernel.id), reason))
        kernel = self._fallback
        return kernel, Selection(kernel=str(kernel.id), fallback=True, declined=tuple(declined), decided_by=ranking.why)

    def _ranking(self, params: Any, gpu: str) -> Ranking:
        """The order that the table gives a call; without names for the default order."""
        if self.prefer is not Role.FUSED:
            return Ranking((), f"default order: tables rank fused kernels, and {self.prefer} ones are preferred")
        if gpu not in self._tables:
            found = find_table(self.op.name, self.roots, gpu, _triton_version(), self._declared)
            self._tables[gpu] = Ranker(found.table) if found.table is not None else None, found.why
        ranker, why = self._tables[gpu]
        if ranker is None:
            return Ranking((), f"default order: {why}")
        try:
            key = self.op.dispatch_key(params)
        except Exception as error:  # noqa: BLE001 - `dispatch` never raises for a shape; the reason is recorded instead
            return Ranking((), f"default order: the `dispatch_key` of op {self.op.name} raised {type(error).__name__}: {error}")
        ranking = ranker.rank(key) if key is not None else Ranking((), "a size has no example in the trace")
        if not ranking.kernels:
            return Ranking((), f"default order: {ranking.why}")
        return ranking._replace(why=f"{why}; {ranking.why}") if why else ranking


def _gpu_of(device: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The model of the GPU that holds the first tensor; empty for a CPU, and for a fake tensor on a machine without a GPU."""
    import torch

    if device != "cuda" or not torch.cuda.is_available():
        return ""
    return torch.cuda.get_device_name((args[0] if args else next(iter(kwargs.values()))).device)


@functools.cache
def _triton_version() -> str:
    """The installed Triton; empty without one."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


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
    from ...config import find_project

    return load_collection(find_project().kernels)
