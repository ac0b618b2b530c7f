"""Earlier runs: read again from their reports, and put beside a later one."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.counters.capturing import CounterReportError
from fusebench.errors import UsageError
from fusebench.runner.count.stored import beside, reread
from fusebench.schema import Case

NAME = "smsp__warps_eligible.avg.per_cycle_active"


def of(counted: ModuleType, *kernels: str, tokens: int = 2048, **changes: Any) -> Any:
    """A run of these real captures of one case."""
    case = Case(suite=counted.OP, name="bench", op=counted.OP, params={"tokens": tokens})
    return counted.run(*(counted.capture(kernel) for kernel in kernels), cases=(case,), **changes)


def test_a_counterpart_becomes_the_side_base(counted: ModuleType) -> None:
    now, before = of(counted, "fused_triton@1"), of(counted, "fused_triton@1", "fused_triton@2", id="ab12")
    both = beside(now, before)
    assert [(capture.kernel.rpartition("/")[2], capture.revision) for capture in both.captures] == [
        ("fused_triton@1", ""),
        ("fused_triton@1", "base"),
    ]
    assert both.base == "run ab12 of 2026-01-02T03:04:05Z"
    assert both.warnings == ()


def test_what_else_differs_is_a_warning(counted: ModuleType) -> None:
    now = of(counted, "fused_triton@1")
    other_driver = msgspec.structs.replace(now.environment, driver="1.0")
    before = of(counted, "fused_triton@1", id="ab12", cache_control="none", ncu_version="2025.1.0", environment=other_driver)
    assert beside(now, before).warnings == (
        "run ab12 differs in driver: 1.0 -> unknown",
        "run ab12 differs in ncu_version: 2025.1.0 -> 2025.3.1",
        "run ab12 differs in cache_control: none -> all",
    )


def test_another_case_of_the_same_name_is_not_compared(counted: ModuleType) -> None:
    both = beside(of(counted, "fused_triton@1"), of(counted, "fused_triton@1", tokens=4096, id="ab12"))
    assert len(both.captures) == 1
    assert "with other parameters" in both.warnings[0]
    assert "nothing" not in both.base
    assert both.warnings[-1] == "run ab12 has no kernel and case in common with this one"


def test_the_other_side_of_an_earlier_run_is_left_there(counted: ModuleType) -> None:
    twice = beside(of(counted, "fused_triton@1"), of(counted, "fused_triton@1"))
    assert len(beside(of(counted, "fused_triton@1"), twice).captures) == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With one report, as the script writes it."""
    table = (Path(__file__).parent / "data" / "select01_h200.csv").read_text()
    (tmp_path / "one.ncu-rep").write_text("a report of the fake\n" + "".join(table.splitlines(keepends=True)[:3]))
    return tmp_path


def test_a_report_is_read_again_for_other_metrics(counted: ModuleType, folder: Path, fake_ncu: Any) -> None:
    run = counted.run(counted.capture(report="one.ncu-rep"), counted.capture("fused_triton@2"))
    again = reread(run, folder, str(fake_ncu.path), metric_set="named", metrics=(NAME, "no__such.sum"))
    assert NAME in again.captures[0].launches[0].metrics
    assert "gpu__time_duration.sum" not in again.captures[0].launches[0].metrics
    assert again.captures[1] == run.captures[1], "without a report it stays as it is"
    assert again.warnings == ("one.ncu-rep has no value of no__such.sum",)
    assert (again.metric_set, again.metrics) == ("named", (NAME, "no__such.sum"))


def test_one_report_is_one_capture(counted: ModuleType, folder: Path, fake_ncu: Any) -> None:
    run = counted.run(counted.capture(report="one.ncu-rep"), counted.capture("fused_triton@2"))
    assert len(reread(run, folder, str(fake_ncu.path), metric_set="named", metrics=(NAME,), only="one.ncu-rep").captures) == 1
    with pytest.raises(UsageError, match="no capture of the run"):
        reread(run, folder, str(fake_ncu.path), metric_set="named", metrics=(NAME,), only="two.ncu-rep")


def test_a_missing_report_is_an_error(counted: ModuleType, tmp_path: Path, fake_ncu: Any) -> None:
    run = counted.run(counted.capture(report="one.ncu-rep"))
    with pytest.raises(CounterReportError, match=r"one.ncu-rep: no such file"):
        reread(run, tmp_path, str(fake_ncu.path), metric_set="named", metrics=(NAME,))
