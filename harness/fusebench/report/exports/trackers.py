"""Formats of benchmark trackers, each a JSON document with one record per figure.

Field names and units are those of: github-action-benchmark's `customSmallerIsBetter` (README of benchmark-action/github-action-benchmark),
Bencher Metric Format (bencher.dev/docs/reference/bencher-metric-format), and version 3 of the PyTorch OSS benchmark database (table
`oss_ci_benchmark_v3` in pytorch/test-infra, whose `extra_info` maps hold strings alone).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...schema import Run
from ..escape import one_line
from .series import Exported, device_facts, document, exported, number


def github_action_benchmark(run: Run) -> str:
    """A list of `name`, `unit` (us), `value`, `range` and `extra`; smaller is better for all."""
    return document([_entry(one) for one in exported(run)])


def _entry(one: Exported) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": one.name, "unit": "us", "value": one.timing.time_us.value}
    if one.low_us is not None and one.high_us is not None:
        spread = max(one.high_us - one.timing.time_us.value, one.timing.time_us.value - one.low_us)
        entry["range"] = f"± {spread:.3g}"
    entry["extra"] = "\n".join(f"{name}: {value}" for name, value in one.facts().items())
    return entry


def bencher(run: Run) -> str:
    """An object of benchmarks, each with the measures `latency` (ns, Bencher's own unit for it), `speedup` (x) and `share-of-limit`."""
    return document({one.name: _measures(one) for one in exported(run)})


def _measures(one: Exported) -> dict[str, dict[str, float]]:
    measures = {"latency": _metric(one.timing.time_us.value, one.low_us, one.high_us, scale=1000.0)}
    speedup, sol = one.timing.speedup, one.timing.sol
    if speedup is not None and number(speedup.value, "g"):
        measures["speedup"] = _metric(speedup.value, speedup.low, speedup.high)
    if sol is not None and number(sol, "g"):
        measures["share-of-limit"] = {"value": sol}
    return measures


def _metric(value: float, low: float | None, high: float | None, scale: float = 1.0) -> dict[str, float]:
    ends = {"lower_value": low, "upper_value": high} if number(low, "g") and number(high, "g") and (low or 0) > 0 else {}
    return {"value": value * scale} | {name: end * scale for name, end in ends.items() if end is not None}


def pytorch_oss(run: Run) -> str:
    """A list of records of one metric each: `time_us`, and `speedup` and `share_of_limit` where the run has them.

    The uploader adds what only it knows: `timestamp`, `schema_version`, `name`, `repo`, branch, commit, workflow and job.
    """
    return document([record for one in exported(run) for record in _records(run, one)])


def _records(run: Run, one: Exported) -> list[dict[str, Any]]:
    timing = one.timing
    figures: dict[str, tuple[float | None, dict[str, str]]] = {
        "time_us": (timing.time_us.value, {"unit": "us", "smaller_is_better": "true"} | _ends(one.low_us, one.high_us)),
        "speedup": (None, {}),
        "share_of_limit": (timing.sol, {"unit": "share", "smaller_is_better": "false"}),
    }
    if timing.speedup is not None:
        facts = {"unit": "x", "smaller_is_better": "false", "over": one.summary.baseline or ""}
        figures["speedup"] = (timing.speedup.value, facts | _ends(timing.speedup.low, timing.speedup.high))
    dtype = str(one.summary.case.params.get("dtype", ""))
    environment = run.environment
    shared = {
        "benchmark": {"name": "fusebench", "mode": "inference", "dtype": one_line(dtype), "extra_info": _texts(run, one)},
        "model": {
            "name": one.name,
            "type": "fused-op",
            "backend": "" if one.kernel is None else str(one.kernel.language),
            "origins": ["fusebench"],
            "extra_info": one.facts(),
        },
        "inputs": {
            one_line(name): {"dtype": one_line(dtype), "extra_info": {"value": one_line(str(value))}}
            for name, value in one.summary.case.params.items()
        },
        "dependencies": {
            name: {"version": one_line(version)}
            for name, version in (("torch", environment.torch), ("triton", environment.triton), ("fusebench", environment.fusebench))
            if version
        },
        "runners": [
            {
                "name": one_line(environment.device_name),
                "type": environment.device,
                "cpu_info": one_line(environment.cpu),
                "cpu_count": environment.cpu_count,
                "gpu_info": one_line(environment.device_name) if environment.device == "cuda" else "",
                "gpu_count": int(environment.device == "cuda"),
                "extra_info": {"driver": one_line(environment.driver)},
            }
        ],
    }
    return [
        shared | {"metric": {"name": name, "benchmark_values": [value], "extra_info": facts}}
        for name, (value, facts) in figures.items()
        if value is not None and number(value, "g")
    ]


def _texts(run: Run, one: Exported) -> dict[str, str]:
    facts = {"run": run.id, "created": run.created, "case": one.summary.case.key, "op": one.result.op, "kernel": one.result.kernel}
    return {name: one_line(value) for name, value in (facts | dict(device_facts(run))).items() if value}


def _ends(low: float | None, high: float | None) -> dict[str, str]:
    return {"low": number(low, ".6g"), "high": number(high, ".6g")} if number(low, "g") and number(high, "g") else {}


WRITERS: Mapping[str, Callable[[Run], str]] = {
    "github-action-benchmark": github_action_benchmark,
    "bencher": bencher,
    "pytorch-oss": pytorch_oss,
}
"""By the name of the format."""
