"""Annotations, summary, comment, issue and JUnit: the worst first, within GitHub's limits, and harmless whatever kernels are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer

from fusebench.ci.findings import Declarations, from_ab, from_gate, from_static, worst_first
from fusebench.ci.steps import Step
from fusebench.ci.texts import COMMENT_LIMIT, JobOutcome, annotate, comment, issue, junit, summary
from fusebench.cli.ci_command import _leave
from fusebench.config import Project
from fusebench.report.escape import one_line

Row = Callable[..., dict[str, Any]]


def outcome(rows: list[dict[str, Any]], **fields: Any) -> JobOutcome:
    known: dict[str, Any] = {
        "job": "nightly",
        "device": "NVIDIA H200",
        "exit_code": 1,
        "lines": [],
        "steps": [],
        "judged": from_gate({"judgements": rows}),
    }
    return JobOutcome(**(known | fields))


@pytest.fixture
def declared(project: Project) -> Declarations:
    return Declarations(project.root, project.kernels)


def test_an_annotation_stands_at_the_kernels_declaration(judgement: Row, declared: Declarations) -> None:
    (line,) = annotate(outcome([judgement()]), declared)
    assert line.startswith("::error file=kernels/scale/fast.py,line=4,title=scale/fast@2 on scale%3Abig%3A regression::5 %25 slower")
    assert "fusebench run --suite scale --case big --kernel scale/fast@2" in line
    (unknown,) = annotate(outcome([judgement(kernel="other/x@1")]), declared)
    assert "file=" not in unknown


def test_the_worst_come_first_and_the_rest_are_counted(judgement: Row, declared: Declarations) -> None:
    rows = [judgement(case=f"c{index}", change=1.01 + index / 100) for index in range(20)]
    rows += [judgement(verdict="error", case="wrong", change=None), judgement(verdict="regression", case="peer", change=9.0, decides=False)]
    rows += [judgement(verdict="undecided", case="open"), judgement(verdict="pass", case="fine")]
    found = outcome(rows)
    lines = annotate(found, declared)
    assert len(lines) == 10
    assert "wrong%3A error" in lines[0]
    assert "c19%3A regression" in lines[1]
    assert lines[-1] == "::notice title=fusebench::and 14 more: 13 regression, 1 undecided; see the job summary"
    assert [one.gating for one in worst_first(found.judged)][-1] is False
    assert "::notice file" in annotate(outcome([judgement(decides=False)]), declared)[0]


def test_a_night_without_a_baseline_or_a_gpu_is_annotated(judgement: Row, declared: Declarations) -> None:
    for code, rows in ((4, []), (3, [judgement()])):
        shown = annotate(outcome(rows, exit_code=code, lines=["no baseline: keep one"]), declared)
        assert shown[0] == "::error title=fusebench::no baseline: keep one"
    assert annotate(outcome([], exit_code=0, lines=["nothing was timed"]), declared) == []


def test_a_folder_that_stays_from_night_to_night_does_not_use_up_the_annotations(
    judgement: Row, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fifty of one job, over steps that share the folder; the next job has its own fifty."""
    found = outcome([judgement(case=f"c{index}") for index in range(30)])
    monkeypatch.setenv("GITHUB_ACTIONS", "true")

    def shown(run: str) -> int:
        monkeypatch.setenv("GITHUB_RUN_ID", run)
        with pytest.raises(typer.Exit):
            _leave(found, project, tmp_path)
        return capsys.readouterr().out.count("::")

    first = shown("7")
    assert [shown("7") for _ in range(5)] == [first] * 4 + [0]
    assert (shown("8"), shown("7")) == (first, first)


def test_a_job_has_fifty_annotations_over_all_its_steps(judgement: Row, declared: Declarations) -> None:
    found = outcome([judgement(case=f"c{index}") for index in range(30)])
    made = 0
    for _ in range(8):
        made += len(annotate(found, declared, made))
    assert made == 50


