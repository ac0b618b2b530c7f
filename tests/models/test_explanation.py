"""Prediction from the stored baseline, and causes that add up to the measured saving."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fusebench.models.linear_gelu import EPILOGUE, LINEAR_GELU
from fusebench.models.measuring.explanation import explain, explained, predict
from fusebench.schema import Estimate, Run
from fusebench.schema.models import Breakdown, EagerTimes, Explanation, KernelTime, SiteCalls, StageTime, StepTime
from fusebench.store.baselines import load_baseline
from helpers.synthetic_records import model_record

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


def _breakdown(
    variant: str, busy: float, *, attention_us: float | None = None, kernels: tuple[KernelTime, ...] = (), **stages: float
) -> Breakdown:
    """A profiled step of one launch a stage; `attention_us` of its stage rope ran inside attention modules, and nothing of the others."""
    found = tuple(
        StageTime(stage=name, time_us=time, launches=1, attention_us=attention_us if attention_us is None or name == "rope" else 0.0)
        for name, time in stages.items()
    )
    return Breakdown(variant=variant, span_us=2 * busy, busy_us=busy, stages=found, kernels=kernels)


def _step(variant: str, time_ms: float) -> StepTime:
    return StepTime(variant=variant, time_ms=Estimate(time_ms, time_ms, time_ms))


BREAKDOWNS = (
    _breakdown("split", 1850.0, matmul=900.0, attention=100.0, rope=900.0),
    _breakdown("fused", 1080.0, matmul=870.0, attention=110.0, rope=100.0),
)
TIMES = (_step("split", 2.4), _step("fused", 1.5))


def _explained(
    stored: Run | None, *sites: SiteCalls, times: tuple[StepTime, ...] = TIMES, breakdowns: tuple[Breakdown, ...]
) -> Explanation:
    found = explain(sites, times, breakdowns, stored, fused="fused", suite="models/flux1_dev")
    assert found is not None
    assert found.unexplained_us is not None
    parts = [found.predicted_us or 0.0, found.unexplained_us, *(cause.time_us for cause in found.causes)]
    assert sum(parts) == pytest.approx(found.measured_us)
    return found


def _by_cause(found: Explanation) -> dict[str, float]:
    return {cause.cause.split(" ")[0]: cause.time_us for cause in found.causes}


def test_prediction_is_calls_times_the_difference(stored: Run) -> None:
    ops, unpredicted, lacks, kernels = predict([_site(stored)], stored, suite="models/flux1_dev")
    own = _stored_us(stored, FUSED)
    assert (unpredicted, lacks) == (0, ())
    assert kernels == {"qknorm_rope": pytest.approx(38 * own)}
    assert ops[0].predicted_us == pytest.approx(38 * (_stored_us(stored, "qknorm_rope/split_torch@1") - own))
    assert ops[0].tuned_us == pytest.approx(38 * (_stored_us(stored, "qknorm_rope/split_triton@1") - own))


def test_work_that_no_stored_case_does_is_named_with_the_command_that_measures_it(stored: Run) -> None:
    ops, unpredicted, (site, command), _ = predict([_site(stored, bytes_more=512)], stored, suite="models/flux1_dev")
    assert ops[0].predicted_us is None
    assert unpredicted == 38
    assert site.endswith("is not predicted: the stored run has no such case")
    assert command == (
        "to predict qknorm_rope: `fusebench run --suite models/flux1_dev --op qknorm_rope`, then `fusebench baseline promote latest --add`"
    )


def test_another_version_of_a_kernel_predicts_nothing_and_is_named(stored: Run) -> None:
    newer = msgspec.structs.replace(_site(stored), kernel="qknorm_rope/fused_triton@99")
    ops, _, (site, command), _ = predict([newer], stored, suite="models/flux1_dev")
    assert ops[0].predicted_us is None
    assert "the stored run has the case without qknorm_rope/fused_triton@99, but with " in site
    assert "fused_triton@2" in site
    assert "run --suite models/flux1_dev --op qknorm_rope" in command


def test_a_lower_clock_that_was_read_costs_products_and_attention_alone(stored: Run) -> None:
    times = tuple(msgspec.structs.replace(one, sm_mhz=mhz) for one, mhz in zip(TIMES, (1800.0, 1500.0), strict=True))
    found = _explained(stored, _site(stored, calls=1), times=times, breakdowns=BREAKDOWNS)
    assert found.predicted_us is not None
    assert found.clocked_us == pytest.approx(found.predicted_us - 0.2 * 1000.0)  # microseconds of products and attention in BREAKDOWNS


@pytest.mark.parametrize("graphs", [False, True])
def test_causes_and_prediction_add_up(stored: Run, graphs: bool) -> None:
    times = (*TIMES, *((_step("split_graph", 2.1), _step("fused_graph", 1.45)) if graphs else ()))
    found = _explained(stored, _site(stored, calls=1), times=times, breakdowns=BREAKDOWNS)
    assert found.predicted_us is not None
    assert found.measured_us == pytest.approx(900.0)
    assert found.unexplained_us == pytest.approx(800.0 - found.predicted_us)
    by_cause = _by_cause(found)
    # Attention takes a tenth longer, and so would the products: 100 us of 1000, of which the products' own times show none.
    assert by_cause["clocks:"] == pytest.approx(-100.0)
    assert by_cause["matrix"] == pytest.approx(30.0 + 90.0)
    assert found.reckoned_us == pytest.approx(found.predicted_us - 100.0)
    assert found.clocked_us is None
    assert by_cause["activities"] == pytest.approx(-50.0)
    assert "the same 1 launches of attention take 10.0 % more time" in " ".join(cause.cause for cause in found.causes)
    said, places, *others = found.remarks
    assert places.startswith("the record lacks what ran inside attention modules")
    assert said == "in the profiled steps all but matrix products and attention save 0.80 ms: rope 0.80"
    if graphs:
        assert by_cause["gaps"] == pytest.approx(300.0 - 50.0)
        assert others == ["split is host-bound: a CUDA graph spares 12 % of its step"]


def _with_gelu(*, launches: int) -> tuple[Breakdown, Breakdown]:
    gelu = KernelTime(name="void GeluCUDAKernelImpl(...)", stage="elementwise", time_us=70.0, launches=launches)
    return (
        _breakdown("split", 1970.0, matmul=900.0, attention=100.0, rope=900.0, elementwise=70.0, kernels=(gelu,)),
        BREAKDOWNS[1],
    )


def test_a_gelu_in_the_product_is_a_cause_and_no_op_that_a_stored_run_lacks(stored: Run) -> None:
    gelu = SiteCalls(site="feed-forward", op=LINEAR_GELU, kernel=EPILOGUE, calls=3, params={}, fallbacks=1)
    found = _explained(stored, _site(stored, calls=1), gelu, breakdowns=_with_gelu(launches=2))
    assert [op.op for op in found.ops] == ["qknorm_rope"]
    assert _by_cause(found)["2"] == pytest.approx(70.0)
    assert not any("predict" in remark for remark in found.remarks)
    # Where the profile lists other launches than moved, their time is not that of the moved ones.
    assert "2" not in _by_cause(_explained(stored, _site(stored, calls=1), gelu, breakdowns=_with_gelu(launches=5)))


def test_profiles_that_tell_what_ran_inside_attention_name_the_ops_and_leave_nothing_unexplained(stored: Run) -> None:
    breakdowns = (
        _breakdown("split", 2100.0, attention_us=900.0, matmul=900.0, attention=100.0, rope=900.0, norm=200.0),
        # A fused launch that is repeated past torch leaves no trace of the attention module around it.
        _breakdown("fused", 1080.0, attention_us=0.0, matmul=870.0, attention=110.0, rope=100.0),
    )
    found = _explained(stored, _site(stored, calls=1), breakdowns=breakdowns)
    assert found.predicted_us is not None
    by_cause = _by_cause(found)
    assert by_cause["inside"] == pytest.approx(800.0 - found.predicted_us)
    assert by_cause["outside"] == pytest.approx(200.0)
    assert found.unexplained_us == pytest.approx(0.0, abs=1e-6)
    said = " ".join(cause.cause for cause in found.causes)
    assert "inside attention modules the model's own phrasing (rope 0.80) saves 0.80 ms of the profiled steps" in said
    assert f"qknorm_rope alone would save {found.predicted_us / 1000:.2f} ms" in said
    assert "own phrasing (norm 0.20) saves 0.20 ms of the profiled steps, where no op alone" in said
    assert not any("lacks" in remark for remark in found.remarks)


def _eager(site: SiteCalls, **changes: object) -> EagerTimes:
    plain = EagerTimes(
        layers={"num_layers": 2}, moved_bytes={site.site: site.calls * site.minimum_bytes}, split_us={"inside": 850.0, "outside": 250.0},
        left_us={"inside": 20.0, "outside": 10.0}, products_left_out=0.0,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def test_launches_of_diffusers_predict_where_they_were_reckoned(stored: Run) -> None:
    site = _site(stored, calls=1)
    breakdowns = (
        _breakdown("split", 2100.0, attention_us=900.0, matmul=900.0, attention=100.0, rope=900.0, norm=200.0),
        _breakdown("fused", 1080.0, attention_us=100.0, matmul=870.0, attention=110.0, rope=100.0),
    )
    found = explain([site], TIMES, breakdowns, stored, fused="fused", suite="models/flux1_dev", eager=_eager(site))
    assert found is not None
    assert found.predicted_us is not None
    own = _stored_us(stored, FUSED)
    assert found.predicted_us == pytest.approx(850.0 - 20.0 - own + 250.0 - 10.0)
    assert found.chains_us == pytest.approx(_stored_us(stored, "qknorm_rope/split_torch@1") - own)
    by_cause = _by_cause(found)
    assert by_cause["inside"] == pytest.approx(800.0 - (830.0 - own))
    assert by_cause["outside"] == pytest.approx(200.0 - 240.0)
    assert found.predicted_us + sum(cause.time_us for cause in found.causes) == pytest.approx(found.measured_us)


def test_products_that_the_fused_step_does_not_make_are_predicted(stored: Run) -> None:
    site = _site(stored, calls=1)
    plain, less = (
        explain([site], TIMES, BREAKDOWNS, stored, fused="fused", suite="models/flux1_dev", eager=_eager(site, products_left_out=share))
        for share in (0.0, 0.1)
    )
    assert plain is not None
    assert less is not None
    assert less.predicted_us == pytest.approx((plain.predicted_us or 0.0) + 90.0)
    # Attention takes a tenth longer, and so would the products that are left.
    assert (_by_cause(plain)["clocks:"], _by_cause(less)["clocks:"]) == (pytest.approx(-100.0), pytest.approx(-91.0))
    assert _by_cause(less)["matrix"] == pytest.approx(_by_cause(plain)["matrix"] - 90.0 - 9.0)
    assert (less.predicted_us or 0.0) + sum(cause.time_us for cause in less.causes) == pytest.approx(less.measured_us)
    assert less.remarks[-1].startswith("the prediction holds 0.09 ms of matrix products that the fused step does not make: 10.0 %")
    assert not any("the prediction holds" in remark for remark in plain.remarks)


def test_launches_need_no_places_to_leave_nothing_unexplained(stored: Run) -> None:
    site = _site(stored, calls=1)
    found = explain([site], TIMES, BREAKDOWNS, stored, fused="fused", suite="models/flux1_dev", eager=_eager(site))
    assert found is not None
    assert found.predicted_us is not None
    assert _by_cause(found)["in"] == pytest.approx(800.0 - found.predicted_us)
    assert found.unexplained_us == pytest.approx(0.0, abs=1e-6)
    assert not any("lacks" in remark for remark in found.remarks)


def test_attention_in_other_launches_tells_no_clocks(stored: Run) -> None:
    before, after = BREAKDOWNS
    stages = tuple(msgspec.structs.replace(one, launches=2) if one.stage == "attention" else one for one in after.stages)
    found = _explained(stored, _site(stored, calls=1), breakdowns=(before, msgspec.structs.replace(after, stages=stages)))
    assert found.reckoned_us is None
    by_cause = _by_cause(found)
    assert "clocks:" not in by_cause
    assert by_cause["attention:"] == pytest.approx(-10.0)
    assert by_cause["matrix"] == pytest.approx(30.0)


@pytest.mark.parametrize("changes", [{"layers": {"num_layers": 3}}, {"moved_bytes": {"q and k": 1}}])
def test_launches_of_other_stacks_or_another_substitution_predict_nothing(stored: Run, changes: dict[str, object]) -> None:
    site = _site(stored, calls=1)
    record = model_record(
        environment={"device": "cuda"}, calls=(site,), times=TIMES, breakdowns=BREAKDOWNS, model="flux1_dev", layers={"num_layers": 2}
    )
    fitting, other = (explained(record, stored, _eager(site, **one)).explanation for one in ({}, changes))
    assert fitting is not None
    assert fitting.chains_us is not None
    assert other is not None
    assert other.chains_us is None
    assert other.remarks[-1].endswith("it is of an older substitution, so chains predict it")


def test_a_call_that_is_not_predicted_leaves_its_saving_unexplained(stored: Run) -> None:
    breakdowns = (
        _breakdown("split", 1900.0, attention_us=900.0, matmul=900.0, attention=100.0, rope=900.0),
        _breakdown("fused", 1080.0, attention_us=100.0, matmul=870.0, attention=110.0, rope=100.0),
    )
    found = _explained(stored, _site(stored, calls=1, bytes_more=512), breakdowns=breakdowns)
    assert found.unexplained_us == pytest.approx(800.0)


def test_without_a_stored_run_nothing_is_predicted(stored: Run) -> None:
    found = _explained(None, _site(stored), breakdowns=BREAKDOWNS)
    assert found.predicted_us is None
    assert found.remarks[1:] == ("no stored run of this GPU model: nothing is predicted",)


def test_nothing_to_explain(stored: Run) -> None:
    assert explain([_site(stored)], TIMES[:1], BREAKDOWNS, stored, fused="fused", suite="models/flux1_dev") is None


def test_a_record_is_explained_anew_by_the_run_that_is_stored_today(stored: Run) -> None:
    record = model_record(
        environment={"device": "cuda"}, calls=(_site(stored, calls=1),), times=TIMES, breakdowns=BREAKDOWNS, model="flux1_dev"
    )
    assert record.explanation is not None
    assert record.explanation.stored == "run 1"
    anew = explained(record, stored).explanation
    assert anew is not None
    assert anew.stored == f"{stored.id} of {stored.created}"
    assert explained(record, None) == record, "without a stored run, the record keeps its own"
    fresh = explained(msgspec.structs.replace(record, explanation=None), None).explanation
    assert fresh is not None
    assert fresh.predicted_us is None
    on_a_cpu = msgspec.structs.replace(record, explanation=None, environment={"device": "cpu"})
    assert explained(on_a_cpu, stored).explanation is None
