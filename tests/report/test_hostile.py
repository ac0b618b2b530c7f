"""Foreign text in every format that fusebench writes: every text of every record is an enemy's, and nobody obeys it.

`poisoned` fills the records' fields by their types, so a new field is poisoned too.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from fusebench.cli.shared.output import print_json, print_table, remark
from fusebench.config import Project
from fusebench.report.ab import ab_markdown, print_ab
from fusebench.report.calibration_table import calibration_report
from fusebench.report.comparison import print_comparison, print_judgements
from fusebench.report.evidence.counters_markdown import counters_document, counters_markdown
from fusebench.report.evidence.counters_table import CAPTURE_COLUMNS, capture_rows
from fusebench.report.evidence.static_table import EVIDENCE_COLUMNS, evidence_rows
from fusebench.report.exports import FORMATS, export
from fusebench.report.history import History, history_document, history_markdown, print_history
from fusebench.report.html.page import html_report
from fusebench.report.html.site import site_files
from fusebench.report.plots.speedup import run_pictures
from fusebench.report.run.ci import github_annotations, junit_xml
from fusebench.report.run.document import run_document
from fusebench.report.run.frame import run_csv
from fusebench.report.run.pages import suite_pages
from fusebench.report.run.pull_request import pull_request_page
from fusebench.report.run.table import print_run
from fusebench.runner.calibrate.summary import summary_of
from fusebench.schema import Attachment, CacheState, Case, Environment, Role, Run, SamplingPlan, Status, Verdict, VerdictKind
from fusebench.stats.sequential import Plan
from fusebench.store.calibrations import load_calibration
from fusebench.store.comparison_record import BaseRevision, ComparedCase, ComparedKernel, Comparison, RevisionPresence
from fusebench.store.run_folder import write_run
from fusebench.store.static_baselines import read_static
from fusebench.verdict.baseline.judgement import judge_each
from fusebench.verdict.history.series import Figure, comparable_runs, series_of, snapshot
from fusebench.verdict.history.shifts import find_shifts
from fusebench.verdict.history.snapshots import Unreadable
from fusebench.verdict.margins.rule import MarginRule

RESULTS = Path(__file__).parents[2] / "results"
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J<script>alert(1)</script><img src=x onerror=alert(1)> [click](http://evil.example) @everyone `tick` | $x$\r"
    "::error file=a.py::fake\n##vso[task.setvariable]x\n\u202egnp.exe\x00\x9b2J```\n</pre>]]>'\""
)
KEPT = {"id", "created", "sessions", "git_commit", "asked"}
"""Texts that are parsed or chosen by fusebench itself; a commit and a reference are poisoned by hand."""
NEVER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e]|(?m:^[ \t]*::(?:error|warning|set-output) file)|##vso\\[")


def poisoned(value: Any, name: str = "") -> Any:
    """`value` with every text in it followed by `HOSTILE`; a kernel keeps its version, so that it stays a kernel."""
    if type(value) is str:
        head, at, version = value.rpartition("@")
        if not value or name in KEPT:
            return value
        return f"{head}{HOSTILE}@{version}" if at and version.isdecimal() else f"{value}{HOSTILE}"
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **{field: poisoned(getattr(value, field), field) for field in value.__struct_fields__})
    if type(value) in (list, tuple):
        return type(value)(poisoned(item, name) for item in value)
    if type(value) is dict:
        return {key: poisoned(item, name) for key, item in value.items()}
    return value


def shown(print_into: Callable[[Console], None]) -> str:
    console = Console(file=io.StringIO(), width=140, markup=False, highlight=False)
    print_into(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def run(synthetic: ModuleType) -> Run:
    """Two cases; a crash, a regression with evidence, an undecided kernel, one that covers a part of the op, one that is not installed."""
    crashed, absent = f"{synthetic.OP}/fused_cuda@1", f"{synthetic.OP}/split_torch@1"
    status = {("flux_1024", crashed): (Status.CRASHED, "boom"), ("flux_1024", absent): (Status.NOT_RUNNABLE, "not installed")}
    made = synthetic.make_run(cases=("flux_1024", "zimage_1024"), status=status, warnings=["careful"], timer_fallback="no CUPTI")
    verdicts = {synthetic.FUSED: VerdictKind.REGRESSION, f"{synthetic.OP}/fused_triton@1": VerdictKind.UNDECIDED}
    evidence = (
        Attachment(kind="static", title="static", columns=("figure", "old", "new"), rows=(("registers", "1", "2"),), notes=("spills",)),
    )
    results = [
        msgspec.structs.replace(
            one,
            verdict=Verdict(kind=verdicts.get(one.kernel, VerdictKind.PASS), reason="slower"),
            attachments=evidence if one.kernel == synthetic.FUSED else (),
            covers="norm only" if one.kernel.endswith("compiled@1") else "",
        )
        for one in made.results
    ]
    cases = [msgspec.structs.replace(one, not_cold="warm") for one in made.cases[1:]]
    environment = msgspec.structs.replace(made.environment, git_commit=HOSTILE)
    found: Run = poisoned(msgspec.structs.replace(made, results=results, cases=[made.cases[0], *cases], environment=environment))
    return found


@pytest.fixture(scope="module")
def history(synthetic: ModuleType) -> History:
    fields = {"cases": ("flux_1024",), "kernels": [synthetic.BASELINE, synthetic.FUSED]}
    runs = [poisoned(one) for one in synthetic.make_history(24, {("flux_1024", synthetic.FUSED): [(12, 1.2)]}, **fields)]
    kept, left_out = comparable_runs([snapshot(one) for one in runs], Figure.SOL)
    tracks = find_shifts(series_of(kept, Figure.SOL))
    assert any(track.shifts for track in tracks)
    unreadable = [Unreadable(folder=HOSTILE, reason=HOSTILE)]
    return History(runs=kept, left_out=left_out, unreadable=unreadable, tracks=tracks, figure=Figure.SOL, margin=0.01, rate=0.05)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    kernels = [
        ComparedKernel(
            case="flux", suite="qk", op="qk", kernel=f"qk/k@{number}", role=Role.FUSED, presence=RevisionPresence.BOTH,
            changed_files=("qk/k.py",), verdict=Verdict(kind=kind, reason="because"), new_us=2.0, old_us=1.0,
        )
        for number, kind in enumerate(VerdictKind, start=1)
    ]  # fmt: skip
    made = Comparison(
        id="abcd1234", created="2026-07-27T07:25:47+00:00", command="fusebench ab", timer="cupti",
        plan=SamplingPlan(replicates=12, rounds=20, cache=CacheState.COLD, trim=0.1), looks=Plan(),
        environment=Environment(device="cuda", device_name="H200", python="3.12", platform="x", fusebench="0", git_commit=HOSTILE),
        base=BaseRevision(asked=HOSTILE, commit=HOSTILE, merge_base=True), warnings=("careful",),
        cases=[ComparedCase(case=Case(suite="qk", name="flux", op="qk", params={}), shape="4096x24x128")], kernels=kernels, aa_pairs=[],
    )  # fmt: skip
    found: Comparison = poisoned(made)
    return found


def of_the_run(run: Run, old: Run) -> Iterator[tuple[str, str]]:
    yield "md", pull_request_page(run)
    yield "html", html_report(run, raw={"run.json": "run.json"})
    yield "junit.xml", junit_xml(run)
    yield "github", github_annotations(run)
    yield "csv", run_csv(run)
    yield "terminal", shown(lambda console: print_run(run, console))
    for name, content in suite_pages(run, pictures=False).items():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+", name)
        yield name, content.decode()
    judgements = judge_each(run, old, MarginRule())
    yield "compare, terminal", shown(lambda console: print_comparison(old, run, judgements, console))
    yield "gate, terminal", shown(lambda console: print_judgements(judgements, console))


def require_harmless(name: str, text: str) -> None:
    """No format may hold what a terminal or a CI system obeys; and each is what its reader takes, with nothing of the enemy's in it."""
    assert "alert(1)" in text or "owned" in text, f"{name} shows nothing of the text, so it proves nothing"
    assert NEVER.findall(text) == [], name
    if name.endswith(("md", "markdown")):
        require_plain_markdown(name, text)
    elif name.endswith(("html", "svg")):
        assert not re.search(r"<script>alert|<img src=x|</pre>\]", text), name
    if name.endswith(("xml", "svg")):
        ElementTree.fromstring(text)
    elif name == "github":
        assert all(re.match(r"::(error|warning|notice) title=", line) for line in text.splitlines())
    elif name.endswith("csv"):
        assert len({len(row) for row in csv.reader(io.StringIO(text))}) == 1
    elif name.endswith("json"):
        json.loads(text)


