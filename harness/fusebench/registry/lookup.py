"""Ops and kernels by name, whether this process has loaded them or another one has declared them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import UnknownNameError
from ..schema import Case, KernelId, Role
from ..schema.kernels import CHOICE_MARK
from .declared import CaseSupport, DeclaredKernel, DeclaredOp
from .kernel import Kernel
from .loading.watching import Watch
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
        require_match(pattern, [kernel.id for kernel in self.kernels.values()], problems=self.problems)


@dataclass
class Collection(Lookup[Op, Kernel]):
    """The ops and kernels of one or more roots, loaded into this process."""

    roots: tuple[Path, ...]
    ops: dict[str, Op] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)
    """Told which file's code is about to run."""
    without_operators: list[tuple[Kernel, str]] = field(default_factory=list)
    """Kernels that were loaded without their torch operators, each with the namespace for it."""

    @property
    def excluded(self) -> Mapping[str, str]:
        """Files that no process may import, each with the reason."""
        return self.watch.excluded

    def prepared(self, kernel_id: str) -> Kernel:
        """The kernel `op/name@version`, ready to be called.

        A torch.compile kernel must see calls of other kernels as operators, so this first makes the torch operators that loading left out.
        A kernel whose operator torch refuses becomes a problem on record and works without one.

        Raises:
            UnknownNameError: no such kernel; the message offers the nearest.
        """
        kernel = self.kernel(kernel_id)
        while kernel.role is Role.COMPILED and self.without_operators:
            other, namespace = self.without_operators.pop()
            if reason := operator_refused(other, namespace):
                self.problems.append(Problem(Path(other.file), reason, op=other.id.op))
        return kernel

    def support(self, case: Case) -> CaseSupport:
        """What the kernels of the case's op say of the case.

        Raises:
            ValueError: the op refuses the case's parameters.
        """
        params = self.op(case.op).parse_params(case.params)
        declined: dict[str, str] = {}
        part_bytes: dict[str, int] = {}
        for kernel in self.kernels_of(case.op, choices=True):
            try:
                with self.watch.on(kernel.file):
                    reason = kernel.reason_unsupported(params)
                    if reason is None and kernel.part is not None:
                        part_bytes[str(kernel.id)] = int(kernel.part.minimum_bytes(params))
            except Exception as error:  # noqa: BLE001 - whatever a kernel's declaration raises concerns that kernel alone
                reason = f"the declaration of {kernel.id} failed on this case: {type(error).__name__}: {error}"
            if reason is not None:
                declined[str(kernel.id)] = reason
        return CaseSupport(declined=declined, part_bytes=part_bytes)


def operator_refused(kernel: Kernel, namespace: str) -> str:
    """Make the kernel's torch operator, if it has one. Return why torch refused it, or empty text."""
    from .torch_operator import register

    try:
        register(kernel, namespace)
    except Exception as error:  # noqa: BLE001 - torch refuses a schema in several ways; all of them concern this kernel alone
        return f"kernel {kernel.id} cannot become a torch operator: {type(error).__name__}: {error}"
    return ""


def require_match(pattern: str, kernels: Sequence[KernelId], *, what: str = "kernel", problems: Sequence[object] = ()) -> None:
    """Raise UnknownNameError when none of `kernels` matches the glob `pattern`, or one of several with commas between them.

    Args:
        what: what the kernels are called in the message.
        problems: of kernel files that failed to load, any of which may hold the kernel.
    """
    for glob in pattern.split(","):
        if not any(kernel.matches(glob) for kernel in kernels):
            others = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
            where = f"not loaded: {problems[0]}{others}" if problems else ""
            marked = f"*{CHOICE_MARK}{glob}"  # of a choice's name, had the glob its mark
            if not where and any(kernel.matches(marked) for kernel in kernels):
                where = f"a choice is matched by a glob with {CHOICE_MARK} alone, here {marked}"
            # Names are offered in the spelling that was used: `op/name@2`, `name@2` or `name`.
            spelling = 0 if "/" in glob else 1 if "@" in glob else 2
            raise UnknownNameError(what, glob, {kernel.spellings[spelling] for kernel in kernels}, where)
