"""The default kernel `compiled@1` of an op: torch.compile of its split reference, which is what a user gets for free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..schema import Close, KernelId, Language, Role
from .kernel import Kernel

NAME, VERSION = "compiled", 1


def compiled_kernel(split: Kernel, options: Mapping[str, Any]) -> Kernel:
    """torch.compile of `split`, a kernel in torch operations, as the kernel `compiled@1` of its op.

    Args:
        options: Inductor's, as `torch.compile` takes them.
    """
    compiled: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not compiled:
            import torch

            # Not compiled before the first call: torch.compile imports its compiler, which takes longer than importing torch.
            # Static shapes, because a benchmark's shapes are fixed. Fullgraph, so that a graph break or an exhausted recompile limit
            # raises instead of timing the eager chain under this kernel's name.
            compiled.append(torch.compile(split.function, fullgraph=True, dynamic=False, options=dict(options) or None))
        return compiled[0](*args, **kwargs)

    call.__wrapped__ = split.function  # type: ignore[attr-defined]
    kernel = Kernel(
        call,
        KernelId(split.id.op, NAME, VERSION),
        role=Role.COMPILED,
        language=Language.TORCH,
        contract=Close(),
        requires=(),
        note=", ".join((f"torch.compile of {split.id.name}", *options)),
    )
    kernel.file = split.file
    return kernel
