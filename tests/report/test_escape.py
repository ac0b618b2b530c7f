"""Foreign text is shown and obeyed by nobody: hostile names and reasons in every format."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from types import ModuleType
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from fusebench.report import escape
from fusebench.report.html.page import html_report
from fusebench.report.run.ci import github_annotations, junit_xml
from fusebench.report.run.markdown import markdown_report
from fusebench.report.run.pull_request import pull_request_page
from fusebench.report.run.table import print_run
from fusebench.schema import Run, Status

HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J<script>alert(1)</script><img src=x onerror=alert(1)> [click](http://evil.example) @everyone `tick` | pipe\r"
    "::error file=a.py::fake\n##vso[task.setvariable]x\n\u202egnp.exe\x00"
)
NAME = "qk<b>\x1b[31m\n::error::x|`"


@pytest.fixture
def hostile(synthetic: ModuleType) -> Run:
    """A run whose device, warning, command, case, shape, failure and kernel were named by an enemy."""
    crashed = {("flux_1024", f"{synthetic.OP}/fused_cuda@1"): (Status.CRASHED, HOSTILE)}
    run = synthetic.make_run(
        cases=("flux_1024", "zimage_1024"),
        status=crashed,
        warnings=[HOSTILE],
        environment={"device_name": f"H200 {NAME}"},
        command=f"fusebench run ```\n</pre>{HOSTILE}",
    )
    summaries = [msgspec.structs.replace(one, shape=f"{one.shape} {NAME}", not_cold=HOSTILE) for one in run.cases]
    results = [
        msgspec.structs.replace(one, kernel=f"{one.kernel}{NAME}", suspicious=HOSTILE) if "fused_triton@2" in one.kernel else one
        for one in run.results
    ]
    return msgspec.structs.replace(run, cases=summaries, results=results)


def obeyed(text: str) -> list[str]:
    """The parts of `text` that a terminal or a CI system would obey."""
    return re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]|(?m:^[ \t]*::(?:error|warning|set-output))|##vso\\[", text)


def test_the_detector_finds_what_is_planted() -> None:
    assert len(obeyed(HOSTILE)) >= 5


def test_a_terminal_obeys_nothing(hostile: Run) -> None:
    console = Console(file=io.StringIO(), width=120, markup=False, highlight=False)
    print_run(hostile, console)
    assert isinstance(console.file, io.StringIO)
    assert obeyed(console.file.getvalue()) == []
    assert "\\x1b]0;owned" in console.file.getvalue(), "it is shown, not dropped"


@pytest.mark.parametrize("view", [markdown_report, pull_request_page])
def test_markdown_renders_none_of_it(hostile: Run, view: Callable[[Run], str]) -> None:
    page = view(hostile)
    assert obeyed(page) == []
    prose = re.sub(r"(?ms)^(`{3,})\n.*?\n\1$", "", page)
    prose = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", prose)
    assert "<script" not in prose
    assert "<img" not in prose
    assert "<b>" not in prose
    assert "](http" not in prose
    assert not re.search(r"(?<!\w)@everyone", prose)
    for block in re.findall(r"(?:^\|.*\n)+", page, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block
    fence = page[page.index("To reproduce:") :]
    assert fence.splitlines()[2] == "````", "the fence is longer than the one in the command"


def test_html_holds_no_element_of_theirs(hostile: Run) -> None:
    page = html_report(hostile)
    assert obeyed(page) == []
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "<b>" not in page
    assert "</pre>&lt;" not in page


def test_xml_is_well_formed_and_annotations_stay_on_their_line(hostile: Run) -> None:
    root = ElementTree.fromstring(junit_xml(hostile))
    assert obeyed(ElementTree.tostring(root, encoding="unicode")) == []
    lines = github_annotations(hostile).splitlines()
    assert all(re.match(r"::(error|warning|notice) title=", line) for line in lines)
    assert not any("\x1b" in line or "##vso[" in line for line in lines)


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("flux_1024", "flux_1024"),
        ("1.90x [1.89, 1.91]", "1.90x [1.89, 1.91]"),
        ("qknorm_rope/fused_triton@2 on flux_1024", "qknorm_rope/fused_triton@2 on flux_1024"),
        ("two\nlines", "two lines"),
        ("a*b", "a*b"),
        ("*bold*", "\\*bold\\*"),
        ("_it_ __init__ a_b", "\\_it\\_ \\_\\_init\\_\\_ a_b"),
        ("# title", "\\# title"),
        ("[a]: http://x", "\\[a]: http:\\//x"),
        ("![x](y)", "![x]\\(y)"),
        ("&lt; & x", "&amp;lt; & x"),
        ("ask @you", "ask &#64;you"),
        ("\\| and \\n", "\\\\| and \\n"),
    ],
)
def test_markdown_shows_text_as_it_is_written(foreign: str, shown: str) -> None:
    assert escape.markdown(foreign) == shown
    assert escape.markdown(escape.markdown(foreign)) == shown, "quoting twice is quoting once"


def test_a_record_without_foreign_text_is_left_alone(synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    assert escape.cleaned(run) is run


def test_a_text_that_comes_again_is_cleaned_again_and_a_clean_one_stays() -> None:
    """Years of runs repeat their texts, of which the clean ones are looked at once."""
    foreign = ["plain", "a\x1b[2Jb", "two\nlines", "plain", "a\x1b[2Jb", "two\nlines", ""]
    assert escape.cleaned(foreign) == ["plain", "a\\x1b[2Jb", "two lines", "plain", "a\\x1b[2Jb", "two lines", ""]


def test_names_stay_the_same_names_over_the_whole_record(hostile: Run) -> None:
    safe = escape.cleaned(hostile)
    assert obeyed(" ".join(result.kernel for result in safe.results).replace("\n", " ")) == []
    assert {result.case_key for result in safe.results} == {summary.case.key for summary in safe.cases}
    assert safe.exit_code == hostile.exit_code
