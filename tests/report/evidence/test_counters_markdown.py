"""report.md of a run of counters holds the tables, the comparison, the reading and what it takes to repeat it."""

from __future__ import annotations

import itertools
from typing import Any

from fusebench.counters.records import CaptureStatus
from fusebench.report.evidence.counters_markdown import counters_markdown


def test_the_select01_pair_stands_side_by_side(counted: Any) -> None:
    text = counters_markdown(counted.run())
    assert "| registers per thread | 96 | 72 | -25.0 % (better) |" in text
    assert "| instructions executed | 11,894,784 | 10,256,384 | -13.8 % (better) |" in text


def test_every_captured_kernel_is_read_out(counted: Any) -> None:
    text = counters_markdown(counted.run())
    for kernel in ("split_triton@1", "fused_triton@1", "fused_triton@2", "fused_cuda@1"):
        assert f"`{counted.OP}/{kernel}` on {counted.OP}:bench:" in text
    assert "* limited by registers: 96 per thread leave 5 of 16 blocks" in text
    assert "1.67 bytes per byte that the op must move" in text


def test_a_kernel_that_no_rule_speaks_of_says_so(counted: Any) -> None:
    text = counters_markdown(counted.run(counted.capture(launches=(counted.launch(time=5_000),))))
    assert "* no rule applies" in text


def test_what_failed_is_in_the_table_and_not_in_the_reading(counted: Any) -> None:
    failed = counted.capture("fused_cuda@1", status=CaptureStatus.FAILED, reason="it raised | loudly", launches=())
    text = counters_markdown(counted.run(failed))
    assert "failed: it raised \\| loudly" in text
    assert "## Reading" not in text
    assert "Every figure" not in text


def test_an_incomplete_run_and_its_warnings_come_first(counted: Any) -> None:
    text = counters_markdown(counted.run(complete=False, warnings=("metric gone.sum has no value",)))
    head = text.partition("## Kernels")[0]
    assert "**Incomplete run**" in head
    assert "metric gone.sum has no value" in head
    assert "Incomplete" not in counters_markdown(counted.run())


def test_how_it_was_counted_is_stated(counted: Any) -> None:
    text = counters_markdown(counted.run())
    assert "Nsight Compute 2025.3.1" in text
    assert "caches flushed before every pass; clocks: control none" in text
    assert "fusebench ncu --suite" in text
    assert "caches as they were (cache control none)" in counters_markdown(counted.run(cache_control="none"))


def test_two_sides_are_named_and_compared(counted: Any) -> None:
    base, this = counted.capture("fused_triton@1", revision="base"), counted.capture("fused_triton@1")
    text = counters_markdown(counted.run(base, this, base="commit 0123456789ab"))
    assert "| base | commit 0123456789ab |" in text
    assert "| figure | base | this | change |" in text


def test_metrics_that_the_user_named_have_a_table(counted: Any) -> None:
    """`registers` is collected with any capture, and was not named."""
    capture = counted.capture(launches=(counted.launch(time=5_000, registers=40),))
    named = counters_markdown(counted.run(capture, metric_set="named", metrics=("gpu__time_duration.sum",)))
    assert "| gpu__time_duration.sum | 5,000 |" in named
    assert "launch__registers_per_thread" not in named
    assert "Named metrics" not in counters_markdown(counted.run(capture))


def test_tables_are_whole(counted: Any) -> None:
    """Every row of a table has as many cells as the row above it."""
    lines = counters_markdown(counted.run()).splitlines()
    for above, below in itertools.pairwise(lines):
        if above.startswith("|") and below.startswith("|"):
            assert above.count(" | ") == below.count(" | "), below
