"""The head start of the host: as long as a call needs, less what emptying the cache covers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fusebench.schema import CacheState, Sample
from fusebench.timing import preparation
from fusebench.timing.arm import Arm
from fusebench.timing.preparation import (
    CHAIN_FACTOR,
    LIMIT_PERSISTING_L2,
    SINGLE_FACTOR,
    SPIN_LIMIT_US,
    PersistingLines,
    Preparation,
)

HOST_US = {"single": 40.0, "chain": 60.0, "quick": 10.0, "slow": 1e6}


class Gpu:
    """As much of a torch device as a preparation looks at."""

    type = "cuda"


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Preparation:
    monkeypatch.setattr(preparation, "make_evictor", lambda device: lambda: None)
    monkeypatch.setattr(preparation, "_eviction_us", lambda evict: 66.0)
    return Preparation(Gpu(), CacheState.COLD)  # type: ignore[arg-type]


def sample(arm: str, kernels: int) -> Sample:
    return Sample(case="s:c", arm=arm, replicate=0, round=0, position=0, span_ns=1, busy_ns=1, kernels=kernels)


def test_the_eviction_counts_toward_the_head_start(prepare: Preparation) -> None:
    prepare.give_head_start(HOST_US)
    assert prepare.spin_us("chain") == pytest.approx(CHAIN_FACTOR * 60.0 - 66.0)
    assert prepare.spin_us("quick") == 0.0
    assert prepare.spin_us("slow") == SPIN_LIMIT_US


def test_an_arm_that_waited_for_the_host_gets_twice_the_head_start_up_to_the_limit(prepare: Preparation) -> None:
    prepare.give_head_start(HOST_US)
    prepare.lengthen("chain")
    assert prepare.spin_us("chain") == pytest.approx(2 * CHAIN_FACTOR * 60.0 - 66.0)
    assert prepare.spin_us("single") == pytest.approx(CHAIN_FACTOR * 40.0 - 66.0)
    for _ in range(20):
        prepare.lengthen("chain")
    assert prepare.spin_us("chain") == SPIN_LIMIT_US


def test_one_launch_needs_less_once_it_is_known_to_be_one(prepare: Preparation) -> None:
    prepare.give_head_start(HOST_US)
    assert prepare.spin_us("single") == pytest.approx(CHAIN_FACTOR * 40.0 - 66.0)
    prepare.learn([sample("single", 1), sample("chain", 2)])
    assert prepare.spin_us("single") == pytest.approx(SINGLE_FACTOR * 40.0 - 66.0)
    assert prepare.spin_us("chain") == pytest.approx(CHAIN_FACTOR * 60.0 - 66.0)


def test_a_timer_that_counts_no_launches_leaves_every_arm_the_long_one(prepare: Preparation) -> None:
    """Events would time the wait for a launch that came late."""
    prepare.give_head_start(HOST_US)
    prepare.learn([sample("single", 0)])
    assert prepare.spin_us("single") == pytest.approx(CHAIN_FACTOR * 40.0 - 66.0)


def test_a_warm_call_gets_the_whole_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_eviction_us", lambda evict: pytest.fail("nothing is emptied"))
    prepare = Preparation(Gpu(), CacheState.WARM)  # type: ignore[arg-type]
    prepare.give_head_start(HOST_US)
    assert prepare.spin_us("chain") == pytest.approx(CHAIN_FACTOR * 60.0)


class Driver:
    """The driver's library with so many bytes of the cache set aside."""

    def __init__(self, set_aside: int) -> None:
        self.set_aside, self.resets = set_aside, 0

    def cuCtxGetLimit(self, found: Any, limit: int) -> int:  # noqa: N802
        assert limit == LIMIT_PERSISTING_L2
        found._obj.value = self.set_aside
        return 0

    def cuCtxResetPersistingL2Cache(self) -> int:  # noqa: N802
        self.resets += 1
        return 0


def test_persisting_lines_are_released_only_where_a_kernel_set_cache_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: done.append("synchronize"))
    usual, kept = Driver(0), Driver(1 << 20)
    PersistingLines(usual).release()
    assert (usual.resets, done) == (0, []), "nothing waits for the device"
    lines = PersistingLines(kept)
    lines.release()
    assert (lines.set_aside_bytes, kept.resets, done) == (1 << 20, 1, ["synchronize"])


@pytest.fixture
def released_before(prepare: Preparation, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`released_before(orders, groups)`: for each call of an arm, whether persisting lines were released before it."""

    def run(orders: list[str], groups: dict[str, str] | None = None) -> list[list[bool]]:
        log: list[str] = []
        made = Preparation(Gpu(), CacheState.COLD, groups)  # type: ignore[arg-type]
        monkeypatch.setattr(made._persisting, "release", lambda: log.append("released"))
        found = []
        for order in orders:
            found.append([])
            for name in order:
                log.clear()
                made(Arm(name, lambda: None, lambda: log.append("restored")))
                assert log[-1] == "restored", "new inputs come after it"
                found[-1].append(log[0] == "released")
        return found

    return run


def test_no_call_finds_lines_that_an_earlier_call_of_its_arm_persisted(released_before: Any) -> None:
    orders = ["abc", "bca", "acb", "bca"]
    found = released_before(orders)
    assert found == [[True, False, False]] * 4
    since: dict[str, bool] = {}
    for name, released in zip("".join(orders), itertools.chain(*found), strict=True):
        since = {} if released else since
        assert name not in since
        since[name] = True
    assert released_before(["aaaa"]) == [[True] * 4], "an arm by itself has them released before every call"


def test_no_call_finds_lines_that_an_arm_of_the_same_buffers_persisted(released_before: Any) -> None:
    assert released_before(["hbc"], {"h": "pair", "b": "pair"}) == [[True, True, False]]


@pytest.mark.gpu
@pytest.mark.alone
def test_a_chain_has_no_gaps_of_the_hosts_making() -> None:
    """A chain of short launches, cold: without a head start the device waits for the host within it, which is the planted defect."""
    from statistics import median

    import torch

    from fusebench.timing.case_timings import host_cost_us
    from fusebench.timing.timers.cupti import CuptiTimer

    device = torch.device("cuda")
    x = torch.ones(1 << 12, device=device)

    def call() -> None:
        for _ in range(40):
            x.neg_()

    arm = Arm("chain", call, lambda: None)
    call()
    prepare = Preparation(device, CacheState.COLD)

    def typical() -> float:
        return median(timing.span_ns for timing in CuptiTimer().time_calls([arm] * 20, prepare))

    starved = typical()
    prepare.give_head_start({"chain": host_cost_us(arm)})
    assert prepare.spin_us("chain") > 0
    assert typical() < 0.8 * starved
