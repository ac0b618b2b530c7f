"""Tables for terminals of 80 to 200 columns: no id is broken, nothing stands in a tall sliver."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from fusebench.cli.shared.output import print_table
from fusebench.report.run.pages import only_suite
from fusebench.report.run.table import print_run
from fusebench.report.terminal import NARROWEST, FittedTable
from fusebench.report.wording import DASH, share_of_limit
from helpers.recorded_night import recorded_night

WIDTHS = (80, 100, 120, 160, 200)
IDS = ("residual_norm_scale_shift_gate_select01/fused_triton@2", "residual_norm_scale_shift_gate_select01:batch2_33x1536")
REASON = "identical machine code, so the kernel did not change: suspect the measurement, a clock, or a driver setting of the board"
LONG = "the compiler ran out of registers; " * 30


def printed(table: FittedTable, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("reason", ["", REASON, LONG])
def test_no_id_is_broken_and_no_line_is_too_wide(width: int, reason: str) -> None:
    columns = ("case", "kernel", "us", "remark")
    lines = printed(FittedTable(columns, [(IDS[1], IDS[0], "12.50", reason), ("flux", "fused@1", "1.00", "")], right=("us",)), width)
    text = "\n".join(lines)
    assert all(name in text for name in (*IDS, "flux", "fused@1"))
    assert max(map(len, lines)) <= width
    assert " ".join(reason.split()[:3]) in text
    assert len(lines) < 8 + len(reason) / NARROWEST * 2


def test_a_table_that_fits_is_a_table_and_keeps_its_styles() -> None:
    table = FittedTable(("kernel", "us"), [("fused@1", Text("2.00", style="red")), ("split@1", "12.00")], right=("us",), title="case")
    assert printed(table, 80) == ["case", "kernel      us", "──────────────", "fused@1   2.00", "split@1  12.00"]
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[31m" in console.file.getvalue()


def test_prose_is_wrapped_at_spaces_beside_its_row() -> None:
    lines = printed(FittedTable(("kernel", "reason"), [("fused@1", REASON)]), 80)
    assert len(lines) == 2 + 2
    assert lines[3].startswith("         ")


def test_a_row_that_would_be_a_sliver_becomes_a_block() -> None:
    lines = printed(FittedTable(("kernel", "reason"), [("fused@1", LONG)]), 80)
    assert lines[:2] == ["fused@1", "  reason: " + LONG[:70].rsplit(" ", 1)[0]]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_a_run_shows_every_verdict_at_any_width(width: int) -> None:
    run = only_suite(recorded_night(), "residual_norm_scale_shift_gate_select01")
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    print_run(run, console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    rows = [line for line in lines if line.startswith("  fused_triton@")]
    assert len(rows) == 2 * 10
    assert all(len(row) <= width and row.split()[-1] in ("pass", "undecided", "advisory") for row in rows)
    assert "…" not in "\n".join(rows)


def test_a_path_longer_than_a_line_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Planted defect: `list suites` on 60 columns cut every path at the last one."""
    path = "/site-packages/fusebench/" + "x" * 60
    print_table(("suite", "path"), [("smoke", path)], piped=40)
    assert path in capsys.readouterr().out


def test_a_time_that_beats_its_limit_is_no_share_of_it() -> None:
    assert [share_of_limit(one) for one in (None, 0.923, 1.037, 1.52)] == [DASH, "92.3 %", "103.7 %", "> 100 %"]
