"""What a job leaves for people: annotations, summary, pull-request comment, issue, JUnit XML.

Foreign text goes through `report.escape`.  A comment and an issue start with a hidden marker, by which the one that exists is found and
updated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from ..naming import device_slug
from ..report.escape import annotation, cell, code, one_line
from ..report.run.pull_request import ONE_OP_LIMIT
from .comparison_text import comparison_text, counted
from .findings import Declarations, Judged, worst_first
from .outcome import MEANINGS, JobOutcome

STEP_ANNOTATIONS, JOB_ANNOTATIONS = 10, 50
"""GitHub shows ten annotations of a step and fifty of a job, and drops the others without a word."""
COMMENT_LIMIT = 60_000
"""Characters of a comment or an issue; GitHub takes 65 536."""
_ROWS = 40
"""Rows of a table of findings; the others are counted, and stand in junit.xml."""


def annotate(outcome: JobOutcome, declarations: Declarations, used: int = 0) -> list[str]:
    """Workflow commands of one step, at the kernels' file and line: the worst ten; the last one counts the rest.

    Args:
        used: annotations that earlier steps of the job have made; fifty in all.
    """
    found = worst_first(outcome.judged)
    room = min(STEP_ANNOTATIONS, JOB_ANNOTATIONS - used)
    unexplained = outcome.exit_code not in (0, 1, 4, 5) or (outcome.exit_code and not found)
    lines = [f"::error title={_title('fusebench')}::{annotation(line)}" for line in outcome.lines[:1] if unexplained]
    space = max(room - len(lines), 0)
    shown = found if len(found) <= space else found[: max(space - 1, 0)]
    lines += [_annotation(one, declarations) for one in shown]
    if len(shown) < len(found) and space:
        rest = Counter(one.verdict for one in found[len(shown) :])
        counted = ", ".join(f"{number} {verdict}" for verdict, number in rest.items())
        lines.append(f"::notice title=fusebench::{annotation(f'and {len(found) - len(shown)} more: {counted}; see the job summary')}")
    return lines[:room]


def _annotation(one: Judged, declarations: Declarations) -> str:
    place = declarations.place(one.kernel)
    where = f"file={_title(place[0])},line={place[1]}," if place else ""
    title = _title(f"{one.kernel} on {one.case}: {one.verdict}")
    return f"::{one.level} {where}title={title}::{annotation(f'{one.reason}  ({one.reproduce})')}"


def summary(outcome: JobOutcome) -> str:
    """Markdown for the job summary."""
    if outcome.job != "nightly":
        return comparison_text(outcome, f"## fusebench {cell(outcome.title)}", COMMENT_LIMIT)
    return _cut("\n".join([f"## fusebench {cell(outcome.title)}", "", *_body(outcome)]), COMMENT_LIMIT)


def comment(outcomes: Sequence[JobOutcome]) -> str:
    """The one comment of a pull request, over the jobs of all its GPUs."""
    if not outcomes:
        nothing = ["### fusebench pull request: nothing was measured", "", "No job left an outcome: see the workflow's log."]
        return "\n".join([marker("pull-request"), "", *nothing]) + "\n"
    start = f"{marker('pull-request')}\n"
    room = (COMMENT_LIMIT - len(start)) // len(outcomes) - 1
    parts = []
    for outcome in outcomes:
        one_op = len({one.kernel.partition("/")[0] for one in outcome.judged}) <= 1
        limit = min(room, ONE_OP_LIMIT - len(start) - 1) if one_op else room
        parts.append(comparison_text(outcome, f"### fusebench {cell(outcome.title)}", limit))
    return "\n".join([start, *parts])


def issue(outcome: JobOutcome) -> str:
    """Title (first line, a heading), marker and body of the issue for a nightly that found a regression or a failure."""
    found = [one for one in worst_first(outcome.judged) if one.level == "error"]
    kernels = sorted({one.kernel for one in found})
    named = ", ".join(kernels[:2]) + (f" and {len(kernels) - 2} more" if len(kernels) > 2 else "")
    what = "failed" if outcome.exit_code == 5 else "slower or less accurate"
    title = f"# Nightly on {one_line(outcome.device)}: {one_line(named) or 'the run'} {what}"
    commits = [f"Between the commits {_code(outcome.commits)}: baseline and this run.", ""] if outcome.commits else []
    closing = ["", "Close this issue when a nightly passes, or promote the run with `fusebench baseline promote RUN --reason TEXT`."]
    return _cut(
        "\n".join([title, "", marker(f"nightly:{device_slug(outcome.device)}"), "", *commits, *_body(outcome), *closing]), COMMENT_LIMIT
    )


def marker(name: str) -> str:
    """The hidden line by which a comment or an issue is found again."""
    return f"<!-- fusebench:{name} -->"


def junit(outcome: JobOutcome) -> str:
    """One test case per verdict and per step; advisory findings and undecided ones are skipped with their reason."""
    root = ElementTree.Element("testsuites", name=one_line(f"fusebench {outcome.title}"))
    steps = ElementTree.SubElement(root, "testsuite", name="steps", tests=str(len(outcome.steps)))
    for step in outcome.steps:
        case = ElementTree.SubElement(steps, "testcase", classname="steps", name=one_line(step.name), time=f"{step.seconds:.3f}")
        if step.exit_code not in (0, 1, 4, 5):  # those are told kernel by kernel
            ElementTree.SubElement(
                case, "error", type=MEANINGS.get(step.exit_code, "failure"), message=one_line(step.reason or "no reason given")
            )
    for name in dict.fromkeys(one.case.partition(":")[0] for one in outcome.judged):
        judged = [one for one in outcome.judged if one.case.partition(":")[0] == name]
        suite = ElementTree.SubElement(root, "testsuite", name=one_line(name), tests=str(len(judged)))
        for one in judged:
            case = ElementTree.SubElement(
                suite, "testcase", classname=one_line(f"{one.by}.{one.case}"), name=one_line(one.kernel), time="0"
            )
            if one.needs_attention or one.absent:
                element = {"error": "error", "regression": "failure"}.get(one.verdict, "skipped") if one.gating else "skipped"
                ElementTree.SubElement(case, element, type=one.verdict, message=one_line(one.reason))
    for suite in root:
        for kind in ("failure", "error", "skipped"):
            suite.set({"failure": "failures", "error": "errors"}.get(kind, kind), str(len(suite.findall(f"testcase/{kind}"))))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _body(outcome: JobOutcome) -> list[str]:
    lines = [f"{counted(outcome.judged) or 'No kernel was judged'}." + (f" Run {_code(outcome.run)}." if outcome.run else ""), ""]
    lines += [f"* {cell(line)}" for line in outcome.lines]
    found = worst_first(outcome.judged)
    for heading, some in (("Gating", [one for one in found if one.gating]), ("Advisory", [one for one in found if not one.gating])):
        if some:
            lines += [
                "",
                f"<details{' open' if heading == 'Gating' else ''}><summary>{heading}: {len(some)}</summary>",
                "",
                *_table(some),
                "",
                "</details>",
            ]
    better = sorted((one for one in outcome.judged if one.verdict == "improvement"), key=lambda one: one.change or 1.0)
    if better:
        lines += ["", f"<details><summary>Faster: {len(better)}</summary>", "", *_table(better), "", "</details>"]
    lines += ["", "<details><summary>Steps</summary>", "", "| step | exit code | seconds | said |", "|---|---|---|---|"]
    lines += [f"| {_code(step.command)} | {step.exit_code} | {step.seconds:.0f} | {cell(step.reason)} |" for step in outcome.steps]
    return [*lines, "", "</details>"]


def _table(found: Sequence[Judged]) -> list[str]:
    lines = ["| kernel | case | verdict | change | reason | reproduce |", "|---|---|---|---|---|---|"]
    for one in found[:_ROWS]:
        change = f"{100 * (one.change - 1):+.1f} %" if one.change is not None else "–"
        cells = [
            _code(one.kernel),
            _code(one.case),
            one.verdict,
            change,
            cell(one.reason[:300]),
            _code(one.reproduce),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines if len(found) <= _ROWS else [*lines, f"| and {len(found) - _ROWS} more, in `junit.xml` |  |  |  |  |  |"]


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text + "\n"
    kept = text[: limit - 200]
    kept = kept[: kept.rindex("\n")]
    opened = kept.count("<details") - kept.count("</details>")
    return kept + "\n" + "\n</details>" * opened + "\n\nCut here: the whole is in the job's files (`outcome.json`, `junit.xml`).\n"


def _title(foreign: str) -> str:
    return annotation(foreign, in_property=True)


def _code(foreign: str) -> str:
    """A code span that also holds inside a table."""
    return cell(code(foreign))
