"""A run as JUnit XML, for CI systems that show test results: one test case per kernel and case."""

from __future__ import annotations

from xml.etree import ElementTree

from ..schema import FAILED_STATUSES, Result, Run, Status, VerdictKind
from .wording import failure_reason, headline, part_label, short_kernel, with_spread


def junit_xml(run: Run) -> str:
    """Regressions are failures, kernels that failed are errors, what was not timed or not decided is skipped with its reason.

    So is whatever has no say in the exit code: a reader of this file must not call for what the command lets pass.
    """
    root = ElementTree.Element("testsuites", name=f"fusebench {headline(run)}")
    for name in dict.fromkeys(result.suite for result in run.results):
        results = [result for result in run.results if result.suite == name]
        cases = [_test_case(result) for result in results]
        counts = {kind: str(sum(case.find(kind) is not None for case in cases)) for kind in ("failure", "error", "skipped")}
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(cases)),
            failures=counts["failure"],
            errors=counts["error"],
            skipped=counts["skipped"],
            timestamp=run.created,
        )
        suite.extend(cases)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _test_case(result: Result) -> ElementTree.Element:
    seconds = result.measurement.time_us.value / 1e6 if result.measurement is not None else 0.0
    case = ElementTree.Element(
        "testcase", classname=f"{result.suite}.{result.case}", name=short_kernel(result.kernel), time=f"{seconds:.9f}"
    )
    if (trouble := _trouble(result)) is not None:
        element, kind, message = trouble
        if element == "skipped" or not result.gating:
            ElementTree.SubElement(case, "skipped", message=_printable(f"{kind}: {message}"))
        else:
            ElementTree.SubElement(case, element, type=kind, message=_printable(message))
    if result.measurement is not None:
        part = f" ({part_label(result)})" if result.covers else ""
        ElementTree.SubElement(case, "system-out").text = f"{with_spread(result.measurement.time_us)} us{part}"
    return case


def _trouble(result: Result) -> tuple[str, str, str] | None:
    """The element, type and message of what is not in order, were it to count; None where all is well."""
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


def _printable(text: str) -> str:
    """`text` without the control characters that XML 1.0 forbids: a kernel's own message may hold any."""
    return "".join(character if character in "\t\n" or character >= " " else "?" for character in text)
