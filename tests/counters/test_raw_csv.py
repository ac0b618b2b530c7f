"""Nsight Compute's table: the real one of an H200 read to the last figure, and every way in which a table can be none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusebench.counters.metric_sets import ALWAYS, FULL, MEMORY, QUICK, wanted
from fusebench.counters.metric_table import METRICS
from fusebench.counters.raw_csv import CounterTableError, number_in, parse_raw_page, unit_factor

TABLE = (Path(__file__).parent / "data" / "select01_h200.csv").read_text()


def table(unit: str, cell: str, *, name: str = "dram__bytes_read.sum") -> str:
    return f'"ID","Kernel Name","Block Size","Grid Size","{name}"\n"","","","","{unit}"\n"0","f","(128, 1, 1)","(64, 2, 1)","{cell}"\n'


def test_the_launches_of_a_real_profile_are_read_in_order() -> None:
    launches = parse_raw_page(TABLE, lambda name: True)
    assert [launch.name for launch in launches] == ["_select01", "_select01", "select01", "_modulated_norm", "_select01"]
    assert launches[0].grid == (4096, 1, 1)
    assert launches[2].block == (256, 1, 1)


def test_values_are_in_base_units_whatever_the_table_shows() -> None:
    first = parse_raw_page(TABLE, lambda name: True)[0].metrics
    assert first["gpu__time_duration.sum"] == pytest.approx(23072.0), "23.072 us, in nanoseconds"
    assert first["dram__bytes_read.sum"] == pytest.approx(25_284_864), "25.284864 Mbyte: 790152 sectors of 32 bytes"
    assert first["dram__bytes.sum.per_second"] == pytest.approx(2.112710e12)
    assert first["dram__cycles_elapsed.avg.per_second"] == pytest.approx(3.193481e9), "in hertz"
    assert first["launch__registers_per_thread"] == 96
    assert first["launch__shared_mem_per_block_allocated"] == pytest.approx(1152)
    assert first["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] == 458_752, "written 458,752"
    assert first["lts__t_sectors.sum.per_second"] == pytest.approx(164.641904e9)


def test_what_is_no_number_is_no_metric() -> None:
    first = parse_raw_page(TABLE, lambda name: True)[0].metrics
    assert '"nan"' in TABLE
    assert "launch__func_cache_config" not in first, "a word"
    assert "derived_tempMetric4" not in first


def test_only_what_is_asked_for_is_kept() -> None:
    launches = parse_raw_page(TABLE, lambda name: wanted(name, QUICK))
    assert all(set(launch.metrics) == {*QUICK, *ALWAYS} for launch in launches)
    assert "smsp__cycles_active.avg" not in launches[0].metrics, "the table has it, and nobody asked"


def test_every_name_of_the_sets_has_a_value_in_the_real_profile() -> None:
    launches = parse_raw_page(TABLE, lambda name: True)
    assert all({*FULL, *ALWAYS} <= launch.metrics.keys() for launch in launches)


def test_every_figure_is_collected_by_the_full_set_and_sets_grow() -> None:
    assert {metric.name for metric in METRICS.values()} <= {*FULL, *ALWAYS}
    assert set(QUICK) < set(MEMORY) < set(FULL)
    assert len(set(FULL)) == len(FULL)


def test_lines_before_the_table_are_passed_over() -> None:
    noise = "==WARNING== Note: Running with unmodified GPU clocks.\nsomething a kernel printed\n"
    assert parse_raw_page(noise + TABLE, lambda name: True) == parse_raw_page(TABLE, lambda name: True)


@pytest.mark.parametrize(
    ("unit", "cell", "value"),
    [
        ("byte", "25284864", 25284864.0),
        ("Kbyte", "1.5", 1500.0),
        ("Gbyte/s", "2", 2e9),
        ("byte/second", "1,234", 1234.0),
        ("ns", "23072", 23072.0),
        ("nsecond", "23072", 23072.0),
        ("ms", "1.5", 1.5e6),
        ("second", "1", 1e9),
        ("Mhz", "446.6", 446.6e6),
        ("hz", "3", 3.0),
        ("sector/us", "2", 2e6),
        ("%", "43.9", 43.9),
        ("inst/cycle", "2.2", 2.2),
        ("Kbyte/cycle", "1.504", 1504.0),
        ("", "7", 7.0),
    ],
)
def test_units(unit: str, cell: str, value: float) -> None:
    (launch,) = parse_raw_page(table(unit, cell), lambda name: True)
    assert launch.metrics["dram__bytes_read.sum"] == pytest.approx(value)
    assert launch.grid == (64, 2, 1)


@pytest.mark.parametrize("cell", ["", "nan", "inf", "no", "(1; 2; 3)"])
def test_cells_without_a_number(cell: str) -> None:
    assert number_in(cell) is None
    assert parse_raw_page(table("byte", cell), lambda name: True)[0].metrics == {}


def test_a_rate_is_per_second() -> None:
    assert unit_factor("byte/ns") == pytest.approx(1e9)


def test_a_table_without_launches_has_none() -> None:
    assert parse_raw_page("".join(TABLE.splitlines(keepends=True)[:2]), lambda name: True) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("==PROF== Connected\n", "no table of metrics.*found ==PROF== Connected"),
        ("", "found nothing"),
        ('"ID","Grid Size"\n"",""\n', "lacks Kernel Name, Block Size"),
        (TABLE.splitlines(keepends=True)[0], "names and 0 units"),
        (TABLE.rstrip()[:-400], "cut short"),
        (table("byte", "1").replace("(64, 2, 1)", "64"), "expected three numbers"),
    ],
)
def test_what_is_no_table_is_refused_with_what_was_found(text: str, said: str) -> None:
    with pytest.raises(CounterTableError, match=said):
        parse_raw_page(text, lambda name: True)


@pytest.mark.parametrize(("broken", "said"), [("a\rb,", "is no CSV"), ("(" + "1" * 5000 + ", 1, 1)", "expected three numbers")])
def test_what_a_fuzz_test_found_is_an_error_of_the_table(broken: str, said: str) -> None:
    names, units, row = TABLE.splitlines()[:3]
    cell = next(cell for cell in re.findall(r'"\([^"]*\)"', row))
    row = row.replace(cell, f'"{broken}"') if said.startswith("expected") else broken + row
    with pytest.raises(CounterTableError, match=said):
        parse_raw_page("\n".join([names, units, row]), lambda name: True)
