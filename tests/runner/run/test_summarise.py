"""Figures of a case, against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from fusebench.registry import Collection
from fusebench.runner.case_kernels import case_kernels
from fusebench.runner.run.summarise import CaseFigures
from fusebench.runner.workers.protocol import Measured
from fusebench.schema import CacheState, Case, Floor, Result, Role, Sample, SamplingPlan, Status
from fusebench.timing.coldness import Coldness
from fusebench.verdict.margins.support import own_variance

BASELINE, GOOD = "scale/split@1", "scale/good@1"
Spans = Mapping[str, Sequence[Sequence[int]]]

SPANS: Spans = {
    "copy": [[1000, 1000], [1000, 1000]],
    "stream": [[800, 800], [800, 800]],
    BASELINE: [[2000, 4000], [12000, 12000]],
    "control": [[3000, 3000], [12000, 12000]],
    GOOD: [[1000, 1000], [3000, 5000]],
}
"""Nanoseconds, by replicate.  Means per replicate: baseline 3 and 12 us, good 1 and 4 us; geometric means 6 and 2 us."""


def timed(case: Case, spans: Spans, *, process: int = 0, kernels: int = 2, **known: Any) -> Measured:
    samples = [
        Sample(
            case=case.key, arm=arm, process=process, replicate=replicate, round=number, position=0, span_ns=span, busy_ns=span // 2,
            kernels=kernels,
        )
        for arm, replicates in spans.items()
        for replicate, values in enumerate(replicates)
        for number, span in enumerate(values)
    ]  # fmt: skip
    fields: dict[str, Any] = {
        "samples": samples, "host_us": {GOOD: 7.5}, "extra_memory_bytes": {GOOD: 4096}, "timer": "cupti", "timer_fallback": "",
        "warm_up": {}, "seconds": 1.0, "cut_short": False, "timer_retries": 0, "memory_bytes": dict.fromkeys(spans, 8 * 4096),
    }  # fmt: skip
    return Measured(**(fields | known))


def figures(collection: Collection, case: Case, spans: Spans, *, trim: float = 0.0, **known: Any) -> CaseFigures:
    return figures_of(collection, case, [timed(case, spans, **known)], trim)


def figures_of(collection: Collection, case: Case, processes: Sequence[Measured], trim: float = 0.0) -> CaseFigures:
    plan = SamplingPlan(replicates=2, rounds=2, cache=CacheState.COLD, trim=trim)
    return CaseFigures(case_kernels(collection, case, "cpu"), processes, plan)


def test_a_kernels_figures(collection: Collection, case: Case) -> None:
    found = figures(collection, case, SPANS).measurement(GOOD)
    assert found.time_us.value == pytest.approx(2.0)
    assert found.busy_us == pytest.approx((500 + 500 + 1500 + 2500) / 4 / 1e3)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(3.0)
    assert (found.speedup.low, found.speedup.high) == pytest.approx((3.0, 3.0)), "3 in both replicates: nothing scatters"
    assert found.gb_per_s == pytest.approx(8 * 4096 / 2e-6 / 1e9)
    assert (found.kernels, found.host_us, found.extra_memory_bytes) == (2, 7.5, 4096)
    assert (found.replicates, found.processes, found.rounds) == (2, 1, 2)


def test_the_interval_is_over_replicates(collection: Collection, case: Case) -> None:
    """Logs of 1 and 4 us lie ln 4 apart: half-width t(1 degree, 95 %) x ln 4 / 2."""
    time = figures(collection, case, SPANS).measurement(GOOD).time_us
    half = 12.7062 * math.log(4) / 2
    assert (time.low, time.high) == pytest.approx((2.0 * math.exp(-half), 2.0 * math.exp(half)), rel=1e-3)


@pytest.mark.parametrize(
    ("stream", "floor", "sol"), [(800, None, 0.4), (800, 1.0, 0.4), (800, 0.6, 0.3), (9_990, 2.0, 1.0), (10_000, 2.0, 5.0)]
)
def test_the_limit_is_the_yardstick_or_below_10_us_the_lower_floor(
    collection: Collection, case: Case, stream: int, floor: float | None, sol: float
) -> None:
    known = {"stream_shape": "planted"} | ({} if floor is None else {"floor": floor_at(floor)})
    found = figures(collection, case, {**SPANS, "stream": [[stream] * 2] * 2}, **known)
    assert found.measurement(GOOD).sol == pytest.approx(sol)
    assert found.summary().limit_us == pytest.approx(2 * sol)


def floor_at(time_us: float) -> Floor:
    return Floor(launch_us=1.0, latency_us=0.5, gb_per_s=4000.0, time_us=time_us)


def test_of_several_processes_the_middle_floor_counts_and_none_where_one_has_none(collection: Collection, case: Case) -> None:
    processes = [timed(case, SPANS, process=number, floor=floor_at(time)) for number, time in enumerate((0.7, 0.1, 0.5))]
    assert figures_of(collection, case, processes).summary().floor == floor_at(0.5)
    assert figures_of(collection, case, [*processes, timed(case, SPANS, process=3)]).summary().floor is None


def test_the_share_of_the_memorys_peak_stands_beside_it_where_that_is_known(collection: Collection, case: Case) -> None:
    plan = SamplingPlan(replicates=2, rounds=2, cache=CacheState.COLD, trim=0.0)
    known = CaseFigures(case_kernels(collection, case, "cpu"), [timed(case, SPANS)], plan, memory_gb_per_s=32.768)
    assert known.measurement(GOOD).peak_share == pytest.approx(0.5)
    assert figures(collection, case, SPANS).measurement(GOOD).peak_share is None


def test_how_the_yardstick_was_launched_and_what_it_moved_is_kept(collection: Collection, case: Case) -> None:
    summary = figures(collection, case, SPANS, stream_shape="as planted").summary()
    assert (summary.stream_shape, summary.minimum_bytes, summary.bytes_written) == ("as planted", 8 * 4096, 4 * 4096)


def test_the_baseline_has_no_speedup_over_itself(collection: Collection, case: Case) -> None:
    found = figures(collection, case, SPANS).measurement(BASELINE)
    assert found.speedup is None
    assert found.time_us.value == pytest.approx(6.0)
    assert (found.host_us, found.extra_memory_bytes) == (None, None)


def test_a_case_is_summed_up_by_its_yardsticks_and_its_control(collection: Collection, case: Case) -> None:
    summary = figures(collection, case, SPANS).summary()
    assert (summary.case, summary.shape, summary.baseline) == (case, "4096", BASELINE)
    assert (summary.minimum_bytes, summary.flops) == (8 * 4096, 4096)
    assert summary.copy_us is not None
    assert summary.stream_us is not None
    assert summary.control_ratio is not None
    assert (summary.copy_us.value, summary.stream_us.value) == pytest.approx((1.0, 0.8))
    assert summary.control_ratio.value == pytest.approx(1.0)


def test_a_control_that_differs_shows_as_bias(collection: Collection, case: Case) -> None:
    spans = {**SPANS, "control": [[6000, 6000], [24000, 24000]]}
    ratio = figures(collection, case, spans).summary().control_ratio
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))


def test_the_plans_trim_is_used(collection: Collection, case: Case) -> None:
    spans = {**SPANS, GOOD: [[1000, 1000, 1000, 90_000]] * 2, BASELINE: [[3000] * 4] * 2}
    assert figures(collection, case, spans, trim=0.25).measurement(GOOD).time_us.value == pytest.approx(1.0)
    assert figures(collection, case, spans, trim=0.0).measurement(GOOD).time_us.value == pytest.approx(23.25)


def test_the_gap_is_what_the_span_holds_besides_work_where_the_timer_sees_it(collection: Collection, case: Case) -> None:
    seen = figures(collection, case, SPANS).measurement(GOOD)
    assert seen.gap_us == pytest.approx((500 + 500 + 1500 + 2500) / 4 / 1e3)
    assert figures(collection, case, SPANS, kernels=0).measurement(GOOD).gap_us is None


def test_a_case_with_a_planted_warm_arm_is_marked_not_cold(collection: Collection, case: Case) -> None:
    """The stream arm moves 32 768 bytes in 0.8 us, which is 41 GB/s."""
    slow_memory = Coldness(touched_us=1.0, emptied_us=2.0, memory_gb_per_s=20.0)
    said = figures(collection, case, SPANS, coldness=slow_memory).summary().not_cold
    assert said.startswith("stream (and 1 more) moved what no cache spares it at 41 GB/s")
    fast_memory = Coldness(touched_us=1.0, emptied_us=2.0, memory_gb_per_s=40.0)
    assert figures(collection, case, SPANS, coldness=fast_memory).summary().not_cold == ""
    assert figures(collection, case, SPANS).summary().not_cold == "", "nothing was observed"


def test_a_case_counts_the_rounds_that_all_processes_timed_again(collection: Collection, case: Case) -> None:
    processes = [timed(case, SPANS, process=number, repeated_rounds=number + 1) for number in range(3)]
    assert figures_of(collection, case, processes).summary().repeated_rounds == 6
    assert figures(collection, case, SPANS).summary().repeated_rounds == 0


def slower(factor: float) -> Spans:
    """Every replicate of every arm takes `factor` times as long, kernel good twice that."""
    return {
        arm: [[round(factor * span * (2 if arm == GOOD else 1)) for span in values] for values in replicates]
        for arm, replicates in SPANS.items()
    }


def test_of_several_processes_intervals_are_over_the_processes(collection: Collection, case: Case) -> None:
    """Process means lie ln 2 apart where those of their two replicates do by ln 4; the ratio to the baseline is 3, then 1.5."""
    found = figures_of(collection, case, [timed(case, SPANS), timed(case, slower(1.0), process=1)]).measurement(GOOD)
    half = 12.7062 * math.log(2) / 2
    middle = math.sqrt(2.0 * 4.0)
    assert (found.time_us.value, found.time_us.low, found.time_us.high) == pytest.approx(
        (middle, middle * math.exp(-half), middle * math.exp(half)), rel=1e-3
    )
    assert found.speedup is not None
    middle = math.sqrt(3.0 * 1.5)
    assert (found.speedup.value, found.speedup.low, found.speedup.high) == pytest.approx(
        (middle, middle * math.exp(-half), middle * math.exp(half)), rel=1e-3
    )
    assert (found.replicates, found.processes, found.rounds) == (4, 2, 2)


def test_a_time_of_few_processes_knows_the_scatter_of_its_placements(collection: Collection, case: Case) -> None:
    """Two processes that agree by chance would claim a time without any error."""
    one, other = timed(case, SPANS), timed(case, SPANS, process=1)
    assert figures_of(collection, case, [one]).measurement(GOOD).placement_error is None
    found = figures_of(collection, case, [one, other]).measurement(GOOD)
    assert found.time_us.high == pytest.approx(found.time_us.low)
    error = math.log(4) / (2 * math.sqrt(3))
    assert found.placement_error == pytest.approx(error)
    assert own_variance(found) == pytest.approx(error**2)
    assert own_variance(msgspec.structs.replace(found, processes=8)) == pytest.approx(0.0), "eight know their own scatter"


def test_host_cost_is_the_mean_of_the_processes_memory_their_most_and_code_what_the_first_one_ran(
    collection: Collection, case: Case
) -> None:
    first = timed(case, SPANS, code={GOOD: "digest"})
    second = timed(case, SPANS, process=1, host_us={GOOD: 8.5}, extra_memory_bytes={GOOD: 8192})
    found = figures_of(collection, case, [first, second])
    timing = found.measurement(GOOD)
    assert (timing.host_us, timing.extra_memory_bytes) == (8.0, 8192)
    checked = Result(case="even", suite="scale", op="scale", kernel=GOOD, role=Role.FUSED, status=Status.CHECKED, shape="4096")
    assert found.measured(checked).code == "digest"


def test_one_process_that_was_not_cold_takes_the_label_from_the_case(collection: Collection, case: Case) -> None:
    fast, slow = (Coldness(touched_us=1.0, emptied_us=2.0, memory_gb_per_s=speed) for speed in (400.0, 20.0))
    found = figures_of(collection, case, [timed(case, SPANS, coldness=fast), timed(case, SPANS, process=1, coldness=slow)])
    assert found.summary().not_cold.startswith("stream (and 1 more) moved what no cache spares it at 41 GB/s")


def test_a_time_below_the_limit_by_more_than_the_noise_is_suspicious(collection: Collection, case: Case) -> None:
    """The stream takes 0.8 us in these samples; only where a floor is known is it a limit."""
    floor = Floor(launch_us=0.1, latency_us=0.1, gb_per_s=1e6, time_us=10.0)
    stream = [[20000, 20000], [20000, 20100]]
    quick = {**SPANS, "stream": stream, GOOD: [[1000, 1000], [1001, 1001]]}
    found = figures(collection, case, quick, floor=floor)
    assert "faster than the limit of" in found.suspicious(GOOD)
    assert found.measurement(GOOD).speedup is None
    assert figures(collection, case, quick).suspicious(GOOD) == "", "a CPU has no floor, and its yardstick is no limit"
    honest = {**SPANS, "stream": stream, GOOD: [[19900, 19900], [20001, 20001]]}
    assert figures(collection, case, honest, floor=floor).suspicious(GOOD) == ""
