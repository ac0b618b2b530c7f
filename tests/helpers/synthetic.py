"""Runs and samples that no device made, with planted changes.  Loaded by path from the conftest files beside the tests."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from fusebench.schema import (
    SCHEMA_VERSION,
    Accuracy,
    CacheState,
    Case,
    CaseSummary,
    Environment,
    Estimate,
    KernelInfo,
    Language,
    Measurement,
    Result,
    Role,
    Run,
    Sample,
    SamplingPlan,
    Status,
)
from fusebench.stats.weighted import suite_summaries
from fusebench.store.record_files import encode_record
from fusebench.store.run_folder import LAST_VERSION_IN_JSON, TABLE_FILES, read_run

OP = "qknorm_rope"
CASES = ("flux_1024", "qwen_image_1024", "qwen_image_partial", "zimage_1024", "batch2_medium")
BASELINE = f"{OP}/split_triton@1"
KERNELS: dict[str, tuple[Role, Language, float, int]] = {
    f"{OP}/split_torch@1": (Role.SPLIT, Language.TORCH, 9.0, 11),
    BASELINE: (Role.SPLIT, Language.TRITON, 2.05, 2),
    f"{OP}/compiled@1": (Role.COMPILED, Language.TORCH, 1.6, 2),
    f"{OP}/fused_triton@1": (Role.FUSED, Language.TRITON, 1.25, 1),
    f"{OP}/fused_triton@2": (Role.FUSED, Language.TRITON, 1.08, 1),
    f"{OP}/fused_cuda@1": (Role.FUSED, Language.CUDA, 1.11, 1),
}
"""Role, language, time as a multiple of the copy's, launches."""

FUSED = f"{OP}/fused_triton@2"
Where = tuple[str, str]
"""(case, kernel)"""


def near(value: float, half: float) -> Estimate:
    """An estimate whose interval reaches `half` to either side on the logarithm."""
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def make_run(
    *,
    run_id: str = "r1",
    cases: Sequence[str] = CASES,
    kernels: Sequence[str] = tuple(KERNELS),
    suite: str = "qknorm_rope",
    slow: Mapping[Where, float] | None = None,
    errors: Mapping[Where, float] | None = None,
    status: Mapping[Where, tuple[Status, str]] | None = None,
    half: float = 0.004,
    noise: random.Random | None = None,
    copy: bool = True,
    baseline: str = BASELINE,
    params: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Run:
    """A run as the H200 would give it.

    `slow` multiplies a kernel's time, `errors` its error; `status` takes a kernel's measurement away.  `half` is the true log
    half-width of every interval; with `noise` the points scatter accordingly (half / 2.2 being one standard deviation).
    """
    slow, errors, status = slow or {}, errors or {}, status or {}

    def scattered(value: float) -> float:
        return value * math.exp(noise.gauss(0.0, half / 2.2)) if noise is not None else value

    summaries, results = [], []
    for index, name in enumerate(cases):
        copy_us = 26.0 + 2.0 * index
        case = Case(suite=suite, name=name, op=OP, params={"tokens": 4096, "heads": 24 + index, **(params or {})}, weight=1.0 + index)
        shape = f"4096x{24 + index}x128 bf16"
        times = {kernel: copy_us * KERNELS[kernel][2] * slow.get((name, kernel), 1.0) for kernel in KERNELS}
        summaries.append(
            CaseSummary(
                case=case,
                shape=shape,
                minimum_bytes=100_663_296,
                flops=10**8,
                baseline=baseline,
                copy_us=near(scattered(copy_us), half) if copy else None,
                stream_us=near(copy_us + 2.0, half) if copy else None,
                control_ratio=near(1.001, half),
            )
        )
        for kernel in kernels:
            role, _, _, launches = KERNELS[kernel]
            state, reason = status.get((name, kernel), (Status.MEASURED, ""))
            timing = Measurement(
                time_us=near(scattered(times[kernel]), half),
                busy_us=times[kernel] * 0.98,
                kernels=launches,
                host_us=6.0 * launches,
                speedup=None if kernel == baseline else near(scattered(times[baseline] / times[kernel]), half),
                sol=copy_us / times[kernel] if copy else None,
                gb_per_s=100.7e3 / times[kernel],
                extra_memory_bytes=50_331_648 if role is Role.SPLIT else 0,
                replicates=12,
                rounds=40,
            )
            results.append(
                Result(
                    case=name,
                    suite=suite,
                    op=OP,
                    kernel=kernel,
                    role=role,
                    status=state,
                    shape=shape,
                    reason=reason,
                    accuracy=_accuracy(errors.get((name, kernel), 1.0)) if state in (Status.MEASURED, Status.CHECKED) else None,
                    measurement=timing if state is Status.MEASURED else None,
                )
            )
    facts: dict[str, Any] = {
        "device": "cuda",
        "device_name": "NVIDIA H200",
        "device_uuid": "GPU-00000000",
        "driver": "580.159",
        "cuda": "13.0",
        "python": "3.12.3",
        "torch": "2.11.0",
        "triton": "3.6.0",
        "platform": "Linux-x86_64",
        "cpu": "AMD EPYC",
        "cpu_count": 16,
        "fusebench": "0.1.0",
        "git_commit": "0123456789abcdef",
        **(environment or {}),
    }
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "id": run_id,
        "created": "2026-07-27T07:25:47Z",
        "command": "fusebench run --suite qknorm_rope",
        "timer": "cupti",
        "plan": SamplingPlan(replicates=12, rounds=40, cache=CacheState.COLD, trim=0.1),
        "environment": Environment(**facts),
        "suites": suite_summaries(summaries, results),
        "cases": summaries,
        "kernels": [_info(kernel) for kernel in kernels],
        "results": results,
        **fields,
    }
    return Run(**record)


