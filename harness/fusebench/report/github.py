"""A run as GitHub workflow commands: one annotation for each thing that a reviewer must see."""

from __future__ import annotations

from ..schema import FAILED_STATUSES, Result, Run, VerdictKind
from .table import weighted_lines
from .wording import failure_reason, headline, part_notes


def github_annotations(run: Run) -> str:
    """`::error` for failed kernels and regressions, `::warning` for undecided or incomparable ones and for the run's own warnings,
    `::notice` for any of these that has no say in the exit code, one with the weighted speedups and one for each kernel that covers a part
    of its op."""
    lines = [line for result in run.results if (line := _annotation(result))]
    if not run.complete:
        lines.append(_command("warning", "incomplete run", "not every case was measured"))
    lines += [_command("warning", "fusebench", warning) for warning in run.warnings]
    summary = "; ".join(weighted_lines(run)) or "no weighted speedup"
    lines.append(_command("notice", f"fusebench: {headline(run)}", summary))
    lines += [_command("notice", "fusebench: part of an op", note) for note in part_notes(run)]
    return "\n".join(lines) + "\n"


def _annotation(result: Result) -> str:
    silent = "" if result.gating else "notice"
    where = f"{result.kernel} on {result.suite}:{result.case}"
    if result.status in FAILED_STATUSES:
        return _command(silent or "error", f"{where}: {result.status}", failure_reason(result) or "no reason recorded")
    if result.verdict is None:
        return ""
    kind = result.verdict.kind
    if kind in (VerdictKind.REGRESSION, VerdictKind.ERROR):
        return _command(silent or "error", f"{where}: {kind}", result.verdict.reason)
    if kind in (VerdictKind.UNDECIDED, VerdictKind.INCOMPARABLE):
        return _command(silent or "warning", f"{where}: {kind}", result.verdict.reason)
    return ""


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_escape(title, in_property=True)}::{_escape(message)}"


def _escape(text: str, *, in_property: bool = False) -> str:
    """Percent-encoding as workflow commands define it: line ends everywhere, separators in properties too."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text
