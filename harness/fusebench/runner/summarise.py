"""From samples to figures: one Measurement per kernel, and what the rounds say of the case itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean

import msgspec

from ..schema import CaseSummary, Estimate, Measurement, Result, Role, Sample, SamplingPlan, Status
from ..stats.paired import half_width, ratio_estimate, time_estimate
from ..timing.placement import CONTROL, COPY, STREAM
from .cold_label import label_refused
from .contenders import Contenders
from .messages import Measured

Replicates = Sequence[Sequence[float]]


class CaseFigures:
    """The figures of one case, from the timings that a worker sent."""

    def __init__(self, contenders: Contenders, measured: Measured, plan: SamplingPlan) -> None:
        self._contenders = contenders
        self._measured = measured
        self._plan = plan
        self._by_arm: dict[str, list[Sample]] = defaultdict(list)
        for sample in measured.samples:
            self._by_arm[sample.arm].append(sample)
        self.minimum_bytes = contenders.op.minimum_bytes(contenders.params)
        self._parts = {str(kernel.id): kernel.part for kernel in contenders.runnable if kernel.part is not None}

    def summary(self) -> CaseSummary:
        """The case with its yardsticks and its control."""
        baseline = self._contenders.baseline_id
        return CaseSummary(
            case=self._contenders.case,
            shape=self._contenders.shape,
            minimum_bytes=self.minimum_bytes,
            flops=self._contenders.op.flops(self._contenders.params),
            baseline=baseline or None,
            copy_us=self._time_us(COPY),
            stream_us=self._time_us(STREAM),
            control_ratio=self._ratio(baseline, CONTROL) if baseline else None,
            not_cold=label_refused(self._measured, self._plan.trim),
        )

    def measured(self, result: Result) -> Result:
        """`result` of a kernel that was only checked, with what its measurement says."""
        code = self._measured.code.get(result.kernel)
        return msgspec.structs.replace(result, status=Status.MEASURED, measurement=self.measurement(result.kernel), code=code)

    def measurement(self, kernel: str) -> Measurement:
        """The figures of one kernel; of one that covers a part of the op, without those that compare it with a whole one."""
        part = self._parts.get(kernel)
        baseline = self._contenders.baseline_id
        time_us = self._time_us(kernel)
        samples = self._by_arm[kernel]
        return Measurement(
            time_us=time_us,
            busy_us=mean(sample.busy_ns for sample in samples) / 1e3,
            gap_us=mean(sample.span_ns - sample.busy_ns for sample in samples) / 1e3 if samples[0].kernels else None,
            kernels=samples[0].kernels,
            host_us=self._measured.host_us.get(kernel),
            speedup=self._ratio(baseline, kernel) if part is None and baseline not in ("", kernel) else None,
            sol=min(self._time_us(COPY).value, self._time_us(STREAM).value) / time_us.value if part is None else None,
            gb_per_s=(self.minimum_bytes if part is None else part.minimum_bytes(self._contenders.params)) / time_us.value / 1e3,
            extra_memory_bytes=self._measured.extra_memory_bytes.get(kernel),
            replicates=len(self._spans(kernel)),
            rounds=self._plan.rounds,
        )

    def _spans(self, arm: str) -> Replicates:
        by_replicate: dict[int, list[float]] = defaultdict(list)
        for sample in self._by_arm[arm]:
            by_replicate[sample.replicate].append(float(sample.span_ns))
        return [by_replicate[replicate] for replicate in sorted(by_replicate)]

    def _time_us(self, arm: str) -> Estimate:
        found = time_estimate(self._spans(arm), self._plan.trim)
        return Estimate(found.value / 1e3, found.low / 1e3, found.high / 1e3, found.level)

    def _ratio(self, above: str, below: str) -> Estimate:
        return ratio_estimate(self._spans(above), self._spans(below), self._plan.trim)


def imprecise(results: Sequence[Result], plan: SamplingPlan) -> list[str]:
    """What stayed less well known than the plan asks for, one line per kernel; which kernels count is `timing.precision`'s rule."""
    if plan.precision is None:
        return []
    compared = [result for result in results if result.measurement is not None and result.measurement.speedup is not None]
    texts = []
    for result in [result for result in compared if result.role is Role.FUSED] or compared:
        assert result.measurement is not None
        assert result.measurement.speedup is not None
        known = half_width(result.measurement.speedup)
        if known > plan.precision:
            texts.append(
                f"after {result.measurement.replicates} replicates the speedup of {result.kernel} is known to {known:.2%}, "
                f"not to {plan.precision:.2%}"
            )
    return texts
