"""The default kernel `compiled@1` of an op: torch.compile of its split reference, the speed that a user gets for free."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from ..schema import Close, KernelId, Language, Role
from ..schema.kernels import CHOICE_MARK
from .kernel import Kernel
from .op import Op

NAME, VERSION = "compiled", 1


def compiled_kernel(split: Kernel, options: Mapping[str, Any]) -> Kernel:
    """torch.compile of `split`, a kernel in torch operations, as the kernel `compiled@1` of its op.

    Args:
        options: Inductor options, as `torch.compile` takes them.
    """
    kernel = Kernel(
        split.function,
        KernelId(split.id.op, NAME, VERSION),
        role=Role.COMPILED,
        language=Language.TORCH,
        contract=Close(),
        requires=(),
        note=", ".join((f"torch.compile of {split.id.name}", *options)),
        compile=options,
    )
    kernel.file = split.file
    return kernel


def default_compiled(op: Op, kernels: Sequence[Kernel], declared: Container[KernelId] = ()) -> list[Kernel]:
    """The kernel `compiled@1` made from the op's split reference, unless a file declares it, the op refuses one or the split is absent.

    Args:
        kernels: of the op's files.
        declared: further ids that files declare.
    """
    split = [kernel for kernel in kernels if str(kernel.id) == f"{op.name}/{op.split_reference}"]
    made = [compiled_kernel(one, op.compiled) for one in split[:1] if op.compiled is not None]
    return [one for one in made if one.id not in declared and all(one.id != kernel.id for kernel in kernels)]


def declared_as(op: Op, wanted: KernelId | None) -> str | None:
    """The name to look for in kernel files: the wanted kernel's, or the split reference's for the default `compiled@1`."""
    if wanted is None:
        return None
    default = op.compiled is not None and (wanted.name, wanted.version) == (NAME, VERSION)
    return op.split_reference.partition("@")[0] if default else wanted.name.partition(CHOICE_MARK)[0]
