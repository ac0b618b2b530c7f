"""A run for CI systems: JUnit XML with one test case per kernel and case, and GitHub annotations for a reviewer."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from ...schema import FAILED_STATUSES, Result, Run, Status, VerdictKind
from .. import escape
from ..wording import failure_reason, part_label, part_notes, short_kernel, with_spread
from .savings import weighted_lines
from .summary import headline, verdict_line, warnings_told


def junit_xml(run: Run) -> str:
    """JUnit XML: regressions are failures, failed kernels are errors, and kernels without a time or decision are skipped with the reason.

    An advisory result is skipped too: a CI system must not fail where the command's exit status is 0.
    """
    root = ElementTree.Element("testsuites", name=escape.text(f"fusebench {headline(run)}"))
    for name in dict.fromkeys(result.suite for result in run.results):
        results = [result for result in run.results if result.suite == name]
        cases = [_test_case(result) for result in results]
        counts = {kind: str(sum(case.find(kind) is not None for case in cases)) for kind in ("failure", "error", "skipped")}
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=escape.text(name),
            tests=str(len(cases)),
            failures=counts["failure"],
            errors=counts["error"],
            skipped=counts["skipped"],
            timestamp=escape.text(run.created),
        )
        suite.extend(cases)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _test_case(result: Result) -> ElementTree.Element:
    seconds = result.measurement.time_us.value / 1e6 if result.measurement is not None else 0.0
    case = ElementTree.Element(
        "testcase",
        classname=escape.text(f"{result.suite}.{result.case}"),
        name=escape.text(short_kernel(result.kernel)),
        time=f"{seconds:.9f}",
    )
    if (trouble := _trouble(result)) is not None:
        element, kind, message = trouble
        if element == "skipped" or not result.gating:
            ElementTree.SubElement(case, "skipped", message=escape.text(f"{kind}: {message}"))
        else:
            ElementTree.SubElement(case, element, type=kind, message=escape.text(message))
    if result.measurement is not None:
        part = f" ({part_label(result)})" if result.covers else ""
        ElementTree.SubElement(case, "system-out").text = escape.text(f"{with_spread(result.measurement.time_us)} us{part}")
    return case


def _trouble(result: Result) -> tuple[str, str, str] | None:
    """The element, type and message of a result with a problem, as if it were gating; None without a problem."""
    verdict = result.verdict
    if result.status in FAILED_STATUSES:
        return "error", str(result.status), failure_reason(result) or str(result.status)
    if verdict is not None and verdict.kind is VerdictKind.ERROR:
        return "error", "error", verdict.reason
    if verdict is not None and verdict.kind is VerdictKind.REGRESSION:
        return "failure", "regression", verdict.reason
    if verdict is not None and verdict.kind in (VerdictKind.UNDECIDED, VerdictKind.INCOMPARABLE):
        return "skipped", str(verdict.kind), verdict.reason
    if result.status not in (Status.MEASURED, Status.CHECKED):
        return "skipped", str(result.status), result.reason
    return None


def github_annotations(run: Run) -> str:
    """One workflow command per finding.

    `::error`: failed kernels and regressions.  `::warning`: undecided and incomparable kernels, and the run's own warnings.  `::notice`:
    advisory findings of either kind, the verdict of the run with its weighted speedups, and each kernel that covers a part of its op.
    """
    lines = [line for result, alike in _told_once(run.results) if (line := _annotation(result, alike))]
    if not run.complete:
        lines.append(_command("warning", "incomplete run", "not every case was measured, or not every suspect remeasured"))
    lines += [_command("warning", "fusebench", warning) for warning in warnings_told(run)]
    summary = "; ".join([verdict_line(run), *weighted_lines(run)])
    lines.append(_command("notice", f"fusebench: {headline(run)}", summary))
    lines += [_command("notice", "fusebench: part of an op", note) for note in part_notes(run)]
    return "\n".join(lines) + "\n"


def _told_once(results: Sequence[Result]) -> list[tuple[Result, int]]:
    """Results with the number of others that are incomparable for the same reason, which are left out: GitHub shows ten a step."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for place, result in enumerate(results):
        verdict = result.verdict
        alike = verdict is not None and verdict.kind is VerdictKind.INCOMPARABLE and result.status not in FAILED_STATUSES
        groups.setdefault((verdict.reason, result.gating) if alike and verdict is not None else (place,), []).append(result)
    return [(group[0], len(group) - 1) for group in groups.values()]


def _annotation(result: Result, alike: int) -> str:
    silent = "" if result.gating else "notice"
    where = f"{result.kernel} on {result.suite}:{result.case}" + (f" and {alike} more" if alike else "")
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
    return f"::{level} title={escape.annotation(title, in_property=True)}::{escape.annotation(message)}"
