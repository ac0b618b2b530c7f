"""Captures of counters: real ones of an H200, and launches with planted figures.  Loaded by path from the conftest files beside the tests.

The real ones are norm_scale_shift_gate_select01 at (2, 2048, 3072), bfloat16, affine: what Nsight Compute 2025.3.1 printed with
`--set full` and flushed caches, reduced to the metrics that fusebench reads.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from fusebench.counters.figures import LaunchFigures, launch_figures
from fusebench.counters.metric_sets import stall_metric
from fusebench.counters.metric_table import METRICS
from fusebench.counters.raw_csv import parse_raw_page
from fusebench.counters.records import Capture, CaptureStatus, CounterRun, Launch
from fusebench.schema import Environment, Role

OP = "norm_scale_shift_gate_select01"
MINIMUM = 75_599_872
"""Three activations of 4096 rows of 3072, the index, and fourteen rows of parameters."""
FIXTURE = Path(__file__).parents[1] / "counters" / "data" / "select01_h200.csv"


@functools.cache
def real_launches() -> dict[str, tuple[Launch, ...]]:
    """By kernel, in the order of the profile."""
    found = parse_raw_page(FIXTURE.read_text(encoding="utf-8"), lambda name: True)
    return {"fused_triton@1": found[:1], "fused_triton@2": found[1:2], "fused_cuda@1": found[2:3], "split_triton@1": found[3:5]}


def capture(real: str = "fused_triton@1", /, launches: tuple[Launch, ...] | None = None, **changes: Any) -> Capture:
    """The capture of the real kernel `real`, or one of `launches`, with `changes`."""
    values: dict[str, Any] = {
        "case": "bench",
        "suite": OP,
        "op": OP,
        "kernel": f"{OP}/{real}",
        "role": Role.SPLIT if real.startswith("split") else Role.FUSED,
        "shape": "2x2048x3072 bf16 affine",
        "status": CaptureStatus.CAPTURED,
        "minimum_bytes": MINIMUM,
        "launches": real_launches()[real] if launches is None else launches,
    }
    return Capture(**(values | changes))


def launch(*, blocks: int = 4096, threads: int = 128, stalls: dict[str, float] | None = None, **figures: float) -> Launch:
    """A launch with exactly these figures, by the keys of the table of metrics."""
    metrics = {METRICS[key].name: value for key, value in figures.items()}
    metrics |= {stall_metric(reason): cycles for reason, cycles in (stalls or {}).items()}
    return Launch(name="planted", grid=(blocks, 1, 1), block=(threads, 1, 1), metrics=metrics)


def figures_of(kernel: str, place: int = 0) -> LaunchFigures:
    """Of a real launch."""
    return launch_figures(real_launches()[kernel][place])


def planted(**figures: Any) -> LaunchFigures:
    """The figures of `launch(**figures)`."""
    return launch_figures(launch(**figures))


def run(*captures: Capture, **changes: Any) -> CounterRun:
    """A run of these captures, all four real ones by default."""
    values: dict[str, Any] = {
        "id": "2026-01-02T03-04-05_ncu",
        "created": "2026-01-02T03:04:05Z",
        "command": f"fusebench ncu --suite {OP} --case bench",
        "ncu_version": "2025.3.1",
        "metric_set": "full",
        "metrics": (METRICS["time"].name,),
        "cache_control": "all",
        "clock_control": "none",
        "environment": Environment(device="cuda", device_name="NVIDIA H200", python="3.12.3", platform="Linux", fusebench="0.1.0"),
        "cases": (),
        "captures": captures or tuple(capture(kernel) for kernel in ("split_triton@1", "fused_triton@1", "fused_triton@2", "fused_cuda@1")),
    }
    return CounterRun(**(values | changes))
