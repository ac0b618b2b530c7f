"""Comparisons of identical machine code: known to be equal, so what they measure is the comparison's own noise.

Between two versions of a source tree most kernels compile to the same instructions.  They are not judged by their times; their times
judge the run: a regression no larger than what identical code showed in the same run is not believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..schema import Estimate, Verdict, VerdictKind
from .calibration import DURATION_CLASSES_US, Trial
from .rule import describe_change


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of a kernel with itself."""

    case: str
    kernel: str
    time_us: float
    change: Estimate
    kind: VerdictKind
    """What the times alone would have been called."""


class Noise(msgspec.Struct, frozen=True):
    """What identical code showed: absolute log ratios, ascending."""

    sizes: tuple[float, ...]

    @property
    def largest(self) -> float:
        """The largest apparent change, as a share; 0 without any comparison."""
        return math.expm1(self.sizes[-1]) if self.sizes else 0.0

    def rank_p(self, change: float) -> float:
        """How often identical code looked as different as a `change` (new over old): (1 + as large) / (1 + all), 1 without any."""
        size = abs(math.log(change))
        return (1 + sum(one >= size for one in self.sizes)) / (1 + len(self.sizes))


def same_code(new: Mapping[str, str], old: Mapping[str, str]) -> bool | None:
    """Whether two calls launch the same instructions, from the digest of machine code of every function that each launches.

    The digests must cover launch geometry where it is not in the code.  None where either side is unknown (empty, or an empty digest):
    not knowing is not equality.
    """
    if not new or not old or not all((*new.values(), *old.values())):
        return None
    return dict(new) == dict(old)


def verdict_on_identical(change: Estimate | None) -> Verdict:
    """The verdict on identical code: it passes, whatever the times say."""
    measured = f"; the measured {describe_change(change, 2)} is noise" if change is not None else ""
    return Verdict(kind=VerdictKind.PASS, reason=f"identical machine code{measured}", change=change)


def noise_near(twins: Iterable[Twin], time_us: float, limits_us: Sequence[float] = DURATION_CLASSES_US) -> Noise:
    """The noise among kernels of the same class of duration as one of `time_us` microseconds."""
    here = _class(time_us, limits_us)
    return Noise(tuple(sorted(abs(math.log(twin.change.value)) for twin in twins if _class(twin.time_us, limits_us) == here)))


def against_noise(verdict: Verdict, noise: Noise) -> Verdict:
    """A regression or improvement no larger than what identical code showed is undecided; every other verdict stays as it is.

    Raises:
        ValueError: a regression or improvement of speed without a change.
    """
    if verdict.kind not in (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT):
        return verdict
    if verdict.change is None:
        raise ValueError(f"{verdict!r}: only a verdict on speed, with its change, can be held against noise")
    if not noise.sizes or abs(math.log(verdict.change.value)) > noise.sizes[-1]:
        return verdict
    reason = f"{verdict.reason}; but identical code of such durations differed by up to {noise.largest:.2%} in this run"
    return msgspec.structs.replace(verdict, kind=VerdictKind.UNDECIDED, reason=reason)


def as_trials(twins: Iterable[Twin]) -> list[Trial]:
    """The same comparisons as trials of known answer, for the machine's false-alarm rate."""
    return [Trial(time_us=twin.time_us, planted=0.0, kind=twin.kind) for twin in twins]


def _class(time_us: float, limits_us: Sequence[float]) -> int:
    return sum(time_us >= limit for limit in limits_us)
