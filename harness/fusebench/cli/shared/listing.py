"""The rows of `fusebench list`: ops, kernels, suites, cases and who supports what, as plain dictionaries ready for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...registry.kernel import reason_not_runnable

if TYPE_CHECKING:
    from ...config import Project
    from ...registry import DeclaredKernel, DeclaredOp
    from ...suites import SuiteListing
    from .selection import Selection

Row = dict[str, Any]


def op_row(op: DeclaredOp) -> Row:
    """An op with its description, and its parameters with their defaults (`required` for none)."""
    declared = op.declaration
    return {
        "op": declared.name,
        "description": declared.description,
        "in_place": declared.in_place,
        "schema": declared.schema,
        "params": declared.params,
    }


def suite_rows(listings: Iterable[SuiteListing]) -> list[Row]:
    """One row per suite file; `problem` says why a file is refused."""
    return [
        {
            "suite": one.name,
            "cases": one.cases,
            "description": one.description,
            "origin": one.origin,
            "path": one.path,
            "problem": one.problem,
        }
        for one in listings
    ]


def case_rows(selection: Selection) -> list[Row]:
    """One row per selected case, with the op's label for its shape."""
    rows = []
    for case in selection.cases:
        op = selection.collection.op(case.op)
        rows.append(
            {
                "suite": case.suite,
                "case": case.name,
                "op": case.op,
                "shape": op.facts(case.params).known("shape"),
                "weight": case.weight,
                "variant": case.variant,
                "source": case.source,
                "params": case.params,
            }
        )
    return rows


def kernel_rows(project: Project, kernels: Iterable[DeclaredKernel], device: str) -> list[Row]:
    """One row per kernel; `reason` says why it cannot run on `device` (`cpu` or `cuda`), `not_installed` which modules it lacks."""
    rows = []
    for kernel in kernels:
        file = Path(kernel.file)
        shown = file.relative_to(project.root).as_posix() if file.is_relative_to(project.root) else str(file)
        reason = reason_not_runnable(kernel, device) or ""
        facts = {"file": shown, "runnable": not reason, "reason": reason, "not_installed": list(kernel.absent)}
        rows.append(msgspec.to_builtins(kernel.info) | facts)
    return rows


def support_rows(selection: Selection, kernel: DeclaredKernel) -> list[Row]:
    """One row per selected case of the kernel's op; `reason` says why the kernel declines it."""
    rows = []
    for case in selection.cases:
        if case.op == kernel.id.op:
            reason = selection.collection.support(case).declined.get(str(kernel.id), "")
            rows.append({"case": case.key, "supported": not reason, "reason": reason})
    return rows