def require_plain_markdown(name: str, page: str) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", page, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, (name, block)
    prose = re.sub(r"(?ms)^(`{3,})\n.*?\n\1$", "", page)
    prose = re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "", re.sub(r"\\`", "", prose))
    for found in (r"<script", r"<img", r"(?<!\\)\]\(http", r"(?<!\w)@everyone", r"</pre>"):
        assert not re.search(found, prose), (name, found)


def test_the_detector_finds_what_is_planted() -> None:
    for name in ("md", "html", "github", "terminal", "a.json"):
        with pytest.raises(AssertionError):
            require_harmless(name, HOSTILE)
    for planted in ("see <script>alert(1)", "[alert(1)](http://x)", "alert(1) @everyone", "| a |\n| alert(1) | b |\n"):
        with pytest.raises(AssertionError):
            require_harmless("md", planted)
    with pytest.raises(ElementTree.ParseError):
        require_harmless("xml", "<a>alert(1)")
    with pytest.raises(AssertionError):
        require_harmless("csv", "a\nalert(1),b\n")


def test_every_text_of_a_record_is_poisoned(run: Run) -> None:
    result = next(one for one in run.results if one.attachments)
    for text in (result.kernel, result.case, result.shape, result.attachments[0].rows[0][0], run.environment.device_name, run.command):
        assert HOSTILE in text


