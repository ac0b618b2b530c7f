from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.report.history import History, changed_between, history_document, history_markdown, level_text, verdict_line
from fusebench.report.plots.history import history_pictures, history_png
from fusebench.schema import Role
from fusebench.stats.random_orders import RandomOrders
from fusebench.verdict.history.series import Figure, comparable_runs, series_of, snapshot
from fusebench.verdict.history.shifts import find_shifts
from fusebench.verdict.history.snapshots import Unreadable

CASE, OTHER = "flux_1024", "zimage_1024"
QUICK = RandomOrders(1999)
Make = Callable[..., History]


@pytest.fixture
def make(synthetic: ModuleType) -> Make:
    """`make(count, steps of the fused kernel, each=…, figure=…)`: a judged history of two cases and two kernels."""

    def build(
        count: int = 40,
        steps: Sequence[tuple[int, float]] = (),
        *,
        figure: Figure = Figure.SOL,
        each: Mapping[int, Mapping[str, Any]] | None = None,
        role: Role | None = None,
        **fields: Any,
    ) -> History:
        fields = {"cases": (CASE, OTHER), "kernels": (synthetic.BASELINE, synthetic.FUSED), **fields}
        runs = synthetic.make_history(count, {(CASE, synthetic.FUSED): steps}, each=each, **fields)
        runs = [run if role is None else synthetic.change_results(run, role=role) for run in runs]
        kept, left_out = comparable_runs([snapshot(run) for run in runs], figure)
        tracks = find_shifts(series_of(kept, figure), test=QUICK)
        unreadable = [Unreadable(folder="f", reason="f: truncated or garbled")]
        return History(runs=kept, left_out=left_out, unreadable=unreadable, tracks=tracks, figure=figure, margin=0.01, rate=0.05)

    return build


def test_the_document_says_which_run_and_commit_by_how_much_and_how_surely(make: Make) -> None:
    document = history_document(make(40, [(20, 1.04)], each={3: {"timer": "host"}}), 1)
    assert msgspec.json.decode(msgspec.json.encode(document))["exit_code"] == 1
    (change,) = document["changes"]
    assert (change["case"], change["kernel"], change["direction"]) == (CASE, "qknorm_rope/fused_triton@2", "slower")
    assert (change["first"]["run"], change["last_before"]["run"]) == ("n020", "n019")
    assert change["first"]["commit"].startswith("a000"), "commits hold two nights each"
    assert change["change"] == pytest.approx(1.04, abs=0.005)
    assert 0 < change["p_value"] <= change["adjusted_p"] <= 0.05
    assert change["newest"]
    assert change["changed_there"] == ["commit: 9000000000 -> a000000000"]
    assert [entry["run"] for entry in document["runs"]][:4] == ["n000", "n001", "n002", "n004"]
    assert [(entry["run"], entry["reason"]) for entry in document["left_out"]] == [("n003", "timer: host -> cupti")]
    assert document["unreadable"] == [{"folder": "f", "reason": "f: truncated or garbled"}]
    (suite,) = document["suites"]
    assert (suite["series"], suite["slower"], suite["faster"], suite["newest_slower"]) == (4, 1, 0, 1)


def test_markdown_has_the_verdict_first_and_a_row_per_change(make: Make) -> None:
    lines = history_markdown(make(70, [(25, 1.05), (40, 1 / 1.05)])).splitlines()
    assert lines[2] == "**no newest level is slower than the one before by more than 1.0 %**"
    rows = [line for line in lines if line.startswith("| flux_1024")]
    assert ["faster (newest level)" in row for row in rows] == [True, False], "the newest first"
    assert any(line.startswith("* at run n025 of 2026-07-26: 1 slower (+") for line in lines)
    assert any(line.startswith("* suite qknorm_rope: 4 series; 1 change to slower, 1 to faster") for line in lines)
    assert "* skipped: f: truncated or garbled" in lines


def test_what_else_changed_between_two_runs_is_named(synthetic: ModuleType) -> None:
    old, new = synthetic.make_history(
        2, each={0: {"environment": {"git_dirty": True}}, 1: {"environment": {"triton": "3.7.0", "device_uuid": "GPU-b"}}}
    )
    assert changed_between(old, new) == [
        "commit: 0000000000 with uncommitted changes -> 0000000000",
        "triton: 3.6.0 -> 3.7.0",
        "board: GPU-00000000 -> GPU-b",
    ]


def test_a_newest_level_that_is_slower_is_named_and_a_peers_is_advisory(make: Make) -> None:
    assert "qknorm_rope/fused_triton@2 on flux_1024" in verdict_line(make(40, [(20, 1.04)]))
    peer = make(40, [(20, 1.04)], role=Role.PEER)
    assert verdict_line(peer).startswith("no newest level is slower")
    assert "advisory: not in --gate" in history_markdown(peer)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 comparable runs, too few to divide: a change point needs 5 on either side; 10 are needed"),
        (9, "9 comparable runs, too few to divide"),
        (10, "no newest level"),
    ],
)
def test_too_few_runs_say_how_many_are_needed(make: Make, count: int, said: str) -> None:
    assert said in verdict_line(make(count))


def test_ten_runs_of_many_series_say_how_many_are_needed(make: Make, synthetic: ModuleType) -> None:
    line = verdict_line(make(10, cases=synthetic.CASES, kernels=tuple(synthetic.KERNELS)))
    assert "10 comparable runs, too few for a change in one of 30 series to stand by itself; 14 are needed, or select fewer" in line


@pytest.mark.parametrize(("figure", "text"), [(Figure.SOL, "80.0 %"), (Figure.SPEEDUP, "0.800x"), (Figure.RAW, "1.25 us")])
def test_levels_are_told_in_the_figures_own_unit(figure: Figure, text: str) -> None:
    assert level_text(figure, 1.25) == text


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize("figure", Figure)
def test_the_picture_shows_what_moved_and_is_the_same_each_time(make: Make, figure: Figure) -> None:
    moved = make(40, [(20, 1.04)], figure=figure)
    assert history_png(moved) == history_png(moved) != history_png(make(40, figure=figure))
    assert size_of(history_png(moved))[0] >= 900


def test_a_folder_of_pictures_has_one_for_every_case_that_moved(make: Make) -> None:
    pictures = history_pictures(make(40, [(20, 1.04)]))
    assert pictures.keys() == {"history.png", "qknorm_rope_flux_1024.png"}
    assert history_pictures(make(40)).keys() == {"history.png"}


def test_the_picture_of_nothing_says_so(make: Make) -> None:
    size_of(history_png(make(0)))


def test_many_series_stay_one_readable_picture(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusebench.report.plots.history.MOST_PANELS", 6)
    six = size_of(history_png(make(12, cases=["a", "b", "c"])))
    assert size_of(history_png(make(12, cases=[f"case_{place}" for place in range(30)]))) == six
    assert max(six) <= 2000
