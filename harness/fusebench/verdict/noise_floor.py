"""The noise floor: the apparent changes of A/A pairs (comparisons of identical machine code) in the same comparison.

The answer of an A/A pair is known, so its times show the comparison's own noise. A change of speed must be larger to be believed.
`ab` takes its A/A pairs from kernels whose code is unchanged and from control arms; `run` and `gate` take them from identical machine code
in two records.  Calls of several launches have classes of their own: between two nightlies, split chains of 50 us and more differed by up
to 4.4 % and kernels of one launch by up to 0.6 %, which must not hide behind them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..schema import CHANGES, AAPair, Estimate, Run, Verdict, VerdictKind
from ..stats.scatter import excess
from .accuracy_change import less_accurate
from .baseline.judgement import Judgement, results_by_place
from .margins.call_classes import DURATION_CLASSES_US, call_class, class_words, launches_of

SPREAD_WORDS = "identical machine code differed by up to"
"""How the sentence begins that a run keeps about the gate against its baseline."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The noise of the A/A pairs of one class of calls."""

    low_us: float
    high_us: float
    """The class holds low <= time < high; infinite for the longest."""
    comparisons: int
    largest: float
    """The largest apparent change in either direction, as a share."""
    beyond: int
    """Number of pairs that their times alone would have called a regression or an improvement."""
    several_launches: bool = False
    widening: float = 1.0
    """Factor by which the intervals of the class were widened, because its identical code scatters more than the stored runs did."""

    def __str__(self) -> str:
        beyond = f", {self.beyond} beyond the margin" if self.beyond else ""
        compared = f"{self.comparisons} comparison{'' if self.comparisons == 1 else 's'}"
        calls = class_words(self.low_us, self.high_us, self.several_launches)
        wider = f", intervals widened {self.widening:.1f} times" if self.widening > 1.0 else ""
        return f"{100 * self.largest:.2f} % ({calls}: {compared}{beyond}{wider})"


class Noise(msgspec.Struct, frozen=True):
    """Sizes of the apparent changes of A/A pairs: absolute log ratios, ascending."""

    sizes: tuple[float, ...]

    @property
    def largest(self) -> float:
        """The largest apparent change, as a share; 0 without any comparison."""
        return math.expm1(self.sizes[-1]) if self.sizes else 0.0


NO_NOISE = Noise(())

NoiseByClass = Mapping[tuple[bool, int], Noise]
"""By `call_class`."""


def noise_by_class(aa_pairs: Iterable[AAPair]) -> NoiseByClass:
    """The noise by class of calls (`call_class`); classes without any pair are left out."""
    sizes: dict[tuple[bool, int], list[float]] = defaultdict(list)
    for pair in aa_pairs:
        sizes[call_class(pair.time_us, pair.launches)].append(abs(math.log(pair.change.value)))
    return {which: Noise(tuple(sorted(found))) for which, found in sizes.items()}


def noise_near(noise: NoiseByClass, time_us: float, launches: int) -> Noise:
    """The noise of the class of calls of `time_us` microseconds and `launches` launches; empty without any pair."""
    return noise.get(call_class(time_us, launches), Noise(()))


def spread_of(aa_pairs: Sequence[AAPair], widening: Mapping[tuple[bool, int], float] | None = None) -> list[Spread]:
    """The noise of A/A pairs by class of calls: calls of one launch first, the shortest first.

    `widening` is of `widening_by_class`.
    """
    edges = [0.0, *DURATION_CLASSES_US, math.inf]
    beyond: dict[tuple[bool, int], int] = defaultdict(int)
    for pair in aa_pairs:
        beyond[call_class(pair.time_us, pair.launches)] += pair.kind in CHANGES
    return [
        Spread(
            low_us=edges[number],
            high_us=edges[number + 1],
            comparisons=len(noise.sizes),
            largest=noise.largest,
            beyond=beyond[several, number],
            several_launches=several,
            widening=(widening or {}).get((several, number), 1.0),
        )
        for (several, number), noise in sorted(noise_by_class(aa_pairs).items())
    ]