def test_every_view_of_a_run_is_harmless(run: Run, synthetic: ModuleType) -> None:
    old = poisoned(synthetic.make_run(run_id="old", cases=("flux_1024", "zimage_1024"), environment={"driver": "1"}))
    views = dict(of_the_run(run, old))
    assert len(views) == 10
    for name, text in views.items():
        require_harmless(name, text)


def test_pictures_of_a_run_are_harmless(run: Run) -> None:
    texts = {name: content.decode() for name, content in run_pictures(run).items() if name.endswith("svg")}
    assert set(texts) == {"speedup.svg", "roofline.svg", "versions.svg"}
    for text in texts.values():
        ElementTree.fromstring(text)
        assert NEVER.findall(text) == []
        assert "<script" not in text


@pytest.mark.parametrize("form", FORMATS)
def test_every_export_is_harmless(form: str, run: Run, synthetic: ModuleType, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", run, synthetic.make_samples(run))
    project = Project(root=tmp_path, kernels=(), suites=(), results=tmp_path)
    found = export(form, run, folder, project, tmp_path / "out")
    require_harmless("otava.csv" if form == "otava" else f"{form}.json", found.text)
    for suffix, text in found.beside.items():
        require_harmless(suffix, text)


def test_every_view_of_a_history_is_harmless(history: History, run: Run) -> None:
    require_harmless("history.md", history_markdown(history))
    require_harmless("history, terminal", shown(lambda console: print_history(history, console)))
    for name, content in site_files(history, html_report(run, history=history), run).items():
        assert re.fullmatch(r"[A-Za-z0-9_@.-]+", name)
        require_harmless(name, content.decode())


def test_every_view_of_a_comparison_is_harmless(comparison: Comparison) -> None:
    require_harmless("ab.md", ab_markdown(comparison))
    require_harmless("ab, terminal", shown(lambda console: print_ab(comparison, console)))


def test_every_view_of_evidence_is_harmless(counted: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    counters = poisoned(counted.run(metric_set="named", warnings=("careful",), base="commit 0"))
    require_harmless("ncu.md", counters_markdown(counters))
    print_table(CAPTURE_COLUMNS, capture_rows(counters))
    require_harmless("ncu, terminal", capsys.readouterr().out)
    static = poisoned(read_static(next((RESULTS / "baselines" / "static" / "sm_90").glob("*.parquet"))))
    print_table(EVIDENCE_COLUMNS, evidence_rows(msgspec.structs.replace(static, results=static.results[:20])))
    require_harmless("static, terminal", capsys.readouterr().out)


def test_a_calibration_is_harmless() -> None:
    record = load_calibration(RESULTS, "NVIDIA H200")
    assert record is not None
    hostile = msgspec.structs.replace(
        record,
        environment=poisoned(record.environment),
        warnings=(HOSTILE,),
        note=poisoned(record.note),
        components=poisoned(record.components[:2]),
    )
    require_harmless("calibration.md", calibration_report(hostile, summary_of(record)))


def test_documents_and_remarks_hold_the_text_and_no_command(
    run: Run, history: History, counted: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    for document in (run_document(run, None), history_document(history, 0), counters_document(poisoned(counted.run()), None, 0)):
        print_json(document)
        printed = capsys.readouterr().out
        require_harmless("stdout.json", printed)
        assert json.loads(printed) == msgspec.json.decode(msgspec.json.encode(document)), "the values are the record's own"
    remark("note", HOSTILE)
    require_harmless("stderr", capsys.readouterr().err)
