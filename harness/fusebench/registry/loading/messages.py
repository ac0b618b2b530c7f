"""The messages between a process that loads kernel files and the one that asks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ...schema import KernelId
from ...toml_errors import Refusal
from ..declared import CaseFacts, CaseSupport, DeclaredKernel, OpDeclaration
from ..lookup import Problem


class LoaderSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a loader process for its whole life."""

    roots: tuple[Path, ...]
    excluded: dict[str, str] = {}
    """Files that are not imported, each with the reason."""
    bytecode: bool = True
    """Whether Python may keep compiled files."""


class AskOps(msgspec.Struct, frozen=True):
    """What do the op.py files declare? No kernel file is executed."""


class AskKernels(msgspec.Struct, frozen=True, kw_only=True):
    """What do the kernel files declare?"""

    only: frozenset[str] | None = None
    """Ops whose kernels to load; None for all."""
    kernel: KernelId | None = None
    """The one kernel to load; None for all."""
    operators: bool = True
    """Whether fused kernels become torch operators, which finds those that torch refuses."""


class AskFacts(msgspec.Struct, frozen=True):
    """What does an op say of a case?"""

    op: str
    params: dict[str, Any]


class AskSupport(msgspec.Struct, frozen=True):
    """What do the kernels that were loaded say of a case?"""

    op: str
    params: dict[str, Any]


Question = AskOps | AskKernels | AskFacts | AskSupport


class FoundProblem(msgspec.Struct, frozen=True):
    """A `Problem` on its way to another process."""

    file: str
    message: str
    op: str

    @classmethod
    def of(cls, problem: Problem) -> FoundProblem:
        return cls(str(problem.file), problem.message, problem.op)

    @property
    def problem(self) -> Problem:
        return Problem(Path(self.file), self.message, self.op)


class FoundOps(msgspec.Struct, frozen=True, tag=True):
    ops: list[OpDeclaration]
    problems: list[FoundProblem]


class FoundKernels(msgspec.Struct, frozen=True, tag=True):
    ops: list[OpDeclaration]
    kernels: list[DeclaredKernel]
    problems: list[FoundProblem]
    modules: list[str]
    """Source files of the modules that the process has imported."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The question has no answer."""

    reason: str


Answer = FoundOps | FoundKernels | CaseFacts | CaseSupport | Refusal | Failed


class Reply(msgspec.Struct, frozen=True):
    token: str
    answer: Answer
