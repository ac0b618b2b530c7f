"""Every rule speaks on its side of its threshold and is silent on the other, without a metric that it needs, and where another explains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusebench.counters import reading
from fusebench.counters.figures import FIGURES
from fusebench.counters.metric_sets import STALLS
from fusebench.counters.metric_table import METRICS
from fusebench.counters.reading import LAUNCH_RULES, read
from fusebench.counters.traffic import describe, traffic

GUIDE = (Path(__file__).parents[2] / "docs" / "ncu.md").read_text(encoding="utf-8")
MIB = 2**20
IDLE = {"compute_throughput": 30.0, "memory_throughput": 30.0, "dram_throughput": 30.0}
"""Nothing works near its peak."""
OCCUPANCY = {
    "registers": 96,
    "shared_bytes": 40_000,
    "theoretical_occupancy": 31.25,
    "achieved_occupancy": 28.6,
    "limit_registers": 5,
    "limit_shared": 14,
    "limit_warps": 16,
    "limit_blocks": 32,
}


def waiting(reason: str, share: float) -> dict[str, float]:
    """Cycles in each state such that warps wait `share` percent of their time for `reason`, and issue in the rest."""
    return dict.fromkeys(STALLS, 0.0) | {"selected": 100 - share} | {reason: share}


def without(figures: dict[str, float], *keys: str) -> dict[str, float]:
    return {key: value for key, value in figures.items() if key not in keys}


def rules(capture: Any) -> list[tuple[int | None, str]]:
    return [(one.launch, one.rule) for one in read(capture)]


def test_the_select01_versions_are_latency_bound_and_limited_by_registers(counted: Any) -> None:
    """What Nsight Compute's own rules say of them too: low compute and memory throughput, loads waited for, occupancy by registers."""
    for kernel in ("fused_triton@1", "fused_triton@2", "fused_cuda@1"):
        assert rules(counted.capture(kernel)) == [(None, "latency_bound"), (None, "register_limited")]
    first, second = read(counted.capture("fused_triton@1"))
    assert "32.3 % of their time waiting for loads" in first.sentence
    assert second.sentence == (
        "limited by registers: 96 per thread leave 5 of 16 blocks on a multiprocessor; achieved occupancy 28.6 % of 31.2 % possible"
    )


def test_the_chain_is_read_launch_by_launch(counted: Any) -> None:
    """Its second launch moves bytes as fast as a copy; both have a tail, as Nsight Compute found; together they move too much."""
    assert rules(counted.capture("split_triton@1")) == [
        (0, "latency_bound"),
        (0, "tail"),
        (1, "memory_bound"),
        (1, "tail"),
        (None, "excess_traffic"),
    ]


def test_every_rule_is_silent_without_metrics(counted: Any) -> None:
    assert [rule.__name__ for rule in LAUNCH_RULES if rule(counted.planted())] == []
    assert read(counted.capture(launches=(counted.launch(),))) == []
    assert read(counted.capture(launches=())) == []


def test_memory_bound_by_dram(counted: Any) -> None:
    assert "80.0 %" in (reading.memory_bound(counted.planted(dram_throughput=80)) or "")
    assert reading.memory_bound(counted.planted(dram_throughput=79.9)) is None


@pytest.mark.parametrize(("stored", "speaks"), [(0.6, False), (1.0, True)], ids=["60 %", "80 %"])
def test_memory_bound_by_what_is_moved(counted: Any, stored: float, speaks: bool) -> None:
    """DRAM at 50 %, having received a quarter of what was stored or less: with the rest it would have been at 80 %."""
    launch = counted.planted(dram_throughput=50, dram_read=MIB, dram_written=0.25 * MIB, l2_write_sectors=stored * MIB / 32)
    assert launch.moved_share == pytest.approx(50 * (1 + stored) / 1.25)
    assert ("as fast as a copy" in (reading.memory_bound(launch) or "")) is speaks


def test_memory_bound_before_dram(counted: Any) -> None:
    assert "before DRAM" in (reading.memory_bound(counted.planted(**IDLE | {"memory_throughput": 80})) or "")
    assert reading.memory_bound(counted.planted(**IDLE | {"memory_throughput": 79.9})) is None


def test_compute_bound(counted: Any) -> None:
    assert "80.0 %" in (reading.compute_bound(counted.planted(compute_throughput=80)) or "")
    assert reading.compute_bound(counted.planted(compute_throughput=79.9)) is None


@pytest.mark.parametrize("busy", ["compute_throughput", "memory_throughput"])
def test_latency_bound_needs_both_far_from_their_peak(counted: Any, busy: str) -> None:
    stalls = waiting("long_scoreboard", 40)
    assert "loads from memory" in (reading.latency_bound(counted.planted(stalls=stalls, **IDLE | {busy: 59.9})) or "")
    assert reading.latency_bound(counted.planted(stalls=stalls, **IDLE | {busy: 60})) is None


