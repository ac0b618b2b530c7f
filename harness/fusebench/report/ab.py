"""The results of `fusebench ab` as a terminal table, a report and one JSON document, made from the record."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..schema import Spending, VerdictKind
from ..stats.paired import describe_change
from ..store.comparison_record import COMPARISON_VERSION, BaseRevision, ComparedCase, ComparedKernel, Comparison, RevisionPresence
from ..verdict.accuracy_change import accuracy_growth
from . import escape
from .evidence.attached import Attached, evidence_parts, evidence_row
from .run.document import ends, finite
from .run.markdown import evidence_markdown, markdown_table
from .run.summary import calibration_words
from .run.table import VERDICT_STYLES
from .terminal import FittedTable
from .wording import DASH, absent_words, count, error_over_split, microseconds, short_kernel, tallied

if TYPE_CHECKING:
    from rich.console import Console

HEADER = ("kernel", "base us", "head us", "change", "replicates", "rms error, head / base", "verdict")


def ab_lines(comparison: Comparison) -> list[tuple[str, str]]:
    """The sentences around the tables, each with its terminal style."""
    kinds = [one.verdict.kind for one in comparison.kernels if not one.absent]
    lines = [(tallied(kinds, sorted({*kinds})) or "nothing was compared", "bold")]
    for kind in (VerdictKind.ERROR, VerdictKind.REGRESSION, VerdictKind.UNDECIDED, VerdictKind.IMPROVEMENT):
        found = [one for one in comparison.kernels if one.verdict.kind is kind]
        lines += [(f"{kind.value}: {one.kernel} on {one.case_key}: {_explained(one)}", VERDICT_STYLES[kind]) for one in found]
    lines += [(f"{names}: {reason}", "dim") for reason, names in _left_out(comparison).items()]
    if absent := absent_words((one.kernel, one.reason) for one in comparison.kernels if one.absent):
        lines.append((absent, "dim"))
    lines += [(line, "") for line in (_noise(comparison), calibration(comparison), _spent(comparison.spending)) if line]
    lines += [(f"warning: {warning}", "yellow") for warning in (*comparison.base.notes, *comparison.warnings)]
    if not comparison.complete:
        lines.append(("this comparison is incomplete: not every case was measured", "yellow"))
    return lines


def headline(comparison: Comparison) -> str:
    """Head, base, device and timer."""
    environment, base = comparison.environment, comparison.base
    head = (environment.git_commit[:12] or "this checkout") + (" with uncommitted changes" if environment.git_dirty else "")
    origin = f", the merge base of HEAD and {base.asked}" if base.merge_base and base.asked else f", {base.asked}" if base.commit else ""
    return f"{head} against {base.commit[:12] or base.asked}{origin} · {environment.device_name} · timer {comparison.timer}"


def print_ab(comparison: Comparison, console: Console) -> None:
    """Print the tables and the sentences below them."""
    from rich.text import Text

    comparison = escape.cleaned(comparison)
    console.print(Text(headline(comparison), style="bold"))
    for case in comparison.cases:
        rows: list[list[str | Text]] = []
        for one in _of(comparison, case):
            *cells, verdict = _cells(one)
            rows.append([*cells, Text(verdict, style=VERDICT_STYLES[one.verdict.kind])])
        console.print(FittedTable(HEADER, rows, title=_case_line(case), right=HEADER[1:-1]), crop=False)
    for line, style in ab_lines(comparison):
        console.print(Text(line, style=style))
    for part in evidence_parts(_attached(comparison)):
        console.print(part)


def ab_markdown(comparison: Comparison) -> str:
    """report.md."""
    comparison = escape.cleaned(comparison)
    lines = [f"# {escape.markdown(headline(comparison))}", ""]
    lines += [f"{escape.markdown(line)}\n" for line, _ in ab_lines(comparison)]
    for case in comparison.cases:
        lines += [
            f"## {escape.markdown(_case_line(case))}",
            "",
            *markdown_table(HEADER, [_cells(one) for one in _of(comparison, case)]),
            "",
        ]
    lines += evidence_markdown(_attached(comparison))
    plan = comparison.looks
    lines += [
        f"Every replicate is a fresh random placement of all buffers with {comparison.plan.rounds} rounds ({comparison.plan.cache.value} "
        f"cache). Pairs were judged after {', '.join(map(str, plan.looks))} replicates "
        f"with a margin of {100 * plan.margin:.1f} %, at least "
        f"{plan.floor_us:g} us; changes were confirmed in fresh processes."
    ]
    return "\n".join(lines).rstrip() + "\n"


def ab_document(comparison: Comparison, folder: Path | None) -> dict[str, Any]:
    """The document of `ab --json`; floats are finite or None."""
    cases = {case.case.key: case for case in comparison.cases}
    return {
        "run": str(folder) if folder is not None else None,
        "comparison_version": comparison.comparison_version,
        "device": comparison.environment.device_name,
        "timer": comparison.timer,
        "exit_code": int(comparison.exit_code),
        "complete": comparison.complete,
        "identical_source": False,
        "head": {"commit": comparison.environment.git_commit, "dirty": comparison.environment.git_dirty},
        "base": msgspec.to_builtins(comparison.base),
        "calibration": calibration(comparison),
        "warnings": [*comparison.base.notes, *comparison.warnings],
        "waited_s": comparison.waited_s,
        "results": [_result(one, cases.get(one.case_key)) for one in comparison.kernels],
    }


def identical_line(base: BaseRevision) -> str:
    """The answer where both revisions hold the same files."""
    against = escape.cleaned(base.commit[:12] or base.asked)
    return (
        f"identical source: every file of the kernels folders is the same here and in {against}, so there is nothing to measure; "
        "--time-identical measures all the same, as an A/A check"
    )


def identical_document(base: BaseRevision, device: str, head: tuple[str, bool]) -> dict[str, Any]:
    """The document of `ab --json` where both revisions hold the same files: without results and without a run's folder.

    Args:
        head: head's commit, and whether the tree differs from it.
    """
    return {
        "run": None,
        "comparison_version": COMPARISON_VERSION,
        "device": device,
        "timer": None,
        "exit_code": 0,
        "complete": True,
        "identical_source": True,
        "head": {"commit": head[0], "dirty": head[1]},
        "base": msgspec.to_builtins(base),
        "calibration": None,
        "warnings": list(base.notes),
        "waited_s": 0.0,
        "results": [],
    }


def calibration(comparison: Comparison) -> str:
    """How reliable verdicts are on this device, from its calibration."""
    return calibration_words(comparison.calibration, comparison.environment.device, comparison.timer, comparison.plan.cache)


def _result(one: ComparedKernel, case: ComparedCase | None) -> dict[str, Any]:
    finding, change = one.finding, one.verdict.change
    limit_us = case.limit_us if case is not None else None
    return {
        "case": one.case,
        "suite": one.suite,
        "op": one.op,
        "kernel": one.kernel,
        "role": str(one.role),
        "standing": str(one.presence),
        "status": str(one.new_status) if one.new_status is not None else None,
        "shape": case.shape if case is not None else "",
        "changed_files": list(one.changed_files),
        "same_code": one.same_code,
        "new_us": finite(one.new_us),
        "base_us": finite(one.old_us),
        "change": finite(change.value) if change else None,
        "change_ci": ends(change),
        "replicates": finding.replicates if finding else 0,
        "margin": finding.margin if finding else None,
        "adjusted_p": finite(one.adjusted_p),
        "confirmed_by": list(one.confirmation.estimates) if one.confirmation else [],
        "sol": finite(limit_us / one.new_us) if limit_us is not None and one.new_us and not one.covers else None,
        "error_over_split": finite(error_over_split(one.new_accuracy)),
        "error_growth": finite(_growth(one)),
        "verdict": str(one.verdict.kind),
        "reason": one.reason if one.absent else one.verdict.reason,
        **evidence_row(one.attachments),
    }


def _attached(comparison: Comparison) -> list[Attached]:
    return [(one.kernel, one.case_key, attachment) for one in comparison.kernels for attachment in one.attachments]


def _cells(one: ComparedKernel) -> list[str]:
    change, growth = one.verdict.change, _growth(one)
    return [
        short_kernel(one.kernel),
        microseconds(one.old_us),
        microseconds(one.new_us),
        describe_change(change, 2) if change is not None and change.low > 0 and math.isfinite(change.high) else DASH,
        str(one.finding.replicates) if one.finding is not None else DASH,
        DASH if growth is None else f"{growth:.2f} x",
        _outcome(one),
    ]


def _outcome(one: ComparedKernel) -> str:
    if one.presence is not RevisionPresence.BOTH:
        return f"{one.presence.value}: not compared"
    if one.verdict.kind is VerdictKind.PASS and not one.changed_files:
        return "pass: identical source"
    if one.verdict.kind is VerdictKind.PASS and one.same_code:
        return "pass: identical machine code"
    return one.verdict.kind.value


def _growth(one: ComparedKernel) -> float | None:
    if one.new_accuracy is None or one.old_accuracy is None:
        return None
    return accuracy_growth(one.new_accuracy, one.old_accuracy)


def _explained(one: ComparedKernel) -> str:
    changed = f" (changed: {', '.join(one.changed_files)})" if one.changed_files else ""
    return f"{one.verdict.reason}{changed}"


def _left_out(comparison: Comparison) -> dict[str, str]:
    """By reason, the kernels that were not compared for it."""
    found: dict[str, dict[str, None]] = {}
    for one in comparison.kernels:
        if one.verdict.kind is VerdictKind.INCOMPARABLE and not one.absent:
            found.setdefault(one.verdict.reason, {})[one.kernel] = None
    return {reason: ", ".join(names) for reason, names in found.items()}


def _noise(comparison: Comparison) -> str:
    aa_pairs = comparison.aa_pairs
    if not aa_pairs:
        return ""
    largest = max(abs(math.log(pair.change.value)) for pair in aa_pairs)
    wrong = sum(pair.kind is VerdictKind.REGRESSION for pair in aa_pairs)
    seen = f"{count(len(aa_pairs), 'comparison')} of identical code differed by up to {100 * math.expm1(largest):.2f} %"
    return f"{seen}; their times alone call {wrong} of them slower"


def _spent(spending: Spending | None) -> str:
    if spending is None:
        return ""
    phases = "; ".join(f"{name} {seconds:.1f} s" for name, seconds in list(spending.phases_s.items())[:4])
    return f"took {spending.total_s:.0f} s" + (f": {phases}" if phases else "")


def _case_line(case: ComparedCase) -> str:
    parts = [case.case.key, case.shape]
    if case.same_as:
        parts.append(f"the same work as {case.same_as}")
    if case.stream_us is not None:
        parts.append(f"stream {microseconds(case.stream_us.value)} us")
    if case.replicates:
        parts.append(f"{case.replicates} replicates, {case.gpu_seconds:.1f} s of timed rounds")
    return " · ".join(parts)


def _of(comparison: Comparison, case: ComparedCase) -> list[ComparedKernel]:
    """The case's kernels, without those that one line names because they cannot run here."""
    return [one for one in comparison.kernels if one.case_key == case.case.key and not one.absent]
