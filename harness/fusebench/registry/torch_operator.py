"""Fused kernels as torch operators, so that `torch.compile(fullgraph=True)` traces them and `opcheck` can test them.

Each root has a private operator namespace: two versions of a folder coexist in one process.  A Triton kernel that returns new
tensors becomes a `triton_op`, whose launch the compiler can see; one that overwrites its arguments, under Triton's interpreter,
and CUDA C++ become an opaque `custom_op`.  Eager calls do not pass through here (see `Kernel.__call__`).
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..schema import Language, Role
from .machine_code import current_listener
from .replay import Watched, current_recorder

if TYPE_CHECKING:
    from .kernel import Kernel

_tracing: ContextVar[bool] = ContextVar("fusebench_tracing", default=False)


def interpreting() -> bool:
    """Whether Triton kernels run in the interpreter in this process (`TRITON_INTERPRET=1`)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def launchable(jit_function: Any) -> Any:
    """`jit_function`, wrapped so that whoever follows the call can see its launch: torch tracing a fused kernel's operator, a replay, or a
    listener to machine code.

    Kernel authors write `launchable(_kernel)[grid](...)`; where nobody follows this returns `jit_function` itself.
    """
    if not _tracing.get():
        recorder = current_recorder()
        if recorder is not None:
            return recorder.watch(jit_function)
        return jit_function if current_listener() is None else Watched(jit_function, None)
    import torch

    return torch.library.wrap_triton(jit_function)


def tracing() -> bool:
    """Whether a fused kernel's operator is being traced right now: torch then accepts `num_warps` and `num_stages` alone as options."""
    return _tracing.get()


@contextmanager
def _trace() -> Iterator[None]:
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


def register(kernel: Kernel, namespace: str) -> None:
    """Give a fused Triton or CUDA kernel its torch operator; other kernels are left alone (torch traces them itself)."""
    if kernel.role is not Role.FUSED or kernel.language is Language.TORCH:
        return
    import torch

    op = kernel.op
    assert op is not None, "the loader binds the op before it registers"
    name = f"{namespace}::{op.name}__{kernel.id.name}_v{kernel.id.version}"
    mutated = op.outputs if op.in_place else ()
    # Up to torch 2.13 at least, Inductor copies what a visible launch overwrites into a compact buffer and keeps the strides that the
    # launch was traced with: a kernel that overwrites views of a packed projection then runs past the copy (pytorch issue 161115).
    if kernel.language is Language.TRITON and not op.in_place and not interpreting():

        def traced(*args: Any, **kwargs: Any) -> Any:
            with _trace():
                return kernel.function(*args, **kwargs)

        # triton_op infers the schema from a signature even where one is given, and kernel functions need not be annotated.
        traced.__signature__ = _signature(op.schema)  # type: ignore[attr-defined]
        kernel.torch_op = torch.library.triton_op(name, traced, mutates_args=mutated)
    else:
        operator = torch.library.custom_op(name, kernel.function, mutates_args=mutated, schema=op.schema)
        operator.register_fake(op.fake)
        kernel.torch_op = operator


def _signature(schema: str) -> inspect.Signature:
    """The Python signature, annotated as `torch.library.infer_schema` wants it, that amounts to `schema`."""
    import torch

    annotations = {"Tensor": torch.Tensor, "Optional[Tensor]": torch.Tensor | None, "float": float, "int": int, "bool": bool, "str": str}
    parsed = torch._C.parse_schema(f"fusebench::signature{schema}")
    parameters = [
        inspect.Parameter(
            argument.name,
            inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
            annotation=annotations[str(argument.type)],
        )
        for argument in parsed.arguments
    ]
    count = len(parsed.returns)
    returns = None if count == 0 else torch.Tensor if count == 1 else types.GenericAlias(tuple, (torch.Tensor,) * count)
    return inspect.Signature(parameters, return_annotation=returns)
