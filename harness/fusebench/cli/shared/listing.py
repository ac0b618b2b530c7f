"""The rows of `fusebench list`: ops, kernels, suites, cases and who supports what, as plain dictionaries ready for JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...config import Project
    from ...registry import Kernel, Op
    from ...suites import SuiteListing
    from .selection import Selection

Row = dict[str, Any]


def op_row(op: Op) -> Row:
    """An op with the first line of its module's docstring, and its parameters with their defaults (`required` for none)."""
    import msgspec

    documentation = (sys.modules[type(op).__module__].__doc__ or "").strip()
    return {
        "op": op.name,
        "description": documentation.split("\n")[0].removeprefix(f"{op.name}: "),
        "in_place": op.in_place,
        "schema": op.schema,
        "params": {
            field.encode_name: "required" if field.required else None if field.default is msgspec.NODEFAULT else field.default
            for field in msgspec.structs.fields(op.Params)
        },
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
                "shape": op.shape(op.parse_params(case.params)),
                "weight": case.weight,
                "variant": case.variant,
                "source": case.source,
                "params": case.params,
            }
        )
    return rows


def kernel_rows(project: Project, kernels: Iterable[Kernel], device: str) -> list[Row]:
    """One row per kernel; `reason` says why it cannot run on `device` (`cpu` or `cuda`), `not_installed` which modules it lacks."""
    import msgspec

    from ...registry.kernel import missing_modules, reason_not_runnable

    rows = []
    for kernel in kernels:
        file = Path(kernel.file)
        shown = file.relative_to(project.root).as_posix() if file.is_relative_to(project.root) else str(file)
        reason = reason_not_runnable(kernel, device) or ""
        rows.append(
            msgspec.to_builtins(kernel.info)
            | {"file": shown, "runnable": not reason, "reason": reason, "not_installed": missing_modules(kernel)}
        )
    return rows


def support_rows(selection: Selection, kernel: Kernel) -> list[Row]:
    """One row per selected case of the kernel's op; `reason` says why the kernel declines it."""
    op = selection.collection.op(kernel.id.op)
    rows = []
    for case in selection.cases:
        if case.op == op.name:
            reason = kernel.reason_unsupported(op.parse_params(case.params)) or ""
            rows.append({"case": case.key, "supported": not reason, "reason": reason})
    return rows
