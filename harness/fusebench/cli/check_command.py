"""`fusebench check`: the accuracy gate alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schema import FAILED_STATUSES, ExitCode, Result
from .shared.options import CaseOption, DeviceOption, JsonOption, KernelOption, KernelsOption, OpOption, SuiteOption, TimeoutOption

if TYPE_CHECKING:
    from ..registry import Declarations
    from ..runner.workers.protocol import Progress

_COLUMNS = ("case", "shape", "kernel", "status", "contract", "error", "max error", "= split", "remark")
_LONGEST_REMARK = 60
"""Characters of a remark in the table; a longer one stands below it."""
_OTHER_COLUMNS = "max error: the largest error, likewise; = split: share of elements that equal the split chain's"

SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Repeat the input draws of an earlier check (see its JSON).", show_default=False)
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        help="Checks at a time, each in processes of its own. Unless given: the cores without a GPU; with one half of them, "
        "at most 8, as far as its memory holds the largest case.",
        show_default=False,
    ),
]


def check(
    *,
    suite: SuiteOption = None,
    op: OpOption = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    device: DeviceOption = "auto",
    kernels: KernelsOption = None,
    seed: SeedOption = None,
    jobs: JobsOption = None,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Check kernels against float64 by their contracts, without timing them.

    Every kernel runs on fresh random inputs with outliers, at several magnitudes, between guard bytes.  Without a GPU, Triton kernels
    run in Triton's interpreter on the case with fewer tokens, and several cases are checked at a time.  Exit code 0: all right; 5: a
    kernel is wrong or failed.
    """
    from ..device import resolve_device
    from ..device.toolchain import require_torch_for
    from .shared.selection import resolve_selection, with_kernels

    selection = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels, load_kernels=False)
    target = resolve_device(device)
    require_torch_for(target)

    from ..runner.case_kernels import CaseKernels, case_kernels, split_reference
    from ..runner.workers.checking import check_cases, default_jobs
    from .shared.output import print_json
    from .shared.progress import make_reporter

    selection = with_kernels(selection, silence_s=kernel_timeout)
    units = [case_kernels(selection.collection, one, target.kind, kernel, with_baseline=False) for one in selection.cases]
    for unit in units:
        split_reference(selection.collection, unit.op)
    reporter = make_reporter()
    found: dict[int, list[Result]] = {}

    def show(unit: CaseKernels, progress: Progress) -> None:
        reporter.step(f"check {progress.kernel} on {unit.case.name}", progress.done, progress.total)

    def show_results(place: int, results: list[Result]) -> None:
        unit = units[place]
        found[place] = [*unit.declined, *results]
        reporter.case(len(found), len(units), unit.case, unit.shape)
        for result in found[place]:
            reporter.result(result)

    reporter.begin()
    try:
        check_cases(
            target,
            selection.collection.roots,
            units,
            jobs=jobs if jobs is not None else default_jobs(target, units),
            silence_s=kernel_timeout,
            excluded=selection.collection.excluded,
            seed=seed,
            on_progress=show,
            on_case=show_results,
            on_remark=reporter.note,
        )
    finally:
        reporter.end()
    results = [result for place in range(len(units)) for result in found[place]]
    unloaded = _unloaded(selection.collection, {one.op for one in selection.cases})
    failed = unloaded or any(result.status in FAILED_STATUSES and result.role_gates for result in results)
    code = ExitCode.KERNEL_FAILED if failed else ExitCode.PASS
    if json:
        print_json({"device": target.name, "exit_code": int(code), "not_loaded": unloaded, "results": results})
    else:
        _show(results)
    raise typer.Exit(code)


def _unloaded(collection: Declarations, ops: set[str]) -> list[str]:
    """Kernel files of these ops that could not be loaded."""
    return [str(problem) for problem in collection.problems if problem.op in ops]


def _show(results: Sequence[Result]) -> None:
    """Print the table, the meaning of its errors, and below it the remarks that are too long for a cell, each once."""
    from ..report.escape import one_line
    from ..report.wording import ERROR_MEANING
    from .shared.output import PIPED_WIDTH, console, print_table

    rows, below = [], dict[str, list[str]]()
    for result in results:
        *cells, remark = _row(result)
        if len(remark) > _LONGEST_REMARK:
            below.setdefault(f"{result.status}: {remark}", []).append(f"{result.kernel} on {result.case}")
            remark = "see below"
        rows.append((*cells, remark))
    print_table(_COLUMNS, rows)
    width = min(console().width, PIPED_WIDTH)
    lines = [f"{ERROR_MEANING}; {_OTHER_COLUMNS}"] if any(result.accuracy is not None for result in results) else []
    for remark, subjects in below.items():
        more = f" and {len(subjects) - 3} more" if len(subjects) > 3 else ""
        lines.append(f"{one_line(', '.join(subjects[:3]) + more)}: {one_line(remark, 2000)}")
    for line in lines:
        typer.echo(textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))


def _row(result: Result) -> tuple[str, ...]:
    from ..report.wording import error_ratio

    accuracy = result.accuracy
    figures: tuple[Any, ...] = ("", "", "", "")
    remark = result.reason
    if accuracy is not None:
        figures = (
            accuracy.contract,
            error_ratio(accuracy),
            _relative(accuracy.max_error, accuracy.split_max_error),
            f"{100 * accuracy.equal_to_split:.2f} %",
        )
        if accuracy.interpreted:
            remark = f"interpreted on {accuracy.tokens} tokens, bias at magnitude 1 only" if accuracy.passed and accuracy.tokens else remark
    if result.covers:
        remark = "; ".join(part for part in (f"covers: {result.covers}", remark) if part)
    return (f"{result.suite}:{result.case}", result.shape, result.kernel, result.status.value, *figures, remark)


def _relative(error: float, split: float) -> str:
    """As `error_ratio` writes it."""
    return f"{error / split:.2f}x" if split > 0 else f"{error:.1e}" if error else "0"
