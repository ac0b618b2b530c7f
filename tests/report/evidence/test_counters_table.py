"""Tables of counters show what was captured, leave gaps where nothing was collected, and put the same things side by side."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fusebench.counters.figures import Unit
from fusebench.counters.records import CaptureStatus
from fusebench.report.evidence.counters_table import (
    CAPTURE_COLUMNS,
    CAPTURE_NUMBERS,
    capture_rows,
    captures_in_full,
    changed_rows,
    diff_columns,
    diff_pairs,
    diff_rows,
    diff_title,
    figure_columns,
    figure_rows,
    readings,
    traffic_line,
    written,
)
from fusebench.report.wording import DASH


def cell(row: tuple[str, ...], column: str) -> str:
    return row[CAPTURE_COLUMNS.index(column)]


def test_every_row_fills_every_column(counted: Any) -> None:
    failed = counted.capture("fused_cuda@1", status=CaptureStatus.FAILED, reason="it raised", launches=())
    rows = capture_rows(counted.run(counted.capture("split_triton@1"), counted.capture("fused_triton@1"), failed))
    assert {len(row) for row in rows} == {len(CAPTURE_COLUMNS)}
    assert set(CAPTURE_NUMBERS) <= set(CAPTURE_COLUMNS)


def test_a_row_holds_what_nsight_compute_counted(counted: Any) -> None:
    (row,) = capture_rows(counted.run(counted.capture("fused_triton@1")))
    assert [cell(row, name) for name in ("kernel", "time us", "regs", "instructions", "moved/min")] == [
        "fused_triton@1", "23.07", "96", "11,894,784", "1.00",
    ]  # fmt: skip
    assert cell(row, "occupancy") == "28.6 of 31.2 % (registers)"
    assert cell(row, "longest wait") == "long scoreboard 32 %"


def test_a_chain_has_its_sum_and_below_it_its_launches(counted: Any) -> None:
    total, first, second = capture_rows(counted.run(counted.capture("split_triton@1")))
    assert (cell(total, "time us"), cell(total, "regs"), cell(total, "remark")) == ("34.21", "", "2 launches")
    assert (cell(first, "kernel").strip(), cell(first, "regs"), cell(first, "moved/min")) == ("_modulated_norm", "48", "")
    assert (cell(second, "kernel").strip(), cell(second, "regs")) == ("_select01", "56")


def test_what_was_not_captured_says_why(counted: Any) -> None:
    absent = counted.capture("fused_cuda@1", status=CaptureStatus.NOT_RUNNABLE, reason="quack is not installed", launches=())
    (row,) = capture_rows(counted.run(absent))
    assert cell(row, "remark") == "not runnable: quack is not installed"
    assert cell(row, "time us") == ""


def test_what_was_not_collected_is_a_dash(counted: Any) -> None:
    """Only the time was; in particular no byte counts, so that nothing is said to have moved 0 times its minimum."""
    capture = counted.capture(launches=(counted.launch(time=5_000),))
    (row,) = capture_rows(counted.run(capture))
    assert cell(row, "time us") == "5.00"
    for column in ("regs", "instructions", "DRAM read", "stored", "moved/min", "DRAM %", "longest wait"):
        assert cell(row, column) == DASH
    assert [row[0] for row in figure_rows([capture])] == ["time", "blocks", "threads per block"]


def test_a_lower_bound_is_not_shown_as_the_ratio(counted: Any) -> None:
    """Without the stores' counter the ratio is not known."""
    (row,) = capture_rows(counted.run(counted.capture(launches=(counted.launch(dram_read=1e8, dram_written=1e6),))))
    assert cell(row, "moved/min") == DASH


def test_sides_are_named(counted: Any) -> None:
    rows = capture_rows(counted.run(counted.capture("fused_triton@1", revision="base"), counted.capture("fused_triton@1")))
    assert [cell(row, "kernel") for row in rows] == ["fused_triton@1 (base)", "fused_triton@1"]


def test_figures_have_a_column_per_kernel_and_per_launch_of_a_short_chain(counted: Any) -> None:
    captures = [counted.capture("split_triton@1"), counted.capture("fused_triton@1")]
    columns = figure_columns(captures)
    assert columns == ("figure", "split_triton@1", "split_triton@1, _modulated_norm", "split_triton@1, _select01", "fused_triton@1")
    rows = figure_rows(captures)
    assert {len(row) for row in rows} == {len(columns)}
    assert ("registers per thread", DASH, "48", "56", "96") in rows


def test_a_long_chain_has_one_column(counted: Any) -> None:
    chain = counted.capture("split_triton@1", launches=counted.real_launches()["split_triton@1"] * 2)
    assert figure_columns([chain]) == ("figure", "split_triton@1")


def test_versions_side_by_side(counted: Any) -> None:
    before, after = counted.capture("fused_triton@1"), counted.capture("fused_triton@2")
    assert diff_columns(before, after) == ("figure", "fused_triton@1", "fused_triton@2", "change")
    rows = {row[0]: row[1:] for row in diff_rows(before, after)}
    assert rows["registers per thread"] == ("96", "72", "-25.0 % (better)")
    assert rows["instructions executed"] == ("11,894,784", "10,256,384", "-13.8 % (better)")
    assert rows["time"] == ("23.07 us", "21.70 us", "-6.0 % (better)")
    assert rows["threads per block"] == ("128", "128", "same")
    assert rows["DRAM read"] == ("25.3 MB", "25.3 MB", "0.0 %")
    assert rows["DRAM throughput"][2] == "+7.3 %"
    assert "fused_triton@1 and fused_triton@2 on" in diff_title(before, after)


