"""Progress on stderr: plain lines for logs, a live line for people, and nothing of it on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from fusebench.cli.run_command import show_run
from fusebench.cli.shared.progress import LiveReporter, PlainReporter, describe, make_reporter
from fusebench.runner.session import Outcome
from fusebench.schema import Case, Estimate, Measurement, Result, Role, Status

CASE = Case(suite="scale", name="even", op="scale", params={"size": 8})


def result(status: Status, reason: str = "", time_us: float | None = None, speedup: float | None = None) -> Result:
    timing = None
    if time_us is not None:
        ratio = Estimate(speedup, speedup, speedup) if speedup is not None else None
        timing = Measurement(
            time_us=Estimate(time_us, time_us, time_us), busy_us=1.0, kernels=1, host_us=None, speedup=ratio, sol=0.5, gb_per_s=1.0,
            extra_memory_bytes=None, replicates=2, rounds=2,
        )  # fmt: skip
    return Result(
        case="even", suite="scale", op="scale", kernel="scale/fast@2", role=Role.FUSED, status=status, shape="8", reason=reason,
        measurement=timing,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (result(Status.MEASURED, time_us=12.345, speedup=2.5), "scale/fast@2  measured  12.35 us  2.50x"),
        (result(Status.MEASURED, time_us=12.345), "scale/fast@2  measured  12.35 us"),
        (result(Status.CRASHED, "ValueError: planted"), "scale/fast@2  crashed  (ValueError: planted)"),
        (result(Status.CHECKED), "scale/fast@2  checked"),
    ],
)
def test_a_result_is_one_line_with_its_time_or_its_reason(one: Result, line: str) -> None:
    assert describe(one) == line


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveReporter), (False, PlainReporter)])
def test_the_live_line_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch, terminal: bool, kind: type) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert type(make_reporter()) is kind


def test_a_warning_that_opened_the_run_is_not_printed_again_below_its_table(
    synthetic: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = PlainReporter()
    reporter.note("the CPU is not idle")
    reporter.begin()
    reporter.note("case even: measured again")
    run = synthetic.make_run(warnings=["the CPU is not idle", "case even: measured again"])
    show_run(Outcome(record=run), json=False, said=reporter.opening)
    shown = capsys.readouterr()
    assert (shown.err.count("the CPU is not idle"), shown.out.count("the CPU is not idle")) == (1, 0)
    assert "warning: case even: measured again" in shown.out


def play(reporter: Any) -> None:
    reporter.begin()
    reporter.case(1, 2, CASE, "8 [f32]")
    reporter.step("check scale/fast@2", 1, 3)
    reporter.result(result(Status.MEASURED, time_us=12.345, speedup=2.5))
    reporter.result(result(Status.WRONG, "off by [one]"))
    reporter.note("the device\nwas touched")
    reporter.end()


def test_plain_progress_is_a_line_per_case_and_result(capsys: pytest.CaptureFixture[str]) -> None:
    play(PlainReporter())
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert lines[0].startswith("[1/2] scale:even  8 [f32]  (")
    assert lines[1:4] == [
        "    scale/fast@2  measured  12.35 us  2.50x",
        "    scale/fast@2  wrong  (off by [one])",
        "note: the device was touched",
    ]
    assert lines[4].startswith("done in ")
    assert len(lines) == 5, "steps within a case are no lines of a log"


def test_live_progress_keeps_failures_on_the_screen_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    play(LiveReporter())
    said = capsys.readouterr()
    assert said.out == ""
    assert "[1/2] scale:even  8 [f32]: scale/fast@2  wrong  (off by [one])" in " ".join(said.err.split("\n"))
    assert "note: the device was touched" in said.err
    assert "measured" not in said.err


def test_the_live_line_shows_the_current_step(monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = LiveReporter()
    shown: list[str] = []
    reporter.begin()
    assert reporter._spinner is not None
    monkeypatch.setattr(reporter._spinner, "update", lambda text: shown.append(str(text)))
    reporter.case(1, 2, CASE, "8")
    reporter.step("check scale/fast@2", 1, 3)
    reporter.step("measure")
    reporter.line("building the fused model")
    reporter.end()
    assert [line.rstrip() for line in shown] == [
        "[1/2] scale:even  8",
        "[1/2] scale:even  8  check scale/fast@2 1/3",
        "[1/2] scale:even  8  measure",
        "[1/2] scale:even  8  building the fused model",
    ]


def test_a_step_without_a_case_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted defect: a terminal showed nothing of `model`, whose progress is lines without cases."""
    reporter = LiveReporter()
    shown: list[str] = []
    reporter.begin()
    assert reporter._spinner is not None
    monkeypatch.setattr(reporter._spinner, "update", lambda text: shown.append(str(text)))
    reporter.line("building the fused model")
    reporter.end()
    assert shown == ["building the fused model"]


@pytest.mark.parametrize("make", [PlainReporter, LiveReporter])
def test_an_end_without_results_is_quiet_about_them(make: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> None:
    reporter = make()
    reporter.begin()
    reporter.end()
    assert "scale" not in capsys.readouterr().err


@pytest.mark.parametrize("reporter", [PlainReporter(), LiveReporter()])
def test_kernels_that_cannot_run_here_are_one_line_and_not_one_per_case(reporter: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reporter.begin()
    for number in range(1, 41):
        reporter.case(number, 40, CASE, "8")
        reporter.result(result(Status.NOT_RUNNABLE, "not installed: peer"))
    reporter.end()
    said = capsys.readouterr().err
    assert said.count("not runnable") == (1 if isinstance(reporter, PlainReporter) else 0)
    assert "not installed" not in said
    assert ("not runnable here (40 kernel-case pairs): fast@2" in said) == isinstance(reporter, PlainReporter)


def test_progress_obeys_no_control_sequence_of_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    for reporter in (PlainReporter(), LiveReporter()):
        reporter.begin()
        reporter.case(1, 1, CASE, "8")
        reporter.result(result(Status.CRASHED, "\x1b[2Jboom\n::error::fake"))
        reporter.end()
    said = capsys.readouterr().err
    assert "\x1b[2J" not in said
    assert "\n::error" not in said
