"""Whether a kernel has become less accurate: than in the baseline run, or than in the base revision of `ab`.

The contract compares a kernel with the split chain and allows it 1.5 x the error; a kernel could lose a third of its accuracy and still
keep it. So growth has its own, narrower margin, and a kernel that became faster by losing accuracy has not improved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ..schema import Accuracy, OutputError, Result, Verdict, VerdictKind
from ..stats.ratios import least_ratio

RMS_MARGIN = 0.10
"""RMS error may grow by 10 %: many denoising steps amplify more."""

MAX_MARGIN = 0.50
"""Maximum error may grow by 50 % on the same draws.  A fault of few elements (an edge, one channel) hardly moves the RMS error of
millions. Between different draws the maximum carries no information: it is one element, and outlier channels move it by factors."""

DRAW_SCATTER = 10.0
"""The RMS error of n elements scatters between draws by sqrt((kurtosis - 1) / (4 n)); with outlier channels the errors' kurtosis
reaches some tens, so three standard deviations are 10 / sqrt(n).  It adds to the margin and matters below 1e5 elements only."""

FEW_DRAWS = 0.25
"""Relative standard error from which few of a check's eleven draws make most of an RMS error.  The jackknife gives sqrt((n - 1) / n) where
one makes all of it; two in a hundred checks of one float16 norm on six rows had 0.95, and an error 168 times the usual one, in the split
chain too.  With a limit of 0.5, a chain whose errors scattered by 0.31 on an H100 and by 0.11 on an H200 was accused of its own error."""

COMPARISONS = 10_000
FALSE_ACCUSATIONS = 0.01
"""Chance of any false accusation by the draws' scatter among so many comparisons of outputs: two nightlies of all suites make some 2400.
Each is tested at their quotient (Bonferroni), 4.75 standard errors.  A few numbers of a draw, such as the one scale of all rows, can make
every rounding error of it several times as large.  With two standard errors, which an earlier rule allowed, 10 000 comparisons of a torch
chain with itself on tiny cases held five accusations: each spread was right, and 3.1 of them are exceeded once in a thousand."""

PLAIN_SCATTER = 400.0
"""The scatter of DRAW_SCATTER for plain errors, which older records hold for cases of few rows: they follow a few outlier channels.  In
2672 comparisons between stored runs, unchanged kernels grew by up to 55 % at 6e5 elements and 31 % at 1.3e6: with RMS_MARGIN, 347 and 235
would just allow that.  A loss of 20 % still shows at 2e7 elements."""

MOST_PLAIN_SCATTER = 0.5
"""The most that this scatter adds: the growth of 55 % is the largest, and at 2e5 and 4e5 elements none exceeded 23 %."""


_NEXT_STEP = "repeat `fusebench check` on it; if the kernel is right, promote a new baseline, with this as --reason"


def accuracy_growth(new: Accuracy, old: Accuracy) -> float:
    """Ratio of the RMS errors of `new` and `old`, for the output with the largest growth.

    Errors are in units of each channel's RMS, or of each value for few rows (`OutputError`). If few numbers determine the rounding of exact
    results (one shift for all rows, one position for all tokens), the rounding error varies between draws, by 16 % between two nightlies,
    and the kernel's error with it. So the old error is converted to the new draws (`_on_other_draws`). Errors are not divided by the split
    chain's, so that a loss that both share is found too; such a loss must exceed what the draws of one check differ by (`_beyond_draws`).
    In float32 the error depends on a few sums, and errors within the contract's allowance count as none.

    Records without the rounding error are compared relative to the split chain's errors: in 4380 comparisons of an output between two of
    three nightlies, all of unchanged kernels, the ratio moved by 6 % at most. The oldest records hold one output only, on which the kernel
    compared worst, and may hold plain errors only, which follow the few outlier channels (18 % between two runs on six rows).

    1 if both are exact; infinite if only the old one was.
    """
    return _worst_output(new, old)[0]


def _worst_output(new: Accuracy, old: Accuracy) -> tuple[float, str, bool]:
    """The largest growth of an output's error, its name in words, and whether plain errors were compared."""
    before = {(one.name, one.unit): one for one in old.outputs}
    both = [(one, earlier) for one in new.outputs if (earlier := before.get((one.name, one.unit))) is not None]
    if both:
        return (*max(_growth_of_output(one, earlier) for one, earlier in both), False)
    what = "rms error relative to the split chain's"
    channels = [(one.channel_rms_error, one.split_channel_rms_error) for one in (new, old)]
    outputs = (*new.outputs, *old.outputs)
    if all(own > 0 for own, _ in channels):
        return _certain_beside(_relative_growth(*channels), outputs), what, False
    return _certain_beside(_relative_growth(*((one.rms_error, one.split_rms_error) for one in (new, old))), outputs), what, True