@pytest.mark.parametrize(("share", "speaks"), [(29.9, False), (30, True)])
def test_latency_bound_needs_a_wait_that_dominates(counted: Any, share: float, speaks: bool) -> None:
    assert bool(reading.latency_bound(counted.planted(stalls=waiting("long_scoreboard", share), **IDLE))) is speaks


def test_a_full_queue_is_no_latency(counted: Any) -> None:
    assert reading.latency_bound(counted.planted(stalls=waiting("lg_throttle", 60), **IDLE)) is None
    assert "barrier" in (reading.latency_bound(counted.planted(stalls=waiting("barrier", 60), **IDLE)) or "")


def test_a_kernel_as_fast_as_a_copy_is_not_called_latency_bound(counted: Any) -> None:
    """DRAM is at 45 %, since most of the stores are in the L2 yet; the bytes are moved at the rate of a copy."""
    moving = {"dram_read": MIB, "dram_written": 0.1 * MIB}
    stalls = waiting("long_scoreboard", 40)
    figures = IDLE | {"dram_throughput": 45} | moving
    assert reading.latency_bound(counted.planted(stalls=stalls, **figures, l2_write_sectors=0.5 * MIB / 32))
    assert reading.latency_bound(counted.planted(stalls=stalls, **figures, l2_write_sectors=MIB / 32)) is None


@pytest.mark.parametrize("key", ["compute_throughput", "memory_throughput"])
def test_latency_bound_lacks_a_metric(counted: Any, key: str) -> None:
    assert reading.latency_bound(counted.planted(stalls=waiting("long_scoreboard", 40), **without(IDLE, key))) is None


@pytest.mark.parametrize(
    ("rule", "resource", "words"),
    [
        (reading.register_limited, "registers", "96 per thread leave 5 of 16"),
        (reading.shared_limited, "shared", "40.0 kB per block leave 5 of 16"),
    ],
    ids=["registers", "shared"],
)
def test_a_resource_that_limits_occupancy(counted: Any, rule: Any, resource: str, words: str) -> None:
    limit, other = f"limit_{resource}", "limit_shared" if resource == "registers" else "limit_registers"
    figures = OCCUPANCY | IDLE | {limit: 5, other: 14}

    def say(**changes: float) -> str | None:
        found: str | None = rule(counted.planted(**figures | changes))
        return found

    assert words in (say() or "")
    assert say(**{other: 4}) is None, "another resource stops earlier"
    assert say(theoretical_occupancy=50, achieved_occupancy=45) is None, "occupancy is high enough"
    assert say(theoretical_occupancy=49.9, achieved_occupancy=45)
    assert say(achieved_occupancy=0.79 * 31.25) is None, "something else keeps occupancy below the limit"
    assert say(achieved_occupancy=0.81 * 31.25)
    assert say(dram_throughput=80) is None, "more occupancy cannot help: memory is at its peak"
    assert say(compute_throughput=80) is None, "more occupancy cannot help: compute is at its peak"
    for needed in (limit, "theoretical_occupancy", "achieved_occupancy", "limit_warps", "limit_blocks"):
        assert rule(counted.planted(**without(figures, needed))) is None, needed


@pytest.mark.parametrize("what", ["load", "store"])
def test_uncoalesced(counted: Any, what: str) -> None:
    rule = reading.uncoalesced_loads if what == "load" else reading.uncoalesced_stores

    def say(used: float, sectors: float = 32) -> str | None:
        figures = {f"{what}_bytes_per_sector": used, f"{what}_sectors": sectors, f"{what}_requests": 1}
        return rule(counted.planted(**figures))

    assert "8.0 of a sector's 32 bytes are used; 32.0 sectors per request, where 8.0 would do" in (say(8) or "")
    assert say(23.9)
    assert say(24) is None
    assert say(8, sectors=0) is None, "there are none"
    assert rule(counted.planted(**{f"{what}_bytes_per_sector": 8})) is None, "sectors were not collected"


def test_wide_loads_are_not_uncoalesced(counted: Any) -> None:
    """Sixteen sectors a request are what 16 bytes per thread need: nothing is said of the real kernels."""
    for kernel in ("fused_triton@1", "fused_triton@2", "fused_cuda@1"):
        launch = counted.figures_of(kernel)
        assert launch.load_sectors_per_request > 15
        assert reading.uncoalesced_loads(launch) is None
        assert reading.uncoalesced_stores(launch) is None


@pytest.mark.parametrize(("local", "speaks"), [(0, False), (9.9, False), (10.2, True)])
def test_local_memory(counted: Any, local: float, speaks: bool) -> None:
    """A hundredth of a thousand sectors; nothing at all where there is none."""
    launch = counted.planted(local_load_sectors=local / 2, local_store_sectors=local / 2, load_sectors=600, store_sectors=400)
    assert bool(reading.local_memory(launch)) is speaks
    assert reading.local_memory(counted.planted(local_load_sectors=500, local_store_sectors=500)) is None


