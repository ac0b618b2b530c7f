"""Tables of static evidence: the compiled code of every launch, and the changes against other evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from ...evidence.amd_targets import AMD_TARGETS
from ...evidence.records import KernelEvidence, Launch, StaticReport, StaticStatus
from ...evidence.static_gate import IDENTICAL, StaticJudgement
from ...evidence.targets import ALL_TARGETS
from ...schema import VerdictKind
from ..wording import tallied

EVIDENCE_COLUMNS = (
    "case", "shape", "kernel",
    "regs", "spills", "stack", "shared", "threads", "occupancy", "waves",
    "loads (n x B)", "stores (n x B)", "shared ld/st", "local", "barriers", "shuffles", "sfu", "branches", "instr.", "bytes",
    "code", "remark",
)  # fmt: skip
_AMD_COLUMNS = {
    "regs": ("vgprs", "agprs", "sgprs"),
    "spills": ("spills", "v/s spilled"),
    "stack": ("scratch",),
    "shared": ("lds",),
    "waves": ("rounds",),
}
"""Columns of a report on an AMD target, by the column whose place they take."""
_WAVES = ("waves", *_AMD_COLUMNS["waves"])
EVIDENCE_NUMBERS = (
    "vgprs", "agprs", "sgprs", "scratch", "rounds",
    "regs", "spills", "stack", "threads", "waves", "local", "barriers", "shuffles", "sfu", "branches", "instr.", "bytes",
)  # fmt: skip
CHANGE_COLUMNS = ("target", "verdict", "case", "kernel", "launch", "figure", "old", "new")
_HASH_DIGITS = 8


def evidence_columns(report: StaticReport) -> tuple[str, ...]:
    """The heads of `evidence_rows`."""
    if report.target not in AMD_TARGETS:
        return EVIDENCE_COLUMNS
    return tuple(one for column in EVIDENCE_COLUMNS for one in _AMD_COLUMNS.get(column, (column,)))


def evidence_rows(report: StaticReport) -> list[tuple[str, ...]]:
    """A row per kernel and case, and per launch of several.

    Where a kernel's machine code has been shown, a row holds its case's waves alone, and refers to the first such row.
    """
    rows: list[tuple[str, ...]] = []
    first_seen: dict[tuple[object, ...], str] = {}
    columns = evidence_columns(report)
    for one in report.results:
        head = (one.case, one.shape, one.kernel)
        blanks = ("",) * (len(columns) - len(head) - 1)
        if one.status is not StaticStatus.COMPILED:
            rows.append((*head, *blanks, f"{one.status.replace('_', ' ')}: {one.reason}"))
            continue
        seen = first_seen.setdefault(_identity(one), one.case)
        for place, launch in enumerate(one.launches):
            figures = _figures(launch, report.target)
            remarks = [f"launch {place + 1} of {len(one.launches)}"] if len(one.launches) > 1 else []
            if seen != one.case:
                figures = tuple(figure if column in _WAVES else "" for column, figure in zip(columns[len(head) : -1], figures, strict=True))
                remarks += [f"same machine code as {seen}"] if place == 0 else []
            rows.append((*(head if place == 0 else ("", "", "")), *figures, "; ".join(remarks)))
    return rows


def evidence_document(report: StaticReport) -> dict[str, Any]:
    """The report for JSON, with each launch's `waves` (null where no block fits, or the target is not known)."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    for shown, one in zip(document["results"], report.results, strict=True):
        for place, launch in enumerate(one.launches):
            waves = _waves(launch, report.target)
            shown["launches"][place]["waves"] = waves if math.isfinite(waves) else None
    return document


LOW_OCCUPANCY = 0.5
"""Share of the warps.  No verdict: a kernel bound by memory reaches full bandwidth with less, if each warp has enough bytes in flight."""


def limited_rows(reports: Sequence[StaticReport]) -> list[tuple[str, ...]]:
    """A row per kernel and case with a launch that spills or has low occupancy on one of the targets: case, kernel, a cell per target.

    A cell holds the least occupancy of the launches and its limit, and the most bytes spilled (stores/loads); `-` without figures.
    """
    found = {report.target: {one.key: one for one in report.results if one.launches} for report in reports}
    keys = dict.fromkeys(key for results in found.values() for key in results)
    limited = [key for key in keys if any(_is_limited(results[key]) for results in found.values() if key in results)]
    return [(*key, *(_limits(results[key]) if key in results else "-" for results in found.values())) for key in limited]