def _certain_beside(growth: float, outputs: Sequence[OutputError]) -> float:
    """A `growth` relative to the split chain's errors, as far as the largest scatter of that ratio among `outputs` makes it certain.

    All of it where no output's scatter is known: between records that are both older.
    """
    known = [one.ratio_spread for one in outputs if one.ratio_spread is not None]
    return _certain(growth, max(known), max(known)) if known else growth


def _growth_of_output(new: OutputError, old: OutputError) -> tuple[float, str]:
    """The growth of one output's error, and its name in words."""
    own, earlier = (max(one.rms, one.floor) for one in (new, old))
    what = f"rms error of output {new.name!r}"
    if new.rounding is None or old.rounding is None:
        split = [max(one.split_rms, one.floor) for one in (new, old)]
        return _certain_beside(_relative_growth((own, split[0]), (earlier, split[1])), (new, old)), f"{what} relative to the split chain's"
    expected = max(_on_other_draws(earlier, old.rounding, new.rounding), new.floor)
    growth = _beyond_draws(_growth(own, expected), (own, new), (earlier, old))
    return growth, what if new.rounding == old.rounding else f"{what}, allowing for how these draws round,"


def _beyond_draws(growth: float, new: tuple[float, OutputError], old: tuple[float, OutputError]) -> float:
    """The part of `growth` that other draws do not explain: all of it on the same draws, which round alike, and where no `spread` is known.

    Draws on which every rounding error is large raise the split chain's error too.  So the growth counts as far as it also shows beside the
    split chain's errors, or as far as the scatter between the draws of the two checks makes it certain (`_certain`).  Where few draws make
    most of an error, the growth beside the split chain is that of few draws too, and must be as certain.  Else its `ratio_spread` is by
    design, because draws differ in magnitude, and alike in both checks.  What one check's exceeds the other's by is chance: that much of
    scatter must be allowed for.

    An older record has no spread.  It drew as many calls of the same case, so its errors are taken to scatter as the other's do.

    The draws of a check differ in magnitude by design, so their scatter overstates the standard error of what they share (collapsed
    strata: W. G. Cochran, Sampling Techniques, 5A.12).  In 15 000 comparisons between four nightlies of an H200, the growth's logarithm
    had a standard deviation of 0.5 such errors.

    Args:
        new, old: the kernel's error, and the record of the output.
    """
    (own, now), (earlier, then) = new, old
    known = [one.spread for one in (now, then) if one.spread is not None]
    if now.rounding == then.rounding or not known:
        return growth
    spreads = [known[0] if one.spread is None else one.spread for one in (now, then)]
    beside = _relative_growth((own, max(now.split_rms, now.floor)), (earlier, max(then.split_rms, then.floor)))
    ratio_spreads = [one.ratio_spread or 0.0 for one in (now, then)]
    by_chance = ratio_spreads if max(spreads) > FEW_DRAWS else [max(ratio_spreads) - min(ratio_spreads), 0.0]
    beside = _certain(beside, *by_chance)
    return max(min(growth, beside), _certain(growth, *spreads))


def _certain(growth: float, new: float, old: float) -> float:
    """The least true growth of an RMS error that a `growth` between draws allows; 0 if they allow any.

    Means of squares are compared, whose standard errors are twice those of their roots.

    Args:
        new, old: the standard error of each RMS, as a share of it.
    """
    return math.sqrt(least_ratio(growth**2, 2.0 * new, 2.0 * old, FALSE_ACCUSATIONS / COMPARISONS))


