"""A run as JUnit XML, for CI systems that show test results: one test case per kernel and case."""

from __future__ import annotations

from xml.etree import ElementTree

from ..schema import FAILED_STATUSES, Result, Run, Status, VerdictKind
from .wording import headline, part_label, short_kernel, with_spread


def junit_xml(run: Run) -> str:
    """Regressions are failures, kernels that failed are errors, what was not timed or not decided is skipped with its reason."""
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
    verdict = result.verdict
    if result.status in FAILED_STATUSES:
        ElementTree.SubElement(case, "error", type=str(result.status), message=_printable(result.reason or str(result.status)))
    elif verdict is not None and verdict.kind is VerdictKind.ERROR:
        ElementTree.SubElement(case, "error", type="error", message=_printable(verdict.reason))
    elif verdict is not None and verdict.kind is VerdictKind.REGRESSION:
        ElementTree.SubElement(case, "failure", type="regression", message=_printable(verdict.reason))
    elif verdict is not None and verdict.kind in (VerdictKind.UNDECIDED, VerdictKind.INCOMPARABLE):
        ElementTree.SubElement(case, "skipped", message=_printable(f"{verdict.kind}: {verdict.reason}"))
    elif result.status not in (Status.MEASURED, Status.CHECKED):
        ElementTree.SubElement(case, "skipped", message=_printable(f"{result.status}: {result.reason}"))
    if result.measurement is not None:
        part = f" ({part_label(result)})" if result.covers else ""
        ElementTree.SubElement(case, "system-out").text = f"{with_spread(result.measurement.time_us)} us{part}"
    return case


def _printable(text: str) -> str:
    """`text` without the control characters that XML 1.0 forbids: a kernel's own message may hold any."""
    return "".join(character if character in "\t\n" or character >= " " else "?" for character in text)