@pytest.mark.parametrize(
    "hostile",
    ["a\n::error::b", "\x1b[31mred\x1b[0m", "::error::x", "  ::warning title=a::b", "##[error]c", "a\r::set-output name=x::y", "\u202etxt"],
)
def test_foreign_text_is_harmless_in_a_log_and_in_an_annotation(hostile: str, judgement: Row, declared: Declarations) -> None:
    line = one_line(hostile)
    assert line.isprintable()
    assert not line.lstrip().startswith("::")
    assert "##[" not in line
    (note,) = annotate(outcome([judgement(reason=hostile, kernel=f"scale/{hostile}@1", case=hostile)]), declared)
    assert note.startswith("::error title=")
    assert note.isprintable()
    assert note.split("::")[1].endswith("%3A regression"), "the first `::` after the title ends it"


def test_foreign_text_is_harmless_in_markdown(judgement: Row) -> None:
    hostile = "<script>x</script> | a `b` **c** @someone [l](http://x)\n# h"
    text = summary(outcome([judgement(reason=hostile, kernel=f"scale/`|{hostile}", case="a|b")], lines=[hostile]))
    (line,) = [line for line in text.splitlines() if line.startswith("* ")]
    assert not any(raw in line for raw in ("<script", " @someone", "](http", "`b`"))
    (row,) = [line for line in text.splitlines() if line.startswith("| `") and "script" in line]
    cells = row.replace(r"\|", "").strip("|").split("|")
    assert len(cells) == 6, "its pipes end no cell"
    assert "<script" not in cells[4]


def test_a_comment_has_its_marker_first_and_stays_within_githubs_limit(judgement: Row) -> None:
    rows = [judgement(case=f"case{index}", reason="x" * 290) for index in range(400)]
    text = comment([outcome(rows, job="pull request", device=gpu) for gpu in ("h200", "b200", "a100", "l40")])
    assert text.splitlines()[0] == "<!-- fusebench:pull-request -->"
    assert len(text) <= COMMENT_LIMIT
    assert text.count("<details") == text.count("</details>")
    assert "Cut here" in text
    assert "nothing was measured" in comment([])


def test_an_issue_names_kernels_commits_and_the_command_for_each(judgement: Row) -> None:
    rows = [judgement(), judgement(case="small"), judgement(kernel="scale/chain@1", verdict="undecided")]
    text = issue(outcome(rows, commits="aaa..bbb"))
    title, _, marked, *_ = text.splitlines()
    assert title == "# Nightly on NVIDIA H200: scale/fast@2 slower or less accurate"
    assert marked == "<!-- fusebench:nightly:nvidia_h200 -->"
    assert "`aaa..bbb`" in text
    assert text.count("`fusebench run --suite scale") == 3


def test_junit_fails_what_gates_and_skips_the_rest(judgement: Row) -> None:
    rows = [
        judgement(),
        judgement(verdict="error", case="b\x00"),
        judgement(decides=False, case="c"),
        judgement(verdict="undecided", case="d"),
        judgement(verdict="pass", case="e"),
    ]
    steps = [
        Step(name="run", command="fusebench run", exit_code=3, seconds=1.0, reason="error: busy"),
        Step(name="gate", command="x", exit_code=1, seconds=1.0),
    ]
    root = ElementTree.fromstring(junit(outcome(rows, steps=steps)))
    counts = {suite.get("name"): [suite.get(kind) for kind in ("tests", "failures", "errors", "skipped")] for suite in root}
    assert counts == {"steps": ["2", "0", "1", "0"], "scale": ["5", "1", "1", "2"]}


def test_advisory_results_of_ab_are_those_of_peers_and_of_compiled_speed() -> None:
    row = {"case": "c", "suite": "s", "kernel": "o/k@1", "reason": "r", "change": 1.1}
    kinds = [("fused", "regression", True), ("peer", "error", False), ("compiled", "regression", False), ("compiled", "error", True)]
    found = from_ab({"results": [row | {"role": role, "verdict": verdict} for role, verdict, _ in kinds]}, "main")
    assert [one.gating for one in found] == [gating for _, _, gating in kinds]
    assert found[0].reproduce == "fusebench ab --base main --suite s --case c --kernel o/k@1"


def test_a_kernel_without_a_counterpart_does_not_gate_a_static_comparison() -> None:
    rows = [
        {"target": "sm_90", "case": "s:c", "kernel": "o/k@1", "kind": kind, "reason": "r", "changes": []}
        for kind in ("regression", "incomparable")
    ]
    assert [one.gating for one in from_static({"judgements": rows}, "main")] == [True, False]
    assert [one.gating for one in from_static({"judgements": rows})] == [True, True]
    assert from_static(None) == []
