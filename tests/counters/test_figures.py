"""Figures are the metrics' values and nothing else: none is invented where a metric is absent, and a chain's add up."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fusebench.counters.figures import FIGURES, WARP_STATES, launch_figures, total
from fusebench.counters.metric_sets import ALWAYS, FULL, STALLS
from fusebench.counters.metric_table import METRICS


def by_title(title: str) -> Any:
    return next(figure for figure in FIGURES if figure.title == title)


def test_the_profile_of_an_h200_reads_as_nsight_compute_shows_it(counted: Any) -> None:
    """Registers, microseconds, occupancies and instructions as in the report that the fixture is made of."""
    shown = {
        "fused_triton@1": (96, 23.072, 28.6, 31.25, 11_894_784),
        "fused_triton@2": (72, 21.696, 39.3, 43.75, 10_256_384),
        "fused_cuda@1": (80, 21.856, 34.6, 37.5, 9_857_504),
    }
    for kernel, (registers, time_us, achieved, theoretical, instructions) in shown.items():
        launch = counted.figures_of(kernel)
        assert launch.get("registers") == registers
        assert launch.get("time") == pytest.approx(1e3 * time_us)
        assert launch.get("achieved_occupancy") == pytest.approx(achieved, abs=0.05)
        assert launch.get("theoretical_occupancy") == theoretical
        assert launch.get("instructions") == instructions


def test_derived_figures_follow_from_the_counters(counted: Any) -> None:
    launch = counted.figures_of("fused_triton@1")
    assert launch.dram_bytes == 25_284_864 + 23_459_584
    assert launch.dram_rate == pytest.approx(2.11271e12, rel=1e-5)  # Nsight Compute's own: 2.112710 Tbyte/s
    assert launch.l2_written == 2 * 4096 * 3072 * 2  # two bfloat16 outputs of 4096 rows, every line stored once
    assert launch.moved == launch.get("dram_read") + launch.l2_written
    assert launch.load_sectors_per_request == pytest.approx(15.464, abs=1e-3)
    assert launch.store_sectors_per_request == 16
    assert launch.local_bytes == 0
    assert launch.limited_by == ("registers",)
    assert launch.busy_share == pytest.approx(95.2, abs=0.05)


def test_bytes_moved_are_held_against_the_peak_at_the_clock_of_the_launch(counted: Any) -> None:
    """1504 bytes a cycle at 3.193481 GHz are the peak that the profile states; stores still in the L2 count as moved."""
    launch = counted.figures_of("fused_triton@1")
    peak = 1504 * 3.193481e9
    assert launch.moved_share == pytest.approx(100 * launch.moved / 23.072e-6 / peak, rel=1e-4)


def test_waits_are_shares_of_a_warps_time_and_issuing_is_none(counted: Any) -> None:
    launch = counted.figures_of("fused_triton@1")
    waits = dict(launch.waits)
    assert launch.waits[0][0] == "long_scoreboard"
    assert waits["long_scoreboard"] == pytest.approx(32.0, abs=0.5)  # Nsight Compute says 32.0 % of 8.2 cycles
    assert launch.warp_latency == pytest.approx(8.225, rel=0.01)  # its own counter of the same, from another pass
    assert not {"selected", "not_selected"} & waits.keys()
    assert [share for _, share in launch.waits] == sorted(waits.values(), reverse=True)


@pytest.mark.parametrize("absent", sorted(WARP_STATES))
def test_waits_are_unknown_unless_every_state_was_collected(counted: Any, absent: str) -> None:
    """A share of the states that somebody happened to collect would be too large."""
    states = dict.fromkeys(STALLS, 1.0)
    assert counted.planted(stalls=states).waits
    del states[absent]
    assert counted.planted(stalls=states).waits == ()


def test_the_state_that_only_hopper_has_may_be_absent(counted: Any) -> None:
    launch = counted.planted(stalls={reason: 1.0 for reason in STALLS if reason != "gmma"})
    assert launch.warp_latency == len(STALLS) - 1


def test_what_was_not_collected_is_none_and_not_zero(counted: Any) -> None:
    """Of a launch without metrics only its grid and its block are known."""
    launch = counted.planted()
    known = {figure.title for figure in FIGURES if figure.value(launch) is not None}
    assert known == {"blocks", "threads per block"}
    assert launch.limited_by == ()
    assert launch.moved_share is None


def test_a_metric_that_is_no_number_counts_as_not_collected(counted: Any) -> None:
    assert counted.planted(time=math.nan).get("time") is None
    assert counted.planted(time=math.inf).get("time") is None


def test_a_misspelt_figure_is_an_error_and_not_a_missing_one(counted: Any) -> None:
    with pytest.raises(KeyError):
        counted.planted().get("tiem")


def test_ratios_of_nothing_are_unknown(counted: Any) -> None:
    """A kernel without global loads has no sectors per load, and one that took no time no rate."""
    launch = counted.planted(load_sectors=0, load_requests=0, time=0, dram_read=1, dram_written=1)
    assert launch.load_sectors_per_request is None
    assert launch.dram_rate is None


def test_several_resources_may_limit_at_once(counted: Any) -> None:
    launch = counted.planted(limit_registers=4, limit_shared=4, limit_warps=16, limit_blocks=32)
    assert launch.limited_by == ("registers", "shared")


def test_barriers_may_be_the_limit(counted: Any) -> None:
    launch = counted.planted(limit_registers=9, limit_shared=9, limit_warps=9, limit_blocks=9, limit_barriers=4)
    assert launch.limited_by == ("barriers",)


def test_without_a_limit_nobody_knows_which_is_the_smallest(counted: Any) -> None:
    assert counted.planted(limit_registers=4, limit_warps=16, limit_blocks=32).limited_by == ()


def test_a_chain_has_sums_of_what_adds_up_and_nothing_else(counted: Any) -> None:
    launches = tuple(map(launch_figures, counted.real_launches()["split_triton@1"]))
    assert total(by_title("time"), launches) == pytest.approx(14_528 + 19_680)
    assert total(by_title("instructions executed"), launches) == 6_881_280 + 5_144_576
    assert total(by_title("registers per thread"), launches) is None
    assert total(by_title("registers per thread"), launches[:1]) == 48


def test_a_sum_is_unknown_where_one_launch_lacks_it(counted: Any) -> None:
    assert total(by_title("time"), (counted.planted(time=5), counted.planted())) is None
    assert total(by_title("time"), ()) is None


def test_the_sets_collect_what_the_figures_read() -> None:
    """`full` feeds every figure; a name in the table that no set collects would never have a value."""
    assert {metric.name for metric in METRICS.values()} <= {*FULL, *ALWAYS}


def test_titles_name_one_figure_each() -> None:
    titles = [figure.title for figure in FIGURES]
    assert len(titles) == len(set(titles))