@pytest.mark.parametrize(("blocks", "speaks"), [(131, True), (132, False)])
def test_small_grid(counted: Any, blocks: int, speaks: bool) -> None:
    found = reading.small_grid(counted.planted(blocks=blocks, multiprocessors=132))
    assert found == ("small grid: 131 blocks leave 1 of 132 multiprocessors idle" if speaks else None)
    assert reading.small_grid(counted.planted(blocks=1)) is None


@pytest.mark.parametrize(("waves", "busy", "speaks"), [(3.10, 94.9, True), (3.10, 95.1, False), (3.0, 80, False), (0.9, 80, False)])
def test_tail(counted: Any, waves: float, busy: float, speaks: bool) -> None:
    """A partial wave after a full one, and multiprocessors that were seen to wait for it: neither alone."""
    launch = counted.planted(waves=waves, sm_active=busy, sm_active_most=100)
    assert bool(reading.tail(launch)) is speaks
    assert reading.tail(counted.planted(waves=waves)) is None


@pytest.mark.parametrize(
    ("issue", "eligible", "dram", "speaks"),
    [(39.9, 0.9, 50, True), (40, 0.9, 50, False), (39.9, 1, 50, False), (39.9, 0.9, 80, False)],
    ids=["low", "enough issues", "enough warps", "memory-bound"],
)
def test_low_issue(counted: Any, issue: float, eligible: float, dram: float, speaks: bool) -> None:
    figures = {"issue_active": issue, "eligible_warps": eligible, "active_warps": 7.5, "dram_throughput": dram}
    assert bool(reading.low_issue(counted.planted(**figures))) is speaks
    assert reading.low_issue(counted.planted(**without(figures, "eligible_warps"))) is None


@pytest.mark.parametrize(("minimum", "factor", "speaks"), [(8 * MIB, 1.09, False), (8 * MIB, 1.11, True), (MIB, 1.2, False)])
def test_excess_traffic(counted: Any, minimum: int, factor: float, speaks: bool) -> None:
    """A tenth more, and enough bytes that code and constants cannot be them."""
    launch = counted.launch(dram_read=(factor - 0.5) * minimum, dram_written=0, l2_write_sectors=minimum / 2 / 32)
    found = reading.excess_traffic(counted.capture(launches=(launch,), minimum_bytes=minimum))
    assert bool(found) is speaks
    assert found is None or "1.11 times" in found


def test_every_rule_can_speak(counted: Any) -> None:
    """None is dead: each says something of one of these launches, real or planted."""
    launches = [
        *map(counted.figures_of, ("fused_triton@1", "split_triton@1")),
        counted.planted(compute_throughput=90, dram_throughput=90),
        counted.planted(**OCCUPANCY | IDLE | {"limit_shared": 3}),
        counted.planted(load_bytes_per_sector=4, load_sectors=32, load_requests=1),
        counted.planted(store_bytes_per_sector=4, store_sectors=32, store_requests=1),
        counted.planted(local_load_sectors=5, local_store_sectors=5, load_sectors=5, store_sectors=5),
        counted.planted(blocks=1, multiprocessors=132),
        counted.planted(issue_active=5, eligible_warps=0.1, active_warps=2, **IDLE),
    ]
    said = {name for launch in launches for name, _ in reading.read_launch(launch)}
    assert said == {rule.__name__ for rule in LAUNCH_RULES}


def test_the_guide_names_every_metric_figure_and_threshold() -> None:
    """A threshold that changes, or a figure that comes, changes the page with it."""
    for metric in METRICS.values():
        assert f"`{metric.name}`" in GUIDE
    for figure in FIGURES:
        assert figure.title.partition(":")[0] in GUIDE
    for words in (
        f"DRAM throughput is {reading.NEAR_PEAK:.0f} % or more",
        f"amount to {reading.COPY_SHARE:.0f} % of DRAM's peak",
        f"both below {reading.FAR_FROM_PEAK:.0f} %",
        f"takes {reading.LONGEST_WAIT:.0f} % of a warp's time or more",
        f"occupancy is below {reading.LOW_OCCUPANCY:.0f} %",
        f"at least {reading.LIMIT_IN_FORCE} of theoretical",
        f"fewer than {reading.USED_SECTOR_BYTES:.0f} of a sector's 32 bytes",
        f"{reading.EXCESS_TRAFFIC} times the minimum or more, and at least {reading.EXCESS_BYTES // 1024} KiB more",
        f"had work for {100 - reading.IDLE_TAIL:.0f} % of the busiest one's time or less",
        f"it is {reading.LOCAL_SHARE:.0f} % or more of what the L1 is asked for",
        f"issue in less than {reading.LOW_ISSUE:.0f} % of cycles",
    ):
        assert words in GUIDE, words


def test_the_guide_shows_a_real_line(counted: Any) -> None:
    found = traffic(counted.capture("fused_triton@1"))
    assert found is not None
    assert describe(found) in GUIDE