def _is_limited(one: KernelEvidence) -> bool:
    return any(launch.occupancy.share < LOW_OCCUPANCY or _spilled(launch) != (0, 0) for launch in one.launches)


def _spilled(launch: Launch) -> tuple[int, int]:
    return launch.code.spill_stores, launch.code.spill_loads


def _limits(one: KernelEvidence) -> str:
    held = min((launch.occupancy for launch in one.launches), key=lambda occupancy: occupancy.share)
    stores, loads = max(map(_spilled, one.launches))
    return f"{100 * held.share:.0f} % {', '.join(held.limited_by)}" + (f"; spills {stores}/{loads}" if stores or loads else "")


def summary_line(report: StaticReport) -> str:
    """The amount of evidence, and the toolchain that made it."""
    statuses = Counter(one.status for one in report.results)
    compiled = [one for one in report.results if one.status is StaticStatus.COMPILED]
    codes = {launch.code.sha256 for one in compiled for launch in one.launches}
    counts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sorted(statuses.items()))
    tools = "; ".join(sorted({launch.code.compiler for one in compiled for launch in one.launches}))
    return f"{report.target}: {counts or 'no Triton or CUDA C++ kernel'}; {len(codes)} machine codes; {tools or 'nothing compiled'}"


def change_rows(judgements: Sequence[StaticJudgement]) -> list[tuple[str, ...]]:
    """A row per figure that differs, or per verdict without figures; what passed unchanged is left out."""
    rows: list[tuple[str, ...]] = []
    for one in judgements:
        head = (one.target, one.kind.value, one.case, one.kernel)
        if not one.changes and one.kind is not VerdictKind.PASS:
            rows.append((*head, "", one.reason, "", ""))
        for place, change in enumerate(one.changes):
            shown = head if place == 0 else (one.target, "", "", "")
            mark = {VerdictKind.REGRESSION: " (worse)", VerdictKind.IMPROVEMENT: " (better)"}.get(change.kind, "")
            rows.append((*shown, str(change.launch + 1), f"{change.what}{mark}", change.old, change.new))
    return rows


def verdict_line(judgements: Sequence[StaticJudgement]) -> str:
    """`3 pass (2 of identical machine code), 1 regression`."""
    identical = sum(one.reason == IDENTICAL for one in judgements)
    return f"{tallied(one.kind for one in judgements) or 'nothing judged'}; {identical} of identical machine code"


def _identity(one: KernelEvidence) -> tuple[object, ...]:
    """Equal for rows that would show the same figures."""
    return one.kernel, tuple((launch.code.sha256, launch.threads, launch.dynamic_shared, launch.occupancy) for launch in one.launches)


def _waves(launch: Launch, target: str) -> float:
    return launch.waves(ALL_TARGETS[target].multiprocessors) if target in ALL_TARGETS else math.nan


def _figures(launch: Launch, target: str) -> tuple[str, ...]:
    code, held, counts = launch.code, launch.occupancy, launch.code.instructions
    amd = code.amd
    return (
        str(code.registers),
        *((str(amd.accumulation), str(amd.scalar)) if amd else ()),
        f"{code.spill_stores}/{code.spill_loads}" if code.spill_stores or code.spill_loads else "0",
        *((f"{amd.spilled_vector}/{amd.spilled_scalar}",) if amd else ()),
        str(code.stack),
        f"{code.static_shared}+{launch.dynamic_shared}" if code.static_shared or launch.dynamic_shared else "0",
        str(launch.threads),
        f"{100 * held.share:.0f} % ({', '.join(held.limited_by)})",
        f"{_waves(launch, target):.2f}",
        _widths(counts.global_loads),
        _widths(counts.global_stores),
        f"{counts.shared_loads}/{counts.shared_stores}" if counts.shared_loads or counts.shared_stores else "0",
        str(counts.local),
        str(counts.barriers),
        str(counts.shuffles),
        str(counts.special_functions),
        str(counts.branches),
        str(counts.total),
        str(code.size),
        code.sha256[:_HASH_DIGITS],
    )


def _widths(counts: dict[int, int]) -> str:
    return " ".join(f"{count}x{width}" for width, count in sorted(counts.items(), reverse=True)) or "0"