def with_code(run: Run, changed: Sequence[str] = (), suffix: str = "new") -> Run:
    """`run` with the digest of every kernel's machine code, which no case and no run changes but for the kernels `changed`.

    torch.compile's is not known.
    """

    def code(result: Result) -> str | None:
        if result.role is Role.COMPILED:
            return None
        return f"{result.kernel} {suffix}" if result.kernel in changed else result.kernel

    return msgspec.structs.replace(run, results=[msgspec.structs.replace(result, code=code(result)) for result in run.results])


def make_history(
    count: int,
    steps: Mapping[Where, Sequence[tuple[int, float]]] | None = None,
    *,
    scatter: float = 0.004,
    seed: int = 1,
    each: Mapping[int, Mapping[str, Any]] | None = None,
    **fields: Any,
) -> list[Run]:
    """Nightly runs `n000`, `n001` … of July 2026 on, every time scattered by `scatter` on the logarithm and one in thirty disturbed by 5 %
    (none without scatter).

    `steps` says from which night on a kernel's time is multiplied by how much, `each` what is particular to a night's run; two nights
    share a commit.
    """
    generator = random.Random(seed)
    cases, kernels = fields.get("cases", CASES), fields.get("kernels", tuple(KERNELS))
    start = datetime(2026, 7, 1, 3, tzinfo=UTC)
    runs = []
    for night in range(count):
        slow = {}
        for where in ((case, kernel) for case in cases for kernel in kernels):
            slow[where] = math.exp(generator.gauss(0.0, scatter)) * (1.05 if scatter and generator.random() < 1 / 30 else 1.0)
            slow[where] *= math.prod(factor for first, factor in (steps or {}).get(where, ()) if night >= first)
        particular = dict((each or {}).get(night, {}))
        environment = {"git_commit": f"{night // 2:040x}"[::-1], **fields.get("environment", {}), **particular.pop("environment", {})}
        own = {"run_id": f"n{night:03d}", "created": (start + timedelta(days=night)).isoformat(), "slow": slow}
        runs.append(make_run(**{**fields, **own, **particular, "environment": environment}))
    return runs


def change_results(run: Run, **fields: Any) -> Run:
    """`run` with these fields set on every result."""
    return msgspec.structs.replace(run, results=[msgspec.structs.replace(result, **fields) for result in run.results])


def make_samples(run: Run, replicates: int = 3, rounds: int = 4, seed: int = 1) -> list[Sample]:
    """Samples for every measured kernel of `run`, scattered by 1 % around its time."""
    generator = random.Random(seed)
    return [
        Sample(
            case=result.case_key,
            arm=result.kernel,
            replicate=replicate,
            round=round_,
            position=position,
            span_ns=(span := round(result.measurement.time_us.value * 1e3 * math.exp(generator.gauss(0, 0.01)))),
            busy_ns=span - 10,
            kernels=result.measurement.kernels,
        )
        for replicate in range(replicates)
        for round_ in range(rounds)
        for position, result in enumerate(run.results)
        if result.measurement is not None
    ]


def as_version_2(folder: Path) -> Path:
    """Rewrite the record in `folder` as an older fusebench wrote it, cases and results in `run.json`, and return that file."""
    file = folder / "run.json"
    file.write_bytes(encode_record(msgspec.structs.replace(read_run(folder), schema_version=LAST_VERSION_IN_JSON)))
    for name in TABLE_FILES:
        (folder / name).unlink(missing_ok=True)
    return file


def _accuracy(factor: float) -> Accuracy:
    return Accuracy(
        passed=True,
        contract="close(1.5x split)",
        rms_error=1.1e-3 * factor,
        max_error=1.5e-2 * factor,
        mean_error=1e-7,
        split_rms_error=1.2e-3,
        split_max_error=1.6e-2,
        equal_to_split=0.93,
        within_loose_tolerance=True,
        draws=3,
        elements=25_165_824,
        seed=7,
    )


def _info(kernel: str) -> KernelInfo:
    role, language, _, _ = KERNELS[kernel]
    op, _, rest = kernel.partition("/")
    name, _, version = rest.partition("@")
    return KernelInfo(
        id=kernel, op=op, name=name, version=int(version), role=role, language=language, contract="close(1.5x split)", file=f"{name}.py"
    )
