"""One kernel under the real Nsight Compute, against what the compiler and the op say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusebench.config import find_project
from fusebench.counters.capturing import Settings, capture, listed_metrics
from fusebench.counters.metric_sets import FULL, SETS, MetricSet, missing, require_known
from fusebench.counters.records import CaptureStatus
from fusebench.device.nsight import permission_problem, permission_remedy, probe_nsight, tool_problem
from fusebench.device.select import resolve_device
from fusebench.evidence.collecting import collect
from fusebench.evidence.targets import TARGETS
from fusebench.registry import load_collection
from fusebench.schema import Case

pytestmark = pytest.mark.gpu

OP = "norm_scale_shift_gate_select01"
CASE = Case(suite="here", name="bench", op=OP, params={"batch": 2, "tokens": 2048, "hidden": 3072, "affine": True})
KERNEL = f"{OP}/fused_triton@2"
SECTOR = 32


@pytest.fixture(scope="module")
def settings() -> Settings:
    probe = probe_nsight()
    for problem in (tool_problem(probe), permission_problem(probe)):
        if problem is not None:
            pytest.skip("; ".join(problem))
    return Settings(
        ncu=probe.path,
        metric_set=MetricSet.QUICK.value,
        metrics=SETS[MetricSet.QUICK],
        cache_control="all",
        silence_s=120.0,
        permission_remedy=permission_remedy(probe),
        visible_device=resolve_device("cuda").uuid,
    )


def test_registers_are_the_compilers_and_bytes_the_ops(settings: Settings, tmp_path: Path) -> None:
    """About 10 s: a process under Nsight Compute, and a compilation."""
    project = find_project(Path(__file__).parents[2])
    collection = load_collection(project.kernels, kernels=False, entry_points=False)
    outcome = capture(
        CASE, KERNEL, roots=collection.roots, kernel_roots=collection.roots, settings=settings, report=tmp_path / "one.ncu-rep"
    )
    assert (outcome.status, outcome.reason, outcome.warnings) == (CaptureStatus.CAPTURED, "", ())
    (launch,) = outcome.launches
    op = collection.op(OP)
    moved = launch.metrics["dram__bytes_read.sum"] + SECTOR * launch.metrics["lts__t_sectors_srcunit_tex_op_write.sum"]
    assert 0.9 < moved / op.minimum_bytes(op.parse_params(CASE.params)) < 1.3

    major, minor = resolve_device("cuda").compute_capability or (0, 0)
    target = TARGETS.get(f"sm_{major}{minor}")
    if target is None:
        pytest.skip(f"no static target for sm_{major}{minor}")
    report = collect([CASE], target, ops=collection.ops, roots=collection.roots, kernel=KERNEL)
    (static,) = report.results[0].launches
    assert launch.metrics["launch__registers_per_thread"] == static.code.registers
    assert launch.block[0] * launch.block[1] * launch.block[2] == static.threads
    assert launch.grid == static.grid
    assert launch.metrics["sm__maximum_warps_per_active_cycle_pct"] == pytest.approx(100 * static.occupancy.share)


def test_every_metric_of_the_sets_is_known_to_this_gpu(settings: Settings) -> None:
    require_known(FULL, listed_metrics(settings))


def test_the_full_set_has_a_value_for_every_metric(settings: Settings, tmp_path: Path) -> None:
    """About 15 s: 38 passes and more."""
    import msgspec

    full = msgspec.structs.replace(settings, metric_set=MetricSet.FULL.value, metrics=FULL)
    project = find_project(Path(__file__).parents[2])
    outcome = capture(CASE, KERNEL, roots=project.kernels, kernel_roots=project.kernels, settings=full, report=tmp_path / "full.ncu-rep")
    assert outcome.status is CaptureStatus.CAPTURED, outcome.reason
    assert all(missing(FULL, launch.metrics) == [] for launch in outcome.launches)
