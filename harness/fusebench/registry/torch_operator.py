"""Fused kernels as torch operators, so that `torch.compile(fullgraph=True)` traces them and `opcheck` can test them.

Each root has a private operator namespace: two versions of a folder coexist in one process.  A Triton kernel that returns new
tensors becomes a `triton_op`, whose launch the compiler can see; one that overwrites its arguments, under Triton's interpreter,
and CUDA C++ become an opaque `custom_op`.  Eager calls do not pass through here (see `Kernel.__call__`).
"""

from __future__ import annotations

import inspect
import types
from typing import Any

from ..schema import Language, Role
from .kernel import Kernel

# Re-exported: kernels of older revisions, which `ab` loads beside this one, import these three from here.
from .launching import interpreting, launchable, trace, tracing

__all__ = ["interpreting", "launchable", "register", "tracing"]


def register(kernel: Kernel, namespace: str) -> None:
    """Give a fused Triton or CUDA kernel its torch operator; other kernels are left alone (torch traces them itself)."""
    if kernel.role is not Role.FUSED or kernel.language is Language.TORCH:
        return
    import torch

    op = kernel.op
    assert op is not None, "the loader binds the op before it registers"
    kernel.is_compiling = torch.compiler.is_compiling
    name = f"{namespace}::{op.name}__{kernel.id.name}_v{kernel.id.version}"
    mutated = op.outputs if op.in_place else ()
    # Up to torch 2.13 at least, Inductor copies what a visible launch overwrites into a compact buffer and keeps the strides that the
    # launch was traced with: a kernel that overwrites views of a packed projection then runs past the copy (pytorch issue 161115).
    if kernel.language is Language.TRITON and not op.in_place and not interpreting():

        def traced(*args: Any, **kwargs: Any) -> Any:
            with trace():
                op.fix_widths(args, kwargs)
                return kernel.function(*args, **kwargs)

        # triton_op infers the schema from a signature even where one is given, and kernel functions need not be annotated.
        traced.__signature__ = _signature(op.schema)  # type: ignore[attr-defined]
        kernel.torch_op = torch.library.triton_op(name, traced, mutates_args=mutated)
    else:
        operator = torch.library.custom_op(name, kernel.call_eagerly, mutates_args=mutated, schema=op.schema)
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
