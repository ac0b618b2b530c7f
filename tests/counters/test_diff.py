"""Two captures side by side: right pairs, right order, right percentages, and no opinion where a change has no direction."""

from __future__ import annotations

from typing import Any

import pytest

from fusebench.counters.diff import changes, revision_pairs, version_pairs
from fusebench.counters.figures import FIGURES
from fusebench.counters.records import CaptureStatus


def named(rows: list[Any], title: str, launch: int | None = None) -> Any:
    (row,) = [row for row in rows if row.title == title and row.launch == launch]
    return row


def versions(pairs: list[Any]) -> list[tuple[str, str]]:
    return [(pair.before.kernel.partition("/")[2], pair.after.kernel.partition("/")[2]) for pair in pairs]


def test_the_two_select01_versions_differ_as_the_profile_says(counted: Any) -> None:
    rows = changes(counted.capture("fused_triton@1"), counted.capture("fused_triton@2"))
    registers = named(rows, "registers per thread")
    assert (registers.before, registers.after, registers.percent) == (96, 72, -25.0)
    assert named(rows, "instructions executed").percent == pytest.approx(-13.77, abs=0.01)
    assert named(rows, "time").percent == pytest.approx(-5.96, abs=0.01)
    assert named(rows, "achieved occupancy").percent == pytest.approx(37.55, abs=0.01)
    for better in ("registers per thread", "instructions executed", "time", "achieved occupancy"):
        assert named(rows, better).improved is True


def test_the_other_way_round_it_is_worse(counted: Any) -> None:
    rows = changes(counted.capture("fused_triton@2"), counted.capture("fused_triton@1"))
    for worse in ("registers per thread", "instructions executed", "time", "achieved occupancy"):
        assert named(rows, worse).improved is False


def test_rows_keep_the_order_of_the_figures(counted: Any) -> None:
    rows = changes(counted.capture("fused_triton@1"), counted.capture("fused_triton@2"))
    order = [figure.title for figure in FIGURES]
    assert [row.title for row in rows] == sorted((row.title for row in rows), key=order.index)


def pair_of(counted: Any, before: dict[str, float], after: dict[str, float]) -> list[Any]:
    return changes(counted.capture(launches=(counted.launch(**before),)), counted.capture(launches=(counted.launch(**after),)))


def test_a_direction_without_a_meaning_is_not_judged(counted: Any) -> None:
    """More DRAM throughput may mean a faster kernel, or one that moves more."""
    assert named(pair_of(counted, {"dram_throughput": 40}, {"dram_throughput": 80}), "DRAM throughput").improved is None


@pytest.mark.parametrize(("after", "improved"), [(100.9, None), (99.1, None), (101.1, False), (98.9, True)])
def test_scatter_is_not_judged(counted: Any, after: float, improved: bool | None) -> None:
    assert named(pair_of(counted, {"instructions": 100}, {"instructions": after}), "instructions executed").improved is improved


@pytest.mark.parametrize(("after", "improved"), [(104.9, None), (105.1, False), (94.9, True)])
def test_time_scatters_with_the_clock(counted: Any, after: float, improved: bool | None) -> None:
    assert named(pair_of(counted, {"time": 100}, {"time": after}), "time").improved is improved


def test_from_zero_there_is_no_percentage_and_still_a_direction(counted: Any) -> None:
    row = named(
        pair_of(counted, {"local_load_sectors": 0, "local_store_sectors": 0}, {"local_load_sectors": 9, "local_store_sectors": 9}),
        "local memory",
    )
    assert row.percent is None
    assert row.improved is False


def test_a_figure_that_one_side_lacks_is_shown_and_not_compared(counted: Any) -> None:
    row = named(pair_of(counted, {"time": 5, "registers": 40}, {"time": 5}), "registers per thread")
    assert (row.before, row.after, row.percent, row.improved) == (40, None, None, None)


def test_waits_that_matter_to_neither_are_left_out(counted: Any) -> None:
    titles = {row.title for row in changes(counted.capture("fused_triton@1"), counted.capture("fused_triton@2"))}
    assert "waiting: long scoreboard" in titles
    assert not {"waiting: membar", "waiting: misc"} & titles


def test_a_chain_against_one_launch_compares_what_adds_up(counted: Any) -> None:
    rows = changes(counted.capture("split_triton@1"), counted.capture("fused_triton@2"))
    assert named(rows, "time").before == pytest.approx(34_208)
    assert named(rows, "DRAM read and stores").percent == pytest.approx(-40, abs=0.1)
    assert named(rows, "registers per thread").percent is None
    assert all(row.launch is None for row in rows)


def test_chains_of_equal_length_are_compared_launch_by_launch_besides(counted: Any) -> None:
    before = counted.capture("split_triton@1")
    after = counted.capture("split_triton@1", launches=before.launches[::-1])
    rows = changes(before, after)
    assert named(rows, "time").percent == 0
    assert (named(rows, "registers per thread", 0).before, named(rows, "registers per thread", 0).after) == (48, 56)
    assert (named(rows, "registers per thread", 1).before, named(rows, "registers per thread", 1).after) == (56, 48)


def test_versions_are_paired_in_ascending_order_by_number(counted: Any) -> None:
    captures = [counted.capture("fused_triton@1", kernel=f"{counted.OP}/fused_triton@{version}") for version in (10, 1, 2)]
    assert versions(version_pairs(captures)) == [("fused_triton@1", "fused_triton@2"), ("fused_triton@2", "fused_triton@10")]


def test_only_versions_of_one_kernel_on_one_case_are_paired(counted: Any) -> None:
    captures = [
        counted.capture("fused_triton@1"),
        counted.capture("fused_cuda@1", kernel=f"{counted.OP}/fused_cuda@2"),
        counted.capture("fused_triton@2", case="other"),
    ]
    assert version_pairs(captures) == []


def test_versions_of_different_sides_are_not_paired(counted: Any) -> None:
    assert version_pairs([counted.capture("fused_triton@1", revision="base"), counted.capture("fused_triton@2")]) == []


def test_what_was_not_captured_has_no_counterpart(counted: Any) -> None:
    failed = counted.capture("fused_triton@2", status=CaptureStatus.FAILED, launches=())
    assert version_pairs([counted.capture("fused_triton@1"), failed]) == []
    assert revision_pairs([failed], [counted.capture("fused_triton@2")]) == []


def test_sides_are_paired_by_case_and_kernel(counted: Any) -> None:
    base = [counted.capture("fused_triton@1", revision="base"), counted.capture("fused_triton@2", revision="base", case="other")]
    this = [counted.capture("fused_triton@2"), counted.capture("fused_triton@1")]
    (pair,) = revision_pairs(base, this)
    assert (pair.before.revision, pair.after.revision) == ("base", "")
    assert pair.before.kernel == pair.after.kernel == f"{counted.OP}/fused_triton@1"
