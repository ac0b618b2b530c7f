"""Sweeps are found in a record and drawn as one line per kernel."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from fusebench.report.plots.speedup import run_pictures
from fusebench.report.plots.sweep import sweep_figure, sweeps_of
from fusebench.schema import Run, Status
from fusebench.store.run_folder import read_run

BASELINE = Path(__file__).parents[2] / "results" / "baselines" / "nvidia_h200"
TOKENS = (4096, 512, 1024)


@pytest.fixture(scope="module")
def swept() -> Run:
    """A run of one swept case, and of one other, made of a stored run's figures."""
    run = read_run(BASELINE)
    summary, other = [one for one in run.cases if one.case.suite == "qknorm_rope"][:2]
    results = [one for one in run.results if one.case_key == summary.case.key]
    cases, copies = [other], [one for one in run.results if one.case_key == other.case.key]
    for tokens in TOKENS:
        name = f"qk_{tokens}"
        case = msgspec.structs.replace(summary.case, name=name, params=summary.case.params | {"tokens": tokens})
        cases.append(msgspec.structs.replace(summary, case=case))
        copies += [msgspec.structs.replace(one, case=name) for one in results]
    return msgspec.structs.replace(run, cases=cases, results=copies, suites=[])


def test_a_sweep_is_the_cases_that_differ_in_one_parameter(swept: Run) -> None:
    (found,) = sweeps_of(swept)
    assert (found.suite, found.name, found.parameter) == ("qknorm_rope", "qk", "tokens")
    assert found.cases == {"qk_512": 512, "qk_1024": 1024, "qk_4096": 4096}


def test_cases_that_differ_in_more_are_no_sweep(swept: Run) -> None:
    cases = [
        msgspec.structs.replace(one, case=msgspec.structs.replace(one.case, params=one.case.params | {"heads": place}))
        for place, one in enumerate(swept.cases)
    ]
    assert sweeps_of(msgspec.structs.replace(swept, cases=cases)) == []


def test_the_picture_has_a_line_per_measured_kernel_and_gaps_where_nothing_was_measured(swept: Run) -> None:
    (sweep,) = sweeps_of(swept)
    measured = {one.kernel for one in swept.results if one.case in sweep.cases and one.status is Status.MEASURED and not one.covers}
    above, below = sweep_figure(swept, sweep).axes
    assert len(above.containers) == len(measured)
    assert [label.get_text() for label in below.get_xticklabels()] == ["512", "1024", "4096"]
    absent = {"status": Status.NOT_MEASURED, "measurement": None}
    missing = [msgspec.structs.replace(one, **absent) if one.case == "qk_1024" else one for one in swept.results]
    above, _ = sweep_figure(msgspec.structs.replace(swept, results=missing), sweep).axes
    line = above.containers[0].lines[0]
    assert [math.isnan(value) for value in line.get_ydata()] == [False, True, False]


def test_pictures_of_a_run_hold_the_sweep_as_png_and_svg(swept: Run) -> None:
    pictures = run_pictures(swept)
    assert pictures["sweep_qknorm_rope_qk_tokens.png"].startswith(b"\x89PNG")
    assert b"<svg" in pictures["sweep_qknorm_rope_qk_tokens.svg"]
