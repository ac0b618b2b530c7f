"""From samples to figures: one Measurement per kernel, and the summary of the case itself."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import mean

import msgspec

from ...schema import LIMIT_NOISE, CaseSummary, Estimate, Floor, Measurement, Result, Sample, SamplingPlan, Status
from ...stats.paired import ratio_estimate, spans_by_replicate, time_estimate
from ...stats.scatter import standard_error
from ...timing.placement import CONTROL, COPY, STREAM
from ..case_kernels import CaseKernels
from ..workers.protocol import Measured
from ..workers.remarks import label_refused, said_by_arm


class CaseFigures:
    """The figures of one case, from the timings that one or several processes sent."""

    def __init__(self, unit: CaseKernels, measured: Sequence[Measured], plan: SamplingPlan, memory_gb_per_s: float | None = None) -> None:
        """
        Args:
            measured: one per process, its samples carrying the process' number; the first one says what code ran.
            memory_gb_per_s: peak of the device's memory; None if unknown.
        """
        self._memory_gb_per_s = memory_gb_per_s
        self._unit = unit
        self._measured = measured
        self._plan = plan
        self._by_arm: dict[str, list[Sample]] = defaultdict(list)
        for sample in (sample for one in measured for sample in one.samples):
            self._by_arm[sample.arm].append(sample)
        self._spans = spans_by_replicate(sample for one in measured for sample in one.samples)
        self.minimum_bytes = int(unit.facts.known("minimum_bytes"))
        self._stream_us = self._time_us(STREAM)
        self._floor = _middle(one.floor for one in measured)
        self._limit_us = self._stream_us.value if self._floor is None else self._floor.limit_us(self._stream_us.value)
        self._suspicious = said_by_arm([one.suspicious for one in measured])
        self._parts = unit.part_bytes

    def summary(self) -> CaseSummary:
        """The case with its yardsticks and its control."""
        baseline = self._unit.baseline_id
        return msgspec.structs.replace(
            untimed_summary(self._unit),
            copy_us=self._time_us(COPY),
            stream_us=self._stream_us,
            stream_shape=self._measured[0].stream_shape,
            floor=self._floor,
            control_ratio=self._ratio(baseline, CONTROL) if baseline else None,
            not_cold=next((refused for one in self._measured if (refused := label_refused(one, self._plan.trim))), ""),
            repeated_rounds=sum(one.repeated_rounds for one in self._measured),
        )

    def measured(self, result: Result) -> Result:
        """The result of a checked kernel, with its measurement and its machine code."""
        code = self._measured[0].code.get(result.kernel)
        found, suspicious = self.of(result), self.suspicious(result.kernel)
        return msgspec.structs.replace(result, status=Status.MEASURED, measurement=found, code=code, suspicious=suspicious)

    def of(self, result: Result) -> Measurement:
        """The figures of a result's kernel; those of a peer outside the contract compare it with no other."""
        found = self.measurement(result.kernel)
        return msgspec.structs.replace(found, speedup=None, sol=None) if result.outside_contract else found

    def suspicious(self, kernel: str) -> str:
        """Why the kernel's time is not believed; empty if it is."""
        baseline = self._unit.baseline_id
        if found := self._suspicious.get(kernel) or (self._suspicious.get(CONTROL) if kernel == baseline else None):
            return found
        if self._floor is None or kernel in self._parts:
            return ""
        time_us, stream = self._time_us(kernel), self._stream_us
        share = self._limit_us / time_us.high * (stream.low / stream.value)
        if share <= LIMIT_NOISE:
            return ""
        return f"it takes {time_us.value:.2f} us, faster than the limit of {self._limit_us:.2f} us by more than the noise"

    def measurement(self, kernel: str) -> Measurement:
        """The figures of one kernel.  A kernel that covers a part of the op gets no figures that compare it with a whole one, and a
        suspicious time, or one beside a suspicious baseline, gives no speedup."""
        part = self._parts.get(kernel)
        baseline = self._unit.baseline_id
        time_us = self._time_us(kernel)
        believed = not self.suspicious(kernel) and not (baseline and self.suspicious(baseline))
        samples = self._by_arm[kernel]
        gb_per_s = (self.minimum_bytes if part is None else part) / time_us.value / 1e3
        host_us = [one.host_us[kernel] for one in self._measured if kernel in one.host_us]
        extra_memory = [one.extra_memory_bytes[kernel] for one in self._measured if kernel in one.extra_memory_bytes]
        return Measurement(
            time_us=time_us,
            busy_us=mean(sample.busy_ns for sample in samples) / 1e3,
            gap_us=mean(sample.span_ns - sample.busy_ns for sample in samples) / 1e3 if samples[0].kernels else None,
            kernels=samples[0].kernels,
            host_us=mean(host_us) if host_us else None,
            speedup=self._ratio(baseline, kernel) if part is None and baseline not in ("", kernel) and believed else None,
            sol=self._limit_us / time_us.value if part is None else None,
            gb_per_s=gb_per_s,
            peak_share=gb_per_s / self._memory_gb_per_s if self._memory_gb_per_s else None,
            extra_memory_bytes=max(extra_memory, default=None),
            replicates=len(self._spans[kernel]),
            processes=len(set(self._processes(kernel))),
            placement_error=self._placement_error(kernel),
            rounds=self._plan.rounds,
        )

    def _placement_error(self, arm: str) -> float | None:
        """Standard error of the log time over all placements, of several processes; None for one, and for a placement that scatters
        beyond measure."""
        spans = list(self._spans[arm].values())
        if len(set(self._processes(arm))) < 2:
            return None
        error = standard_error(time_estimate(spans, self._plan.trim), len(spans))
        return error if math.isfinite(error) else None

    def _processes(self, arm: str) -> list[int]:
        """The number of the process that measured each replicate of `arm`, in order."""
        return [process for process, _ in self._spans[arm]]

    def _time_us(self, arm: str) -> Estimate:
        found = time_estimate(list(self._spans[arm].values()), self._plan.trim, processes=self._processes(arm))
        return Estimate(found.value / 1e3, found.low / 1e3, found.high / 1e3, found.level)

    def _ratio(self, above: str, below: str) -> Estimate:
        over, under = (list(self._spans[arm].values()) for arm in (above, below))
        return ratio_estimate(over, under, self._plan.trim, processes=self._processes(above))


def _middle(floors: Iterable[Floor | None]) -> Floor | None:
    """The median floor of the processes, the lower one of two; None where one has none."""
    found = list(floors)
    known = sorted((one for one in found if one is not None), key=lambda one: one.time_us)
    return known[(len(known) - 1) // 2] if known and len(known) == len(found) else None


def untimed_summary(unit: CaseKernels) -> CaseSummary:
    """The case without figures, because none of its kernels was timed."""
    return CaseSummary(
        case=unit.case,
        shape=unit.shape,
        minimum_bytes=unit.facts.known("minimum_bytes"),
        bytes_written=unit.facts.known("bytes_written"),
        flops=unit.facts.known("flops"),
        baseline=unit.baseline_id or None,
        dispatched=unit.dispatched,
    )
