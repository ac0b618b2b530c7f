"""The outcome of `fusebench bisect`: lines for a terminal, the text of an issue, and one JSON document, all from the record."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from ..stats.paired import describe_change
from ..store.bisection_record import Basis, Bisection, Commit, Probe
from . import escape
from .evidence.attached import evidence_row
from .run.document import ends, finite
from .run.markdown import evidence_markdown, markdown_table
from .wording import DASH, count, microseconds

HEADER = ("commit", "subject", "against", "basis", "change", "answer")
_SHOWN = 40
"""Commits of a range that are listed by name."""


def bisect_lines(record: Bisection) -> list[str]:
    """The outcome for a terminal, safe to print."""
    record = escape.cleaned(record)
    lines = [f"{record.kernel} on {record.case.key}, {record.device_name}", record.reason]
    if record.found is not None:
        lines.append(f"  {record.found.commit}  {record.found.author}, {record.found.date}\n  {record.found.subject}")
    elif record.size is not None:
        lines += [f"  {one.commit[:12]}  {one.subject}" for one in record.suspects[:_SHOWN]]
    lines += [*_numbers(record), *(f"warning: {text}" for text in record.warnings)]
    if merge := _merge(record):
        lines.append(merge)
    return lines


def issue_lines(record: Bisection) -> list[str]:
    """Lines of the issue in Markdown: the commit, its size, the evidence, the steps and the command that reproduces it."""
    record = escape.cleaned(record)
    found, kernel = record.found, escape.code(record.kernel)
    on = f"on {escape.code(record.case.key)} ({escape.markdown(record.device_name)})"
    lines = [f"# {record.kernel} became slower{f': {found.commit[:12]}' if found is not None else ''}", ""]
    lines += [f"<!-- fusebench:bisect:{record.kernel}:{record.case.key} -->", ""]
    if found is not None and record.step is not None and record.step.change is not None:
        size = escape.markdown(describe_change(record.step.change, 2))
        times = f" from {microseconds(record.step.time_us)} us" if record.step.time_us is not None else ""
        lines += [f"Commit {escape.code(found.commit)} made {kernel} slower {on}: {size}{times}.", "", *_commit(found), ""]
        if record.step.changed_files:
            lines += [f"Changed files: {', '.join(map(escape.code, record.step.changed_files))}.", ""]
    else:
        lines += [f"{kernel} {on}: {escape.markdown(record.reason)}.", ""]
        if record.size is not None and len(record.suspects) > 1:
            lines += [f"* {escape.code(one.commit[:12])} {escape.markdown(one.subject)}" for one in record.suspects[:_SHOWN]]
            if len(record.suspects) > _SHOWN:
                lines.append(f"* and {len(record.suspects) - _SHOWN} more")
            lines.append("")
    lines += [f"* {escape.markdown(line)}" for line in _numbers(record)]
    lines += [f"* {escape.markdown(text)}" for text in (*record.warnings, *([_merge(record)] if _merge(record) else []))]
    if record.step is not None:
        lines += ["", *evidence_markdown([(record.kernel, record.case.key, one) for one in record.step.attachments])]
    probes = [*record.probes, *([record.step] if record.step is not None and record.step not in record.probes else [])]
    lines += ["", "<details><summary>Steps</summary>", "", *markdown_table(HEADER, [_row(one) for one in probes])]
    lines += ["", "</details>", "", "To reproduce:", "", *escape.code_block("\n".join(reproduce(record)))]
    return lines


def reproduce(record: Bisection) -> list[str]:
    """The commands that measure the found commit against its predecessor, and that search again."""
    selection = ["--suite", record.case.suite, "--case", record.case.name, "--kernel", record.kernel]
    lines = []
    if record.found is not None and record.before is not None:
        ab = shlex.join(["fusebench", "ab", *selection, "--exact", "--base", record.before.commit])
        lines.append(f"git checkout {record.found.commit} && {ab}")
    ends_of = ["--good", record.good.commit, "--bad", record.bad.commit]
    return [*lines, shlex.join(["fusebench", "bisect", *selection, *ends_of])]


def bisect_document(record: Bisection, folder: Path | None) -> dict[str, Any]:
    """The document of `bisect --json`; floats are finite or None."""
    step = record.step
    return {
        "search": str(folder) if folder is not None else None,
        "bisection_version": record.bisection_version,
        "exit_code": record.exit_code,
        "complete": record.complete,
        "reason": record.reason,
        "kernel": record.kernel,
        "case": record.case.name,
        "suite": record.case.suite,
        "device": record.device_name,
        "good": _plain(record.good),
        "bad": _plain(record.bad),
        "found": _plain(record.found) if record.found is not None else None,
        "suspects": [_plain(one) for one in record.suspects],
        "change": finite(step.change.value) if step is not None and step.change is not None else None,
        "change_ci": ends(step.change) if step is not None else None,
        "size": finite(record.size),
        "error_rate": record.error_rate,
        "commits": record.commits,
        "measured": record.measured,
        "probes": [_probe(one) for one in record.probes],
        "step": _probe(step) if step is not None else None,
        "warnings": record.warnings,
        "issue": "\n".join(issue_lines(record)) + "\n",
    }


def _numbers(record: Bisection) -> list[str]:
    """The search in figures."""
    size = [f"bad takes {100 * (record.size - 1):.2f} % longer than good"] if record.size is not None else []
    basis = Counter(one.basis for one in record.probes)
    free = [f"{number} {what.value}" for what, number in basis.items() if what is not Basis.TIMED]
    others = f" ({', '.join(free)})" if free else ""
    return [
        *size,
        f"{count(record.commits, 'commit')} after {record.good.commit[:12]}, {record.groups} of them with changed kernels folders; "
        f"{count(record.measured, 'commit')} measured{others}; error rate of the search {100 * record.error_rate:.0f} %",
    ]


def _merge(record: Bisection) -> str:
    """How to search within a merge that was found."""
    if record.found is None or len(record.found.parents) < 2:
        return ""
    first, second = record.found.parents[:2]
    return (
        f"{record.found.commit[:12]} is a merge: search what it merged with --good $(git merge-base {first[:12]} {second[:12]}) "
        f"--bad {second[:12]}"
    )


def _commit(commit: Commit) -> list[str]:
    return [f"> {escape.markdown(commit.subject)}", ">", f"> {escape.markdown(commit.author)}, {commit.date}"]


def _row(probe: Probe) -> list[str]:
    change = describe_change(probe.change, 2) if probe.change is not None else DASH
    return [
        escape.code(probe.commit[:12]),
        escape.one_line(probe.subject, 60),
        escape.code(probe.against[:12]),
        probe.basis.value,
        change,
        f"{probe.side.value}: {escape.one_line(probe.reason, 200)}" if probe.basis is Basis.NONE else probe.side.value,
    ]


def _plain(commit: Commit) -> dict[str, Any]:
    return {
        "commit": commit.commit,
        "author": commit.author,
        "date": commit.date,
        "subject": commit.subject,
        "merge": len(commit.parents) > 1,
    }


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "commit": probe.commit,
        "against": probe.against,
        "side": probe.side.value,
        "basis": probe.basis.value,
        "change": finite(probe.change.value) if probe.change is not None else None,
        "change_ci": ends(probe.change),
        "confirmed_by": list(probe.confirmation.estimates) if probe.confirmation is not None else [],
        "changed_files": list(probe.changed_files),
        "failed": probe.failed,
        "reason": probe.reason,
        "comparison": probe.folder or None,
        **evidence_row(probe.attachments),
    }