def test_from_none_to_some_is_worse_without_a_percentage(counted: Any) -> None:
    clean = counted.capture(launches=(counted.launch(local_load_sectors=0, local_store_sectors=0),))
    spilling = counted.capture(launches=(counted.launch(local_load_sectors=32, local_store_sectors=32),))
    assert ("local memory", "0 B", "2.0 kB", "from none (worse)") in diff_rows(clean, spilling)
    assert ("local memory", "0 B", "0 B", "same") in diff_rows(clean, clean)


def test_of_what_changed_there_are_only_changes_of_one_percent_or_more(counted: Any) -> None:
    before, after = counted.capture("fused_triton@1"), counted.capture("fused_triton@2")
    changed = changed_rows(before, after)
    assert set(changed) < set(diff_rows(before, after))
    titles = {row[0] for row in changed}
    assert {"registers per thread", "time"} <= titles
    assert not titles & {"threads per block", "DRAM read"}
    assert changed_rows(before, before) == []


@pytest.mark.parametrize(("after", "shown"), [(1009, False), (1010, True), (990, True), (991, False)])
def test_the_least_change_that_is_shown(counted: Any, after: float, shown: bool) -> None:
    one, other = (counted.capture(launches=(counted.launch(instructions=value),)) for value in (1000, after))
    assert bool(changed_rows(one, other)) is shown


def test_from_zero_is_a_change_and_what_one_side_did_not_collect_is_none(counted: Any) -> None:
    clean, spilling = (
        counted.capture(launches=(counted.launch(local_load_sectors=value, local_store_sectors=value),)) for value in (0, 32)
    )
    assert changed_rows(clean, spilling) == [("local memory", "0 B", "2.0 kB", "from none (worse)")]
    assert changed_rows(clean, counted.capture(launches=(counted.launch(),))) == []


def test_every_figure_of_a_single_case_is_shown_once(counted: Any) -> None:
    """Versions have a table of differences already; figures of several cases would fill screens; named metrics have their own table."""
    split, first, second = (counted.capture(name) for name in ("split_triton@1", "fused_triton@1", "fused_triton@2"))
    failed = counted.capture("fused_cuda@1", status=CaptureStatus.FAILED, launches=())
    assert captures_in_full(counted.run(split, first, failed)) == [split, first]
    assert captures_in_full(counted.run(split, first, second)) == [split]
    assert captures_in_full(counted.run(first, counted.capture("split_triton@1", case="other"))) == []
    assert captures_in_full(counted.run(failed)) == []
    assert captures_in_full(msgspec.structs.replace(counted.run(split), metric_set="named")) == []


def test_sides_side_by_side(counted: Any) -> None:
    before, after = counted.capture("fused_triton@1", revision="base"), counted.capture("fused_triton@1")
    assert diff_columns(before, after) == ("figure", "base", "this", "change")
    (pair,) = diff_pairs(counted.run(before, after))
    assert pair.before.revision == "base"


def test_launches_of_a_chain_are_named_in_its_rows(counted: Any) -> None:
    before = counted.capture("split_triton@1")
    titles = [row[0] for row in diff_rows(before, before)]
    assert "time" in titles
    assert "launch 1, _modulated_norm: registers per thread" in titles
    assert "launch 2, _select01: registers per thread" in titles


def test_readings_of_a_chain_name_the_launch(counted: Any) -> None:
    said = readings(counted.capture("split_triton@1"))
    assert said[0].startswith("launch 1, _modulated_norm: latency-bound")
    assert said[-1].startswith("more bytes than the op must move: 126.0 MB read and stored, 1.67 times its 75.6 MB")
    assert readings(counted.capture("fused_triton@1"))[0].startswith("latency-bound")


def test_the_traffic_line(counted: Any) -> None:
    assert traffic_line(counted.capture("fused_triton@1")) == (
        "reads 25.3 MB from DRAM and stores 50.3 MB, 26.9 MB of them still in the L2 when it ended: "
        "1.00 bytes per byte that the op must move (75.6 MB)"
    )
    assert traffic_line(counted.capture(launches=(counted.launch(time=5_000),))) == ""


def test_the_traffic_line_knows_whether_caches_were_flushed(counted: Any) -> None:
    warm = counted.capture(launches=(counted.launch(dram_read=0, dram_written=0, l2_write_sectors=1e6),))
    assert "inputs were found in the L2" in traffic_line(warm, "none")
    assert "leaves work out" in traffic_line(warm)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, Unit.COUNT, DASH),
        (23_072, Unit.NANOSECONDS, "23.07 us"),
        (11_894_784, Unit.COUNT, "11,894,784"),
        (25_284_864, Unit.BYTES, "25.3 MB"),
        (2.1127e12, Unit.BYTES_PER_SECOND, "2.11 TB/s"),
        (28.57, Unit.PERCENT, "28.6 %"),
        (6.206, Unit.NUMBER, "6.21"),
    ],
)
def test_a_figure_is_written_with_its_unit(value: float | None, unit: Unit, text: str) -> None:
    assert written(value, unit) == text
