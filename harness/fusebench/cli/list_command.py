"""`fusebench list`: what ops, kernels, suites and cases there are, and which kernel supports which case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schema import ExitCode
from .shared.options import CaseOption, DeviceOption, JsonOption, KernelOption, KernelsOption, OpOption, SuiteOption

if TYPE_CHECKING:
    from ..config import Project
    from ..registry import Declarations
    from .shared.listing import Row


class What(StrEnum):
    """The four things there are to list."""

    OPS = "ops"
    KERNELS = "kernels"
    SUITES = "suites"
    CASES = "cases"


@dataclass(frozen=True)
class _Request:
    """The options, as given."""

    suite: list[str] | None
    op: str | None
    kernel: str | None
    case: str | None
    device: str
    kernels: list[Path] | None
    json: bool


def list_command(
    *,
    what: Annotated[What | None, typer.Argument(help="What to list; everything in short if omitted.")] = None,
    suite: SuiteOption = None,
    op: OpOption = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    device: DeviceOption = "auto",
    kernels: KernelsOption = None,
    json: JsonOption = False,
) -> None:
    """List ops, kernels, suites or cases.

    `list kernels --suite NAME` also says which kernel supports which case, and why not.
    Files that fail to load are named on stderr; a suite file that is refused makes the exit code 2.
    """
    from .shared.output import print_json, remark

    request = _Request(suite, op, kernel, case, device, kernels, json)
    action = _overview if what is None else {What.OPS: _ops, What.KERNELS: _kernels, What.SUITES: _suites, What.CASES: _cases}[what]
    document, refused = action(request)
    if json:
        print_json(document)
    for problem in refused:
        remark("error", problem)
    if refused:
        raise typer.Exit(ExitCode.USAGE)


Answer = tuple[Any, Sequence[str]]
"""The JSON document, and why suite files were refused."""


def _ops(request: _Request) -> Answer:
    from .shared.listing import op_row
    from .shared.selection import load_project

    _, collection = load_project(request.kernels, load_kernels=False)
    chosen = [collection.op(name) for name in request.op.split(",")] if request.op is not None else list(collection.ops.values())
    rows = [op_row(op) for op in chosen]
    collection.keep()
    _show(request, rows, ["op", "in_place", "params", "description"], "ops")
    return rows, ()


def _suites(request: _Request) -> Answer:
    from ..suites import list_suites
    from .shared.listing import suite_rows
    from .shared.selection import load_project

    project, collection = load_project(request.kernels, load_kernels=False)
    rows = suite_rows(list_suites(project, collection.ops))
    collection.keep()
    _show(request, rows, ["suite", "cases", "description", "origin", "path"], "suites")
    _say_why_none(request, rows, project)
    return rows, [row["problem"] for row in rows if row["problem"]]


def _cases(request: _Request) -> Answer:
    from .shared.listing import case_rows
    from .shared.selection import resolve_selection

    selection = resolve_selection(
        suite=request.suite, op=request.op, case=request.case, kernels=request.kernels, load_kernels=False, all_suites=True
    )
    rows = case_rows(selection)
    selection.collection.keep()
    _show(request, rows, ["suite", "case", "op", "shape", "weight", "source"], "cases")
    return rows, selection.refused


def _kernels(request: _Request) -> Answer:
    from .shared.listing import kernel_rows, support_rows
    from .shared.selection import keep_listing, load_all, load_project, resolve_selection

    device = _device_kind(request.device)
    selection, refused = None, tuple[str, ...]()
    if request.suite or request.case:
        selection = resolve_selection(
            suite=request.suite, op=request.op, case=request.case, kernels=request.kernels, load_kernels=False, all_suites=True
        )
        project, collection, refused = selection.project, selection.collection, selection.refused
        ops = list(dict.fromkeys(case.op for case in selection.cases))
    else:
        project, collection = load_project(request.kernels, load_kernels=False)
        ops = [collection.op(name).name for name in request.op.split(",")] if request.op is not None else list(collection.ops)
    load_all(project, collection)
    if request.kernel is not None:
        collection.require_match(request.kernel)
    chosen = [kernel for op in ops for kernel in collection.kernels_of(op, request.kernel)]
    rows = kernel_rows(project, chosen, device)
    texts = [row | {"note": f"covers {row['covers']}; {row['note']}" if row["covers"] else row["note"]} for row in rows]
    _show(request, texts, ["id", "role", "language", "contract", "runnable", "note"], f"kernels on {device}")
    if selection is not None:
        for row, kernel in zip(rows, chosen, strict=True):
            row["cases"] = support_rows(selection, kernel)
        support = [{"kernel": row["id"], **case} for row in rows for case in row["cases"]]
        _show(request, support, ["case", "kernel", "supported"], "support")
    keep_listing(project, collection)
    return rows, refused


def _overview(request: _Request) -> Answer:
    from ..suites import list_suites
    from .shared.listing import kernel_rows, op_row, suite_rows
    from .shared.selection import keep_listing, load_all, load_project

    device = _device_kind(request.device)
    project, collection = load_project(request.kernels, load_kernels=False)
    load_all(project, collection)
    ops = [op_row(op) for op in collection.ops.values()]
    kernels = kernel_rows(project, [one for one in collection.kernels.values() if not one.id.choice], device)
    suites = suite_rows(list_suites(project, collection.ops))
    _show(request, ops, ["op", "in_place", "description"], "ops")
    _show(request, kernels, ["id", "role", "language", "runnable"], f"kernels on {device}")
    _show(request, suites, ["suite", "cases", "description"], "suites")
    _say_why_none(request, suites, project)
    _hint(project, collection, request)
    keep_listing(project, collection)
    return {"ops": ops, "kernels": kernels, "suites": suites}, [row["problem"] for row in suites if row["problem"]]


def _hint(project: Project, collection: Declarations, request: _Request) -> None:
    """What to do next, where no project says where kernels are, or if there is no op."""
    if request.json or (project.configured and collection.ops):
        return
    if not project.configured:
        typer.echo(f"no [tool.fusebench] around {project.root}: results of runs go to {project.results}")
    if not collection.ops:
        typer.echo("no op is known here: name folders of kernels as `kernels` in [tool.fusebench] of pyproject.toml, or pass --kernels DIR")
    if "qknorm_rope" in collection.ops and not project.configured:
        typer.echo("measure these with `fusebench run --suite qknorm_rope`; without a GPU, with `fusebench run --suite smoke`")
    if not project.configured:
        typer.echo("time functions of your own with `fusebench bench FILE.py`; make a project of your own with `fusebench init`")


def _device_kind(device: str) -> str:
    from ..device.select import resolve_device

    return resolve_device(device).kind


def _show(request: _Request, rows: Sequence[Row], columns: Sequence[str], title: str) -> None:
    """Print the rows as a table unless JSON is wanted; a `no` is followed by its reason."""
    from .shared.output import print_table

    if not request.json:
        cells = [[_cell(row[column], row.get("reason", "")) for column in columns] for row in rows]
        print_table(columns, cells, title=title if rows else f"{title}: none", right=("cases", "weight"))


def _say_why_none(request: _Request, suites: Sequence[Row], project: Project) -> None:
    """Why there is no suite, where the installation is the cause."""
    from ..config import why_no_suites

    if not request.json and not suites and (why := why_no_suites(project)):
        typer.echo(why)


def _cell(value: Any, reason: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else f"no: {reason}" if reason else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(value) if isinstance(value, dict) else str(value)
