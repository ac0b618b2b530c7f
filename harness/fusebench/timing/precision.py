"""When a case is known well enough: replicates are added until every speedup that counts has a narrow interval.

Looks are few and far apart, since each is a chance to stop at a moment when the scatter happens to look small.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from ..schema import Role, Sample, SamplingPlan
from ..stats.paired import half_width, ratio_estimate
from .placement import CONTROL, ArmSpec

GROWTH = 1.5
"""Each look comes after half as many replicates again as the one before: precision goes by the root."""
MOST_REPLICATES = 64
"""The last look: at the 0.7 % by which replicates of 25 us scatter on an H200, 64 know a speedup to 0.18 %."""


class Precision:
    """Follows the fused kernels of one case from replicate to replicate."""

    def __init__(self, specs: Sequence[ArmSpec], plan: SamplingPlan) -> None:
        """`specs`: the case's arms; without a fused kernel among them, every kernel counts."""
        self._plan = plan
        self._baseline = next((str(spec.kernel.id) for spec in specs if spec.name == CONTROL and spec.kernel is not None), "")
        kernels = [spec for spec in specs if spec.kernel is not None and spec.name not in (CONTROL, self._baseline)]
        fused = [spec for spec in kernels if spec.kernel is not None and spec.kernel.role is Role.FUSED]
        self._arms = [spec.name for spec in fused or kernels]
        self._spans: dict[str, list[list[float]]] = defaultdict(list)
        self._next_look = plan.replicates

    @property
    def replicates(self) -> int:
        """The most that can be asked for."""
        return MOST_REPLICATES if self._plan.precision is not None and self._arms else self._plan.replicates

    def idle_arms(self) -> set[str]:
        """None: every speedup is relative to the baseline of its own replicate."""
        return set()

    def add(self, samples: Sequence[Sample]) -> None:
        """Take in one replicate."""
        spans: dict[str, list[float]] = defaultdict(list)
        for sample in samples:
            spans[sample.arm].append(float(sample.span_ns))
        for arm in (self._baseline, *self._arms):
            self._spans[arm].append(spans[arm])

    @property
    def over(self) -> bool:
        """Whether this is a look, and every interval is narrow enough."""
        taken = len(self._spans[self._baseline])
        if self._plan.precision is None or taken < self._next_look:
            return False
        self._next_look = math.ceil(self._next_look * GROWTH)
        ratios = [ratio_estimate(self._spans[self._baseline], self._spans[arm], self._plan.trim) for arm in self._arms]
        return all(half_width(ratio) <= self._plan.precision for ratio in ratios)
