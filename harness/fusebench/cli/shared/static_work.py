"""Shared by `static` and `ab --static`: targets by name, collection with progress, printing."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from ...cores import usable_cores
from ...errors import UsageError
from ...schema import ExitCode
from .output import print_json, print_table, remark

if TYPE_CHECKING:
    from ...evidence.records import Code, StaticReport
    from ...evidence.static_gate import StaticJudgement
    from ...evidence.static_process import Progress
    from ...evidence.targets import AnyTarget
    from ...runner.evidence.base_checkout import BaseChoice
    from .selection import Selection


def find_targets(names: Sequence[str] | None, *, gate: bool = False) -> list[AnyTarget]:
    """The targets called `names`, once each; with `gate` and without names, the targets with a baseline.

    Raises:
        UnknownNameError: an unknown target; the message offers the nearest.
        UsageError: no names, and no baselines to take them from.
    """
    from ...config import find_project
    from ...evidence.targets import ALL_TARGETS, target
    from ...store.static_baselines import targets_with_baselines

    if names:
        return [target(name) for name in dict.fromkeys(names)]
    known = targets_with_baselines(find_project().results) if gate else []
    if not known:
        there = "there is no baseline to take it from; " if gate else ""
        raise UsageError(f"no target: {there}pass --arch NAME, one or several of {', '.join(ALL_TARGETS)}")
    return [target(name) for name in known]


def require_margin(margin: float) -> None:
    """Raise UsageError unless `margin` is a share."""
    if not 0 <= margin < 1:
        raise UsageError(f"--margin {margin:g}: expected a share from 0 to 1, for example 0.05 for 5 %")


def collect_all(
    selection: Selection,
    targets: Sequence[AnyTarget],
    *,
    kernel: str | None,
    jobs: int | None,
    use_cache: bool,
    roots: Sequence[Path] | None = None,
    label: str = "",
    trusted: Callable[[AnyTarget], Mapping[str, Code]] = lambda target: {},
) -> list[StaticReport]:
    """A report per target, of the kernels in `roots` (those of the selection by default); progress goes to stderr.

    Args:
        trusted: code that is compiled only as a sample (see `collect`).
    """
    from ...evidence.collecting import collect
    from ...evidence.evidence_cache import EvidenceCache, cache_folder

    cache = EvidenceCache(cache_folder() if use_cache else None)
    reports = []
    for target in targets:
        with ProgressLine(f"{label}{target.name}") as line:
            report = collect(
                selection.cases,
                target,
                ops=selection.collection.ops,
                roots=selection.collection.roots if roots is None else roots,
                kernel=kernel,
                jobs=jobs if jobs is not None else usable_cores(),
                cache=cache,
                trusted=trusted(target),
                on_progress=line.show,
            )
        for problem in report.not_loaded:
            remark("warning", f"{label}{target.name}: not loaded: {problem}")
        reports.append(report)
    return reports


def judge_against(
    new: Sequence[StaticReport],
    old: Sequence[StaticReport],
    selection: Selection,
    *,
    margin: float,
    allow_incomparable: bool,
    kernel: str | None = None,
    reference: str = "the baseline",
    released: bool = False,
    others: Sequence[ExitCode] = (),
) -> tuple[list[StaticJudgement], ExitCode]:
    """The judgements on reports of the same targets, in order, and the exit code of these and of failed kernels.

    Args:
        kernel: glob of the selected kernels; None for all.
        released: whether `old` holds released versions, whose machine code must not change.
        others: exit codes for other reasons, such as a target without a baseline.
    """
    from ...evidence.static_gate import judge
    from ...verdict.exit_status import static_exit_code

    keys = [case.key for case in selection.cases]
    judgements = [
        judgement
        for after, before in zip(new, old, strict=True)
        for judgement in judge(after, before, margin=margin, cases=keys, kernel=kernel, reference=reference, released=released)
    ]
    return judgements, static_exit_code(judgements, new, allow_incomparable=allow_incomparable, others=others)


def print_evidence(reports: Sequence[StaticReport]) -> None:
    """A table and a summary line per target."""
    from ...report.evidence.static_table import EVIDENCE_NUMBERS, evidence_columns, evidence_rows, summary_line

    for report in reports:
        print_table(evidence_columns(report), evidence_rows(report), title=report.target, right=EVIDENCE_NUMBERS)
        typer.echo(summary_line(report))


def print_limited(reports: Sequence[StaticReport]) -> None:
    """One table over all targets: the kernels that spill or have low occupancy on one of them."""
    from ...report.evidence.static_table import LOW_OCCUPANCY, limited_rows, summary_line

    rows = limited_rows(reports)
    if rows:
        print_table(("case", "kernel", *(report.target for report in reports)), rows)
    for report in reports:
        typer.echo(summary_line(report))
    typer.echo(f"{len(rows)} kernels and cases spill, or hold under {100 * LOW_OCCUPANCY:.0f} % of the warps, on one of the targets")


def print_judgements(judgements: Sequence[StaticJudgement]) -> None:
    """Print the changes, and every verdict but a plain pass."""
    from ...report.evidence.static_table import CHANGE_COLUMNS, change_rows

    rows = change_rows(judgements)
    if rows:
        print_table(CHANGE_COLUMNS, rows, right=("launch",))


class ProgressLine:
    """One line that is overwritten on a terminal; elsewhere a line per step, not per item."""

    def __init__(self, label: str) -> None:
        self._label, self._last, self._open = label, "", False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            typer.echo("\r\x1b[K", nl=False, err=True)

    def show(self, progress: Progress) -> None:
        counted = f" {progress.done}/{progress.total}" if progress.total else ""
        if sys.stderr.isatty():
            typer.echo(f"\r\x1b[K{self._label}: {progress.text}{counted}", nl=False, err=True)
            self._open = True
        elif progress.text != self._last:
            typer.echo(f"{self._label}: {progress.text}{f' ({progress.total})' if progress.total else ''}", err=True)
        self._last = progress.text


AB_MARGIN = 0.05
"""Share of instructions that may be added; see docs/static.md."""


class StaticOptions(NamedTuple):
    """As the command line gives them."""

    kernel: str | None
    arch: list[str] | None
    margin: float | None
    allow_incomparable: bool
    jobs: int | None
    no_cache: bool
    json: bool


def compare_static(selection: Selection, base: BaseChoice, options: StaticOptions) -> int:
    """Compare this checkout's compiled kernels with those of the base, and return the exit code."""
    from ...report.evidence.static_table import verdict_line
    from ...runner.evidence.base_checkout import name_of

    limit = AB_MARGIN if options.margin is None else options.margin
    require_margin(limit)
    targets = find_targets(options.arch)

    def collected(label: str, folders: Sequence[Path] | None) -> Any:
        return collect_all(
            selection, targets, kernel=options.kernel, jobs=options.jobs, use_cache=not options.no_cache, roots=folders, label=label
        )

    with tempfile.TemporaryDirectory(prefix="fusebench-ab-") as unpacked:
        revision, roots = base.resolve(selection.project, selection.collection.roots, Path(unpacked))
        name = name_of(revision)
        after, before = collected("", None), collected(f"{name}, ", roots)
    judgements, code = judge_against(after, before, selection, margin=limit, allow_incomparable=options.allow_incomparable, reference=name)
    if options.json:
        cases: dict[str, list[str]] = {}
        for case in selection.cases:
            cases.setdefault(case.op, []).append(case.key)
        print_json({"base": name, "margin": limit, "exit_code": code, "cases": cases, "judgements": judgements})
    else:
        print_judgements(judgements)
        typer.echo(f"against {name}: {verdict_line(judgements)}")
    return int(code)
