"""What every export holds: one series per kernel and case, with a name that stays the same from run to run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ...errors import RunRecordError
from ...schema import CaseSummary, Estimate, KernelInfo, Measurement, Result, Run, Status
from ..escape import json_document, one_line
from ..wording import bounded, error_over_split


class Exported(msgspec.Struct, frozen=True):
    """One measured kernel on one case."""

    name: str
    """`qknorm_rope/fused_triton@2[qknorm_rope:flux_1024]`: unique within a run."""
    result: Result
    timing: Measurement
    summary: CaseSummary
    kernel: KernelInfo | None
    """None in a record that lists no kernels."""

    @property
    def low_us(self) -> float | None:
        """Lower end of the interval of the time in microseconds; None if there is no interval."""
        return self.timing.time_us.low if bounded(self.timing.time_us) else None

    @property
    def high_us(self) -> float | None:
        """Upper end of the same."""
        return self.timing.time_us.high if bounded(self.timing.time_us) else None

    def facts(self) -> dict[str, str]:
        """What a reader wants to know beside the time, as short texts."""
        timing = self.timing
        found = {"shape": self.result.shape, "role": str(self.result.role), "GB/s": number(timing.gb_per_s, ".0f")}
        if timing.speedup is not None:
            found["speedup"] = f"{number(timing.speedup.value, '.3f')}x{_interval(timing.speedup)}"
        if timing.sol is not None:
            found["share of limit"] = number(timing.sol, ".1%")
        if (error := error_over_split(self.result.accuracy)) is not None:
            found["error over the split chain's"] = number(error, ".2f")
        if self.result.covers:
            found["covers"] = self.result.covers
        return {name: one_line(value) for name, value in found.items() if value}


def exported(run: Run) -> list[Exported]:
    """The series of `run`, in its own order.

    A time that contradicts its label `cold`, or is suspicious, is left out: it may be compared with none.

    Raises:
        RunRecordError: no kernel was measured, so that an export would be an empty file.
    """
    cases = {summary.case.key: summary for summary in run.cases}
    kernels = {kernel.id: kernel for kernel in run.kernels}
    found = []
    for result in run.results:
        summary, timing = cases.get(result.case_key), result.measurement
        if result.status is not Status.MEASURED or timing is None or summary is None or summary.not_cold or result.suspicious:
            continue
        if math.isfinite(timing.time_us.value) and timing.time_us.value > 0:
            name = one_line(f"{result.kernel}[{result.case_key}]")
            found.append(Exported(name, result, timing, summary, kernels.get(result.kernel)))
    if not found:
        raise RunRecordError(f"run {run.id} holds no measured time that may be compared: there is nothing to export")
    return found


def number(value: float | None, form: str) -> str:
    """`value` in the format `form`; empty if it is no finite number."""
    return format(value, form) if value is not None and math.isfinite(value) else ""


def document(value: Any) -> str:
    """`value` as indented JSON with a newline at its end.

    Raises:
        ValueError: it holds an infinity or a NaN, which JSON cannot.
    """
    return json_document(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)) + "\n"


def device_facts(run: Run) -> Mapping[str, str]:
    """What two runs must share for their times to be compared."""
    facts = run.environment
    return {
        "device": one_line(facts.device_name),
        "driver": one_line(facts.driver),
        "torch": one_line(facts.torch),
        "triton": one_line(facts.triton),
        "timer": one_line(run.timer),
        "cache": str(run.plan.cache),
    }


def _interval(estimate: Estimate) -> str:
    return f" [{estimate.low:.3f}, {estimate.high:.3f}]" if bounded(estimate) else ""
