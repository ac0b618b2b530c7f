"""Dispatched calls inside `torch.compile`: `fullgraph=True` meets one torch operator per dispatcher, and no graph break.

Dynamo puts that operator into its graph as it is. It is composite: when torch then traces it with fake tensors, the dispatcher chooses a
kernel from their shapes, strides and dtypes. The graph gets the operator of the chosen fused kernel in its place, or the torch operations
of the split chain. Symbolic sizes that the choice reads become guards, as in any traced code. The backend `eager`, which traces no
further, calls the operator with real tensors: the eager call.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ...schema import Language, Role
from ..kernel import Kernel, missing_modules
from ..launches.replay import describe_call
from ..op import Op
from ..sources import root_digest

NAMESPACE = "fusebench_dispatch"


class Traced(Protocol):
    """What the operator needs of its dispatcher."""

    op: Op
    prefer: Role
    roots: tuple[Path, ...]
    candidates: list[Kernel]

    def call_uncounted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An eager call that is not counted."""

    def select_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Kernel, Any]:
        """The kernel for fake tensors, and why."""


DISPATCHERS: dict[Any, Traced] = {}
"""The dispatcher of each operator. Operators live as long as the process."""

_ordinals: Counter[str] = Counter()


def operator_of(dispatcher: Traced) -> Callable[..., Any]:
    """Make the operator of `dispatcher`, and return the function that stands for a call in traced code.

    The function returns what the dispatcher returns: new tensors, or the overwritten arguments as a tuple.
    """
    import torch

    op = dispatcher.op
    # torch keeps traced graphs on disk by the names of their operators, so the name says everything that the choice depends on. Two
    # dispatchers of one process have operators of their own.
    name = f"{op.name}__{dispatcher.prefer}_{_digest(dispatcher)}"
    _ordinals[name] += 1
    name += f"_{_ordinals[name]}"
    library = _library()
    library.define(name + op.schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, functools.partial(_composite, dispatcher), "CompositeImplicitAutograd")
    operator = getattr(getattr(torch.ops, NAMESPACE), name).default
    DISPATCHERS[operator] = dispatcher
    if not op.in_place:
        return operator  # type: ignore[no-any-return]
    places = op.output_places

    def overwrite(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        operator(*args, **kwargs)
        targets = [args[place] if place < len(args) else kwargs[name] for place, name in places]
        return tuple([target for target in targets if target is not None])

    return overwrite


def _composite(dispatcher: Traced, *args: Any, **kwargs: Any) -> Any:
    call = describe_call(args, kwargs)
    if len(call.addresses) == len(call.inputs):
        returned = dispatcher.call_uncounted(args, kwargs)
    else:
        kernel, _ = dispatcher.select_traced(args, kwargs)
        returned = dispatcher.op.apply(traceable(kernel), args, kwargs)
    return None if dispatcher.op.in_place else returned


def traceable(kernel: Kernel) -> Callable[..., Any]:
    """The form of `kernel` that torch can trace: its operator, or torch operations."""
    if kernel.torch_op is not None:
        return kernel.torch_op
    if kernel.role is Role.PEER or kernel.language is not Language.TORCH:
        return _opaque(kernel)
    return inspect.unwrap(kernel.function) if kernel.compiled else kernel.function


@functools.cache
def _opaque(kernel: Kernel) -> Callable[..., Any]:
    """An operator that calls `kernel`, which has none of its own: a peer, or a split chain in Triton."""
    import torch

    op = kernel.op
    assert op is not None, "the loader binds the op"

    def call(*args: Any, **kwargs: Any) -> Any:
        returned = op.apply(kernel.call_eagerly, args, kwargs)
        return None if op.in_place else returned

    name = f"{_namespace(kernel)}::{op.name}__{kernel.id.name}_v{kernel.id.version}"
    operator = torch.library.custom_op(name, call, mutates_args=op.outputs if op.in_place else (), schema=op.schema)
    operator.register_fake(op.fake)
    return operator


def _namespace(kernel: Kernel) -> str:
    return kernel.__module__.partition(".")[0].removeprefix("_")


@functools.cache
def _library() -> Any:
    import torch

    return torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def _digest(dispatcher: Traced) -> str:
    """Digest of the code that chooses and runs the dispatcher's kernels: file contents, namespaces, and modules that are not installed."""
    kernels = [f"{_namespace(kernel)} {kernel.id} {missing_modules(kernel)}" for kernel in dispatcher.candidates]
    contents = [_content(root) for root in (*dispatcher.roots, Path(__file__).parent)]
    return hashlib.sha256("\n".join([*contents, *kernels]).encode()).hexdigest()[:16]


_content = functools.cache(root_digest)