def above_floor(verdict: Verdict, noise: Noise) -> Verdict:
    """`verdict`, undecided where it claims a change no larger than `noise`; every other verdict stays as it is.

    Raises:
        ValueError: a regression or improvement of speed without a change.
    """
    if verdict.kind not in CHANGES:
        return verdict
    if verdict.change is None:
        raise ValueError(f"{verdict!r}: only a verdict on speed, with its change, can be held against noise")
    if not noise.sizes or abs(math.log(verdict.change.value)) > noise.sizes[-1]:
        return verdict
    reason = f"{verdict.reason}; but identical code of such calls differed by up to {100 * noise.largest:.2f} % in this comparison"
    return msgspec.structs.replace(verdict, kind=VerdictKind.UNDECIDED, reason=reason)


def aa_pairs_of(judgements: Iterable[Judgement], run: Run) -> list[AAPair]:
    """The comparisons of identical code, in their order, with the durations of `run`."""
    results = results_by_place(run)
    found = []
    for one in judgements:
        if one.kind_by_times is None or one.verdict.change is None:
            continue
        timing = results[one.suite, one.case, one.kernel].measurement
        assert timing is not None, "what has a change was timed"
        pair = AAPair(
            case=f"{one.suite}:{one.case}",
            kernel=one.kernel,
            time_us=timing.time_us.value,
            change=one.verdict.change,
            kind=one.kind_by_times,
            launches=timing.kernels,
        )
        found.append(pair)
    return found


def widening_by_class(judgements: Iterable[Judgement], run: Run) -> dict[tuple[bool, int], float]:
    """The factor by which the changes of identical code exceed their intervals, by class of calls; classes that do not exceed are left out.

    The intervals are from the scatter between stored runs.  A comparison may be noisier than those were, and its identical code shows it.
    """
    results = results_by_place(run)
    changes: dict[tuple[bool, int], list[Estimate]] = defaultdict(list)
    for one in judgements:
        timing = results[one.suite, one.case, one.kernel].measurement if one.kind_by_times is not None else None
        if timing is not None and one.reference is not None and one.verdict.change is not None:
            changes[call_class(timing.time_us.value, timing.kernels)].append(one.verdict.change)
    return {which: factor for which, found in changes.items() if (factor := excess(found)) > 1.0}


def above_noise_floor(judgements: Iterable[Judgement], aa_pairs: Sequence[AAPair], run: Run, baseline: Run) -> list[Judgement]:
    """The judgements, in their order; changes of speed that are not above the noise floor of `aa_pairs` become undecided.

    A loss of accuracy is not a matter of noise and stays.  So does a change whose interval is from the scatter between runs: it holds the
    noise of identical code already (`widening_by_class`).
    """
    noise = noise_by_class(aa_pairs)
    new, old = results_by_place(run), results_by_place(baseline)
    held = []
    for one in judgements:
        key = (one.suite, one.case, one.kernel)
        claimed = one.verdict.kind in CHANGES and one.verdict.change is not None
        if not claimed or one.reference is not None or less_accurate(new[key], old[key]):
            held.append(one)
            continue
        now, then = new[key].measurement, old[key].measurement
        assert now is not None, "what has a change was timed"
        assert then is not None, "what has a change was timed"
        near = noise_near(noise, now.time_us.value, launches_of(now, then))
        held.append(msgspec.structs.replace(one, verdict=above_floor(one.verdict, near)))
    return held


def noise_line(spreads: Sequence[Spread], judgements: Iterable[Judgement]) -> str:
    """The noise of identical machine code, in one line."""
    if not spreads:
        known = any(one.same_code is False for one in judgements)
        missing = "no kernel's machine code is the baseline's" if known else "what machine code ran is not in both records"
        return f"identical machine code: {missing}, so its noise is not known"
    return f"{SPREAD_WORDS} {', '.join(map(str, spreads))}"