def _on_other_draws(error: float, rounding: float, there: float) -> float:
    """The RMS `error` as it would be on draws whose exact results round with an error of `there` instead of `rounding`.

    The kernel's own error is independent of the rounding of its result, so their squares add up. Scaling by `rounding` alone would be wrong
    when the kernel adds most of the error, and arbitrary when almost no result needs rounding.
    """
    share = min(1.0, rounding / error) if error > 0 else 1.0
    return math.hypot(error * math.sqrt(1.0 - share**2), there)


def accuracy_loss(new: Accuracy, old: Accuracy, *, paired: bool = False) -> str:
    """The error that has grown beyond its margin, in words; empty if none has.

    `paired`: both were checked on the same inputs, as head and base are in `ab`.  With a stored baseline this is never certain: an equal
    seed draws other inputs under another torch.
    """
    elements = max(1, min(new.elements, old.elements))
    growth, what, plain = _worst_output(new, old)
    allowed = 1.0 + RMS_MARGIN + (0.0 if paired else _draw_scatter(elements, plain))
    if growth > allowed:
        return f"accuracy: {what} is {growth:.2f} x the baseline's; {allowed:.2f} x is allowed"
    growth = _relative_growth((new.max_error, new.split_max_error), (old.max_error, old.split_max_error))
    if paired and growth > 1.0 + MAX_MARGIN:
        return (
            f"accuracy: max error on the same inputs, relative to the split chain's, is {growth:.2f} x the baseline's; "
            f"{1.0 + MAX_MARGIN:.2f} x is allowed"
        )
    return ""


def less_accurate(new: Result, old: Result) -> bool:
    """Whether the error has grown beyond its margin, independent of the times and of the code."""
    return new.accuracy is not None and old.accuracy is not None and accuracy_loss(new.accuracy, old.accuracy) != ""


def _draw_scatter(elements: int, plain: bool) -> float:
    """Allowed growth of an error between different draws, as a share."""
    usual = DRAW_SCATTER / math.sqrt(elements)
    return max(usual, min(PLAIN_SCATTER / math.sqrt(elements), MOST_PLAIN_SCATTER)) if plain else usual


def with_accuracy(speed: Verdict, new: Accuracy | None, old: Accuracy | None, *, paired: bool = False, same_code: bool = False) -> Verdict:
    """The verdict on speed and accuracy together: a loss of accuracy is a regression at any speed, but undecided for the same code.

    An improvement without an accuracy check stays undecided if the baseline was checked: the speed may have cost accuracy.

    Args:
        paired: as in `accuracy_loss`.
        same_code: whether the digests say that both records ran the same machine code, on inputs of their own.  Then its draws differ, or
            the values of tensors that its Python code passes.  The second can be a fault, so the loss does not pass either.
    """
    if new is None or old is None:
        if old is not None and speed.kind is VerdictKind.IMPROVEMENT:
            reason = f"{speed.reason}; its accuracy, known in the baseline, was not checked: check it before it counts as faster"
            return msgspec.structs.replace(speed, kind=VerdictKind.UNDECIDED, reason=reason)
        return speed
    loss = accuracy_loss(new, old, paired=paired)
    if not loss:
        return speed
    if same_code:
        reason = f"identical machine code, so the drawn inputs differ, or the values that its Python code passes ({loss}); {_NEXT_STEP}"
        return msgspec.structs.replace(speed, kind=VerdictKind.UNDECIDED, reason=f"{reason}; speed: {speed.reason}")
    bought = "; faster by being less accurate" if speed.kind is VerdictKind.IMPROVEMENT else ""
    return msgspec.structs.replace(speed, kind=VerdictKind.REGRESSION, reason=f"{loss}{bought}; speed: {speed.reason}")


def _relative_growth(new: tuple[float, float], old: tuple[float, float]) -> float:
    """Growth of an error, relative to the split chain's if known. `new` and `old`: the kernel's own error, the split chain's.

    A record keeps the figures of the output and input magnitude on which the kernel compared worst. These may differ between the records,
    and errors grow with the magnitude (1e-3 to 1e3), so absolute errors of two records may differ as much without a loss of accuracy.
    """
    relative = new[1] > 0 and old[1] > 0
    above, below = (own / split if relative else own for own, split in (new, old))
    return _growth(above, below)


def _growth(above: float, below: float) -> float:
    if below > 0:
        return above / below
    return math.inf if above > 0 else 1.0
