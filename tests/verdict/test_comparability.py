"""What makes two runs incomparable, and what does not."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.schema import SCHEMA_VERSION, CacheState, Run, SamplingPlan
from fusebench.verdict.comparability import case_differences, fingerprint_differences, record_differences


def run_on(synthetic: ModuleType, **environment: Any) -> Run:
    return synthetic.make_run(cases=("flux_1024",), environment=environment)


@pytest.mark.parametrize("name", ["driver", "cuda", "torch", "triton", "ptxas", "ptxas_blackwell"])
def test_each_part_of_the_fingerprint_that_differs_is_named(synthetic: ModuleType, name: str) -> None:
    (difference,) = fingerprint_differences(run_on(synthetic, **{name: "other"}), run_on(synthetic))
    assert difference.startswith(f"{name}: ")
    assert difference.endswith(" -> other")
    assert record_differences(run_on(synthetic, **{name: "other"}), run_on(synthetic)) == [], "ratios may be compared"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"environment": {"device_name": "NVIDIA B200"}}, "device: NVIDIA H200 -> NVIDIA B200"),
        ({"timer": "cuda_events"}, "timer: cupti -> cuda_events"),
        ({"plan": SamplingPlan(replicates=12, rounds=40, cache=CacheState.WARM, trim=0.1)}, "cache state: cold -> warm"),
        ({"schema_version": 99}, f"schema version: {SCHEMA_VERSION} -> 99"),
    ],
)
def test_what_rules_out_any_comparison_is_named(synthetic: ModuleType, change: dict[str, Any], said: str) -> None:
    assert record_differences(synthetic.make_run(cases=("flux_1024",), **change), run_on(synthetic)) == [said]


def test_another_board_of_the_model_another_host_and_another_python_are_comparable_on_a_gpu(synthetic: ModuleType) -> None:
    other = {"device_uuid": "GPU-b", "python": "3.11.7", "cpu": "Intel", "cpu_count": 64, "git_commit": "f" * 40, "platform": "other"}
    assert fingerprint_differences(run_on(synthetic, **other), run_on(synthetic)) == []


def test_on_a_cpu_python_and_processor_count(synthetic: ModuleType) -> None:
    cpu = run_on(synthetic, device="cpu", device_name="AMD EPYC")
    elsewhere = run_on(synthetic, device="cpu", device_name="AMD EPYC", python="3.11.7", cpu_count=2)
    assert [line.split(":")[0] for line in fingerprint_differences(elsewhere, cpu)] == ["python", "cpu_count"]
    assert record_differences(run_on(synthetic), cpu) == ["device: AMD EPYC -> NVIDIA H200"]


def test_times_of_cpu_processes_with_other_settings_are_not_compared(synthetic: ModuleType) -> None:
    """Nor with those of records that predate the key: torch then took as many threads as the machine had cores."""
    one, two, unknown = (
        run_on(synthetic, device="cpu", device_name="AMD EPYC", cpu_process=words) for words in ("1 thread, kept", "2 threads, kept", "")
    )
    assert record_differences(one, one) == []
    assert record_differences(two, one) == ["CPU process: 1 thread, kept -> 2 threads, kept"]
    assert record_differences(one, unknown) == ["CPU process: unknown -> 1 thread, kept"]


def test_a_case_that_computes_otherwise_is_named_by_its_parameters(synthetic: ModuleType) -> None:
    case = run_on(synthetic).cases[0].case
    other = msgspec.structs.replace(case, params={"tokens": 512, "heads": 24, "head_dim": 64})
    assert case_differences(other, case) == ["parameter head_dim: absent -> 64", "parameter tokens: 4096 -> 512"]
    assert case_differences(case, msgspec.structs.replace(case, weight=9.0, source="elsewhere")) == []
