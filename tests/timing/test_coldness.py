"""Proofs that cold samples are cold, on planted warm ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.errors import NotColdError
from fusebench.registry import load_collection
from fusebench.schema import CacheState, ExitCode, SamplingPlan
from fusebench.timing import preparation
from fusebench.timing.cache import make_evictor
from fusebench.timing.coldness import EVICTION_FACTOR, MEMORY_FACTOR, Coldness, contradiction, observe_coldness, require_emptied
from fusebench.timing.cupti import CuptiTimer
from fusebench.timing.measure import measure_case
from fusebench.timing.placement import arm_specs

H200 = Coldness(touched_us=3.1, emptied_us=5.4, memory_gb_per_s=4250.0)
BYTES = 50_331_648


def test_a_cold_sample_of_an_h200_is_not_contradicted() -> None:
    """14.05 and 11.93 us after a memset and after a read: both below what a large copy moves."""
    assert contradiction({"norm": (BYTES, 14.05), "copy": (BYTES, 11.93)}, H200) == ""


def test_a_planted_warm_sample_is() -> None:
    said = contradiction({"norm": (BYTES, 12.0), "warm": (BYTES, 8.0), "warmer": (BYTES, 7.0)}, H200)
    assert said.startswith("warmer (and 1 more) moved its minimum bytes at 7190 GB/s, more than 1.2 x the 4250 GB/s")


def test_the_limit_is_where_it_is_said_to_be() -> None:
    at = BYTES / (MEMORY_FACTOR * H200.memory_gb_per_s * 1e3)
    assert contradiction({"norm": (BYTES, at * 1.001)}, H200) == ""
    assert contradiction({"norm": (BYTES, at * 0.999)}, H200) != ""


def test_where_nothing_was_observed_nothing_is_claimed() -> None:
    assert contradiction({"norm": (BYTES, 0.001)}, None) == ""


def test_an_eviction_without_effect_is_refused() -> None:
    require_emptied(H200)
    with pytest.raises(NotColdError, match=re.escape("3.10 us on a buffer that it just touched and 3.11 us after")) as caught:
        require_emptied(Coldness(touched_us=3.1, emptied_us=3.11, memory_gb_per_s=4250.0))
    assert caught.value.exit_code is ExitCode.DEVICE_UNFIT
    assert "--cache warm" in str(caught.value)
    assert "emptying the cache has no effect" in contradiction({}, Coldness(touched_us=3.1, emptied_us=3.11, memory_gb_per_s=4250.0))
    assert EVICTION_FACTOR > 1.05, "two medians of the same launch differ by a few percent"


@pytest.fixture
def cuda() -> Any:
    import torch

    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.alone
def test_the_eviction_of_this_gpu_works(cuda: Any) -> None:
    seen = observe_coldness(CuptiTimer(), make_evictor(cuda), cuda)
    assert seen.emptied_us > 1.2 * seen.touched_us
    assert seen.memory_gb_per_s > 100


@pytest.mark.gpu
@pytest.mark.alone
def test_a_run_without_eviction_is_not_called_cold(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = load_collection([Path(__file__).parents[2] / "kernels"], entry_points=False)
    op, baseline = collection.op("qknorm_rope"), collection.kernel("qknorm_rope/split_triton@1")
    params = op.parse_params({"tokens": 512, "heads": 24, "head_dim": 128, "layout": "interleaved"})
    plan = SamplingPlan(replicates=2, rounds=4, cache=CacheState.COLD, trim=0.1)

    def measured(evictor: Callable[[Any], Callable[[], None]]) -> Any:
        monkeypatch.setattr(preparation, "make_evictor", evictor)
        return measure_case("s:c", op, params, arm_specs([], baseline), device=cuda, plan=plan, timer=CuptiTimer(), seed=1)

    assert contradiction({}, measured(make_evictor).coldness) == ""
    assert "emptying the cache has no effect" in contradiction({}, measured(lambda device: lambda: None).coldness)
