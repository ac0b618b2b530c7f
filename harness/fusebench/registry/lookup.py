"""Ops and kernels by name, whether this process has loaded them or another one has declared them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import UnknownNameError
from ..schema import KernelId
from .declared import DeclaredKernel, DeclaredOp
from .kernel import Kernel
from .op import Op


@dataclass(frozen=True)
class Problem:
    """A file that could not be loaded, or a declaration that was refused; the rest of the collection works."""

    file: Path
    message: str
    op: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"


AnOp = TypeVar("AnOp", Op, DeclaredOp)
AKernel = TypeVar("AKernel", Kernel, DeclaredKernel)


class Lookup(Generic[AnOp, AKernel]):
    """Ops and kernels by name."""

    ops: Mapping[str, AnOp]
    kernels: Mapping[str, AKernel]
    problems: list[Problem]

    def op(self, name: str, where: str = "") -> AnOp:
        """The op called `name`.

        Raises:
            UnknownNameError: no such op; the message offers the nearest.
        """
        try:
            return self.ops[name]
        except KeyError:
            raise UnknownNameError("op", name, self.ops, where) from None

    def kernel(self, kernel_id: str) -> AKernel:
        """The kernel `op/name@version`.

        Raises:
            UnknownNameError: no such kernel; the message offers the nearest.
        """
        try:
            return self.kernels[kernel_id]
        except KeyError:
            raise UnknownNameError("kernel", kernel_id, self.kernels) from None

    def kernels_of(self, op: str, pattern: str | None = None, *, choices: bool = False) -> list[AKernel]:
        """Kernels of `op` in declaration order whose id, `name@version` or name matches the glob `pattern`.

        Args:
            choices: without a pattern, whether to include the tunable choices of kernels.
        """
        found = [kernel for kernel in self.kernels.values() if kernel.id.op == op]
        if pattern is None:
            return [kernel for kernel in found if choices or not kernel.id.choice]
        return [kernel for kernel in found if kernel.id.matches(pattern)]

    def require_match(self, pattern: str) -> None:
        """Raise UnknownNameError when no kernel matches the glob `pattern`, or one of several with commas between them."""
        require_match(pattern, [kernel.id for kernel in self.kernels.values()], broken=len(self.problems))


def require_match(pattern: str, kernels: Sequence[KernelId], *, broken: int = 0) -> None:
    """Raise UnknownNameError when none of `kernels` matches the glob `pattern`, or one of several with commas between them.

    Args:
        broken: number of kernel files that failed to load.
    """
    for glob in pattern.split(","):
        if not any(kernel.matches(glob) for kernel in kernels):
            failed = f" ({broken} kernel files failed to load)" if broken else ""
            # Names are offered in the spelling that was used: `op/name@2`, `name@2` or `name`.
            spelling = 0 if "/" in glob else 1 if "@" in glob else 2
            raise UnknownNameError(f"kernel{failed}", glob, {kernel.spellings[spelling] for kernel in kernels})
