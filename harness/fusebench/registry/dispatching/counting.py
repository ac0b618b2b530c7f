"""Count the calls of dispatched ops by the kernel that ran: proof that a model's ops were substituted, and where they fell back.

    model = torch.compile(model, fullgraph=True, backend=fusebench.counting_backend())
    model(x)  # compiles
    with fusebench.count_calls() as calls:
        model(x)  # one step
    {str(selection.kernel): count for selection, count in calls.items()}  # {"qknorm_rope/fused_triton@2": 57}

Eager calls are counted when they are made. A compiled graph makes no Python calls, so `counting_backend` notes at compile time which kernel
each dispatched call of the graph became, and adds these at every run of the graph. That holds under Inductor's CUDA graphs, too, whose
replay is a run of the graph. Two kinds of runs are not counted, and so give too few calls, never too many: graphs of another backend, and
replays of a `torch.cuda.CUDAGraph` that the caller captured (its capture is counted).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

Backend = Callable[[Any, Any], Callable[..., Any]]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel chosen for some arguments. `declined` holds (kernel id, reason) for each preferred kernel that was passed over."""

    kernel: str
    fallback: bool
    declined: tuple[tuple[str, str], ...] = ()
    decided_by: str = ""
    """The measurements that decided, or why the op's default order was taken. Selections that differ in this alone are equal, so that
    calls are counted by kernel."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selection) and self._counted == other._counted

    def __hash__(self) -> int:
        return hash(self._counted)

    @property
    def _counted(self) -> tuple[str, bool, tuple[tuple[str, str], ...]]:
        return self.kernel, self.fallback, self.declined

    @property
    def reason(self) -> str:
        """Why a fallback was taken; empty when the preferred kernel runs."""
        if not self.fallback:
            return ""
        if not self.declined:
            return "no kernel of the preferred role is declared"
        return "; ".join(f"{kernel}: {reason}" for kernel, reason in self.declined)


class _Counting:
    """Whether calls are counted now: `calls` is None while nobody counts."""

    calls: Counter[Selection] | None = None


counting = _Counting()


@contextmanager
def count_calls() -> Iterator[Counter[Selection]]:
    """Count the dispatched calls of the block by `Selection`: op and kernel, whether it is a fallback, and why.

    For all threads of the process. A block within a block takes the calls over from the outer one.
    """
    outer, counting.calls = counting.calls, Counter()
    try:
        yield counting.calls
    finally:
        counting.calls = outer


def counting_backend(backend: str | Backend = "inductor", *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Backend:
    """A backend for `torch.compile` that compiles as `backend` does and reports each run's dispatched calls to `count_calls`.

    Args:
        backend: name of a backend, or a backend.
        mode, options: Inductor's, as `torch.compile` takes them, for the backend `inductor`.
    """

    def compile_counted(graph_module: Any, example_inputs: Any) -> Callable[..., Any]:
        calls = dispatched_calls(graph_module)
        compiled = _compile(backend, mode, options, graph_module, example_inputs)

        def run(*args: Any) -> Any:
            if counting.calls is not None:
                counting.calls.update(calls)
            return compiled(*args)

        return run

    return compile_counted


def dispatched_calls(graph_module: Any) -> Counter[Selection]:
    """The dispatched calls in a graph of Dynamo's, by the kernel that each becomes."""
    from .traced import DISPATCHERS

    found: Counter[Selection] = Counter()
    for module in graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            dispatcher = DISPATCHERS.get(node.target) if node.op == "call_function" else None
            if dispatcher is not None:
                args, kwargs = _example_values(node.args), _example_values(node.kwargs)
                found[dispatcher.select_traced(args, kwargs)[1]] += 1
    return found


def _example_values(arguments: Any) -> Any:
    from torch.fx.node import map_arg

    return map_arg(arguments, lambda node: node.meta["example_value"])


def _compile(
    backend: str | Backend, mode: str | None, options: Mapping[str, Any] | None, graph_module: Any, example_inputs: Any
) -> Callable[..., Any]:
    import torch

    if backend == "inductor":
        settings = (torch._inductor.list_mode_options(mode) if mode else {}) | dict(options or {})
        return torch._inductor.compile(graph_module, example_inputs, options=settings)  # type: ignore[no-any-return]
    found = torch._dynamo.lookup_backend(backend) if isinstance(backend, str) else backend
    return found(graph_module, example_inputs)
