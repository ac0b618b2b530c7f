"""Differences that keep two runs from being compared: as a whole, by raw times, or on one case.

Every difference is told as `what: old -> new`; no difference means that the two may be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..schema import COMPARABLE_VERSIONS, Case, Environment, Run


class Recorded(Protocol):
    """A record of anything that was measured somewhere: timings, or counters."""

    @property
    def environment(self) -> Environment: ...


def record_differences(run: Run, baseline: Run) -> list[str]:
    """Differences that rule out any comparison of the two runs' times."""
    versions = (baseline.schema_version, run.schema_version)
    pairs = (
        ("schema version", *(("same", "same") if COMPARABLE_VERSIONS.issuperset(versions) else versions)),
        ("device", baseline.environment.device_name, run.environment.device_name),
        ("timer", baseline.timer, run.timer),
        ("cache state", baseline.plan.cache, run.plan.cache),
        # More threads speed a kernel and its yardsticks up by different factors, so that relative times differ too.
        ("CPU process", *(record.environment.cpu_process or "unknown" for record in (baseline, run))),
    )
    return [f"{what}: {old} -> {new}" for what, old, new in pairs if old != new]


def fingerprint_differences(run: Recorded, baseline: Recorded) -> list[str]:
    """Differences that rule out comparing raw times, besides `record_differences`.

    The Python version and the processor on a CPU only: a GPU's time does not depend on them, nor on which board of the model it is.
    """
    return [_told(name, old, new) for name, old, new in _fingerprints(run, baseline) if old != new]


def toolchain_changes(run: Recorded, baseline: Recorded) -> list[str]:
    """The `fingerprint_differences` that both records know; a value that one record lacks may have been the same."""
    return [_told(name, old, new) for name, old, new in _fingerprints(run, baseline) if old != new and old and new]


def board_differences(run: Recorded, baseline: Recorded) -> list[str]:
    """The two boards, where the runs were made on different boards of the model: their clocks and memory may differ in speed."""
    old, new = baseline.environment.device_uuid, run.environment.device_uuid
    return [f"board: {old or 'unknown'} -> {new or 'unknown'}"] if old != new else []


def harness_differences(run: Recorded, baseline: Recorded) -> list[str]:
    """Whether two versions of fusebench measured."""
    old, new = baseline.environment.fusebench, run.environment.fusebench
    return [f"fusebench: {old or 'unknown'} -> {new or 'unknown'}"] if old != new else []


def case_differences(case: Case, baseline: Case) -> list[str]:
    """Differences in op and parameters of a case that kept its name."""
    if case.op == baseline.op and case.params == baseline.params:
        return []
    pairs = {"op": (baseline.op, case.op)}
    for name in sorted(case.params.keys() | baseline.params.keys()):
        pairs[f"parameter {name}"] = (baseline.params.get(name, "absent"), case.params.get(name, "absent"))
    return [f"{what}: {old} -> {new}" for what, (old, new) in pairs.items() if old != new]


def _fingerprints(run: Recorded, baseline: Recorded) -> Iterator[tuple[str, str | int | None, str | int | None]]:
    """Name, the baseline's value and the run's value of everything compared."""
    names = ["driver", "cuda", "torch", "triton", "ptxas", "ptxas_blackwell"]
    if run.environment.device == "cpu":
        names += ["python", "cpu", "cpu_count"]
    return ((name, getattr(baseline.environment, name), getattr(run.environment, name)) for name in names)


def _told(name: str, old: str | int | None, new: str | int | None) -> str:
    return f"{name}: {old or 'unknown'} -> {new or 'unknown'}"
