"""Comparisons of identical machine code: known to be equal, so what they measure is the comparison's own noise.

Between two versions of a source tree most kernels compile to the same instructions.  They are not judged by their times; their times
judge the run: a regression no larger than what identical code showed in the same comparison is not believed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..schema import AAPair, Estimate, Verdict, VerdictKind
from ..stats.calibration import DURATION_CLASSES_US, Trial, call_class, class_words
from ..stats.describe import describe_change


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """What identical code of one class showed: of calls of such durations, and of one launch or of several."""

    low_us: float
    high_us: float
    """The class holds low <= time < high; infinite for the longest."""
    comparisons: int
    largest: float
    """The largest apparent change in either direction, as a share."""
    beyond: int
    """How many the times alone would have called a regression or an improvement."""
    several_launches: bool = False

    def __str__(self) -> str:
        beyond = f", {self.beyond} beyond the margin" if self.beyond else ""
        compared = f"{self.comparisons} comparison{'' if self.comparisons == 1 else 's'}"
        calls = class_words(self.low_us, self.high_us, self.several_launches)
        return f"{self.largest:.2%} ({calls}: {compared}{beyond})"


class Noise(msgspec.Struct, frozen=True):
    """What identical code showed: absolute log ratios, ascending."""

    sizes: tuple[float, ...]

    @property
    def largest(self) -> float:
        """The largest apparent change, as a share; 0 without any comparison."""
        return math.expm1(self.sizes[-1]) if self.sizes else 0.0


NoiseByClass = Mapping[tuple[bool, int], Noise]
"""By `call_class`."""


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


def verdict_on_unchanged(speed: Verdict, differences: Sequence[str]) -> Verdict:
    """The verdict on code that two runs of different times have in common, `speed` being what their times alone say.

    The kernel is not accused, and not praised.  But code that has become slower says that something else has: until that is found, or
    found to be noise, it is undecided.  Within the margin, across it or faster beyond it, it passes.

    Args:
        differences: what else differs between the two runs, to be named as a suspect.
    """
    if speed.change is None:
        return speed
    if speed.kind is VerdictKind.REGRESSION:
        suspects = "; ".join(differences) or "a clock, the machine or the measurement, since the records name no difference"
        reason = f"identical machine code, so what changed is not the kernel ({speed.reason}); suspect {suspects}"
        return msgspec.structs.replace(speed, kind=VerdictKind.UNDECIDED, reason=reason)
    if speed.kind is VerdictKind.PASS:
        return msgspec.structs.replace(speed, reason=f"identical machine code; {speed.reason}")
    return verdict_on_identical(speed.change)


def noise_by_class(twins: Iterable[AAPair]) -> NoiseByClass:
    """The noise by class of calls (see `call_class`); without the classes that nothing fell in.

    Calls of several launches have classes of their own: between two nightlies, split chains of 50 us and more differed by up to 4.4 % and
    kernels of one launch by up to 0.6 %, which must not hide behind them.
    """
    sizes: dict[tuple[bool, int], list[float]] = defaultdict(list)
    for twin in twins:
        sizes[call_class(twin.time_us, twin.launches)].append(abs(math.log(twin.change.value)))
    return {which: Noise(tuple(sorted(found))) for which, found in sizes.items()}


def noise_near(noise: NoiseByClass, time_us: float, launches: int) -> Noise:
    """That of `noise_by_class` among calls like one that takes `time_us` microseconds and makes so many launches; empty without any."""
    return noise.get(call_class(time_us, launches), Noise(()))


def spread_of(twins: Sequence[AAPair]) -> list[Spread]:
    """What identical code showed, by class of calls: those of one launch first, the shortest first."""
    edges = [0.0, *DURATION_CLASSES_US, math.inf]
    beyond: dict[tuple[bool, int], int] = defaultdict(int)
    for twin in twins:
        beyond[call_class(twin.time_us, twin.launches)] += twin.kind in (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT)
    return [
        Spread(
            low_us=edges[number],
            high_us=edges[number + 1],
            comparisons=len(noise.sizes),
            largest=noise.largest,
            beyond=beyond[several, number],
            several_launches=several,
        )
        for (several, number), noise in sorted(noise_by_class(twins).items())
    ]


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
    reason = f"{verdict.reason}; but identical code of such calls differed by up to {noise.largest:.2%} in this comparison"
    return msgspec.structs.replace(verdict, kind=VerdictKind.UNDECIDED, reason=reason)


def as_trials(twins: Iterable[AAPair]) -> list[Trial]:
    """The same comparisons as trials of known answer, for the machine's false-alarm rate."""
    return [Trial(time_us=twin.time_us, planted=0.0, kind=twin.kind) for twin in twins]
