"""Prediction from the stored baseline, and causes that add up to the measured saving."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusebench.models.measuring.explanation import explain, predict
from fusebench.schema import Estimate, Run
from fusebench.schema.models import Breakdown, SiteCalls, StageTime, StepTime
from fusebench.store.baselines import load_baseline

RESULTS = Path(__file__).parents[2] / "results"
FUSED = "qknorm_rope/fused_triton@2"


@pytest.fixture(scope="module")
def stored() -> Run:
    found = load_baseline(RESULTS, "NVIDIA H200")
    assert found is not None
    return found


def _site(stored: Run, *, calls: int = 38, bytes_more: int = 0) -> SiteCalls:
    case = next(one for one in stored.cases if one.case.key == "models/flux1_dev:qk_joint")
    return SiteCalls(
        site="q and k", op="qknorm_rope", kernel=FUSED, calls=calls, params={}, shape=case.shape,
        minimum_bytes=case.minimum_bytes + bytes_more,
    )  # fmt: skip


def _stored_us(stored: Run, kernel: str) -> float:
    result = next(one for one in stored.results if one.case_key == "models/flux1_dev:qk_joint" and one.kernel == kernel)
    assert result.measurement is not None
    return result.measurement.time_us.value


def _breakdown(variant: str, *, matmul: float, rope: float, busy: float, span: float) -> Breakdown:
    stages = (StageTime(stage="matmul", time_us=matmul, launches=1), StageTime(stage="rope", time_us=rope, launches=1))
    return Breakdown(variant=variant, span_us=span, busy_us=busy, stages=stages)


def _step(variant: str, time_ms: float) -> StepTime:
    return StepTime(variant=variant, time_ms=Estimate(time_ms, time_ms, time_ms))


BREAKDOWNS = (
    _breakdown("split", matmul=1000.0, rope=900.0, busy=1850.0, span=2500.0),
    _breakdown("fused", matmul=980.0, rope=100.0, busy=1080.0, span=1500.0),
)


def test_prediction_is_calls_times_the_difference(stored: Run) -> None:
    ops, missing = predict([_site(stored)], stored)
    own = _stored_us(stored, FUSED)
    assert missing == ()
    assert ops[0].predicted_us == pytest.approx(38 * (_stored_us(stored, "qknorm_rope/split_torch@1") - own))
    assert ops[0].tuned_us == pytest.approx(38 * (_stored_us(stored, "qknorm_rope/split_triton@1") - own))


def test_work_that_no_stored_case_does_is_named(stored: Run) -> None:
    ops, missing = predict([_site(stored, bytes_more=512)], stored)
    assert ops[0].predicted_us is None
    assert "the stored run has no such case with qknorm_rope/fused_triton@2" in missing[0]


@pytest.mark.parametrize("graphs", [False, True])
def test_causes_and_prediction_add_up(stored: Run, graphs: bool) -> None:
    times = [_step("split", 2.4), _step("fused", 1.5)]
    times += [_step("split_graph", 2.1), _step("fused_graph", 1.45)] if graphs else []
    found = explain([_site(stored, calls=1)], times, BREAKDOWNS, stored, fused="fused")
    assert found is not None
    assert found.predicted_us is not None
    assert found.measured_us == pytest.approx(900.0)
    assert found.predicted_us + sum(cause.time_us for cause in found.causes) == pytest.approx(900.0)
    by_cause = {cause.cause.split(" ")[0]: cause.time_us for cause in found.causes}
    assert by_cause["matrix"] == pytest.approx(20.0)
    assert by_cause["activities"] == pytest.approx(-50.0)
    if graphs:
        assert by_cause["gaps"] == pytest.approx(300.0 - 50.0)
        assert found.remarks == ("split is host-bound: a CUDA graph spares 12 % of its step",)


def test_without_a_stored_run_nothing_is_predicted(stored: Run) -> None:
    found = explain([_site(stored)], [_step("split", 2.4), _step("fused", 1.5)], BREAKDOWNS, None, fused="fused")
    assert found is not None
    assert found.predicted_us is None
    assert sum(cause.time_us for cause in found.causes) == pytest.approx(900.0)
    assert found.remarks == ("no stored run of this GPU model: nothing is predicted",)


def test_nothing_to_explain(stored: Run) -> None:
    assert explain([_site(stored)], [_step("split", 2.4)], BREAKDOWNS, stored, fused="fused") is None
