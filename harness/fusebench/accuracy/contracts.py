"""The numerical contracts as pure judgements on metrics and bits, with a sentence for each failure.

The bounds are those of "Numerical contracts" in docs/accuracy.md.  This module draws no inputs and runs no kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .metrics import ErrorMetrics, as_bits, position

BIAS_SHARE = 0.25
"""Greatest absolute mean error as a share of the RMS error."""

BIAS_ELEMENTS = 4096
"""Fewest elements on which bias is judged.  The mean of n independent errors of any size has a standard error of rms / sqrt(n), so at 4096
the share of 0.25 lies 16 standard errors out."""

BIAS_ROWS = 16
"""Fewest rows on which bias is judged.  Errors within a row share its normalisation factor, so the spread of an average is taken from the
rows, and this many give it to a fifth."""

OUTWARD_SIGMAS = 6.0
"""Standard errors granted to the average direction of errors on top of `BIAS_SHARE`: where each of few rows shares one rounded factor,
chance alone moves it beyond that share."""

FLOAT32_FLOOR_ULPS = 2.0
"""The smallest error bound of a float32 output, in units in the last place."""


def floor_ulps(dtype: torch.dtype) -> float:
    """Units in the last place of `dtype` that are always allowed: 2 for float32, none for 16-bit formats.

    In float32 the arithmetic and the output have the same precision.  Another summation order or another rsqrt moves the last bits of both
    chains, and a ratio of two such errors has no meaning.  A 16-bit output is float32 arithmetic with one rounding of at most half a unit:
    two units would hide a second rounding or a truncation, which the contract must find.
    """
    return FLOAT32_FLOOR_ULPS if dtype == torch.float32 else 0.0


@dataclass(frozen=True)
class Bound:
    """One error figure of a kernel and its limit."""

    what: str
    error: float
    limit: float
    origin: str
    """The source of the limit, in words."""
    maximum: bool = False
    """Whether the figure is a maximum, which rests on one element, however many there are."""

    @property
    def use(self) -> float:
        """Error over limit: above 1 fails; infinite for an error where the limit is 0."""
        if self.error == 0:
            return 0.0
        return self.error / self.limit if self.limit else math.inf


def bounds(kernel: ErrorMetrics, split: ErrorMetrics, factor: float, floor: float) -> tuple[Bound, ...]:
    """RMS and maximum error, absolute and in units of the channel's RMS, each with its limit.

    A limit is `factor` x the split chain's figure, or `floor` units in the last place where that is more.  RMS errors take the unit at each
    reference value, pooled as a root mean square; maxima take it at the reference value of largest magnitude.  Where the split chain is
    exact and there is no floor, the limit is 0.

    The figures per channel are needed because outlier channels, 30 to 100 times larger than the rest, make an absolute maximum so wide that
    a wrong element elsewhere fits into it.
    """
    rows = (
        ("RMS error", kernel.rms, split.rms, split.ulp_rms),
        ("maximum error", kernel.max, split.max, split.ulp_max),
        ("RMS error relative to each channel's RMS", kernel.channel_rms, split.channel_rms, split.ulp_channel_rms),
        ("maximum error relative to its channel's RMS", kernel.channel_max, split.channel_max, split.ulp_channel_max),
    )
    found = []
    for what, error, base, ulp in rows:
        limit, least = factor * base, floor * ulp
        origin = f"{factor:g} x the split chain's {base:.3g}" if limit >= least else f"{floor:g} units in the last place"
        found.append(Bound(what, error, max(limit, least), origin, what.startswith("maximum")))
    return tuple(found)


def judge_close(kernel: ErrorMetrics, split: ErrorMetrics, factor: float, floor: float, *, maxima: bool = True) -> str | None:
    """A sentence with every bound of `Close(factor)` that `kernel` breaks, or None.

    Args:
        kernel: pooled metrics of the kernel's output.
        split: pooled metrics of the split chain on the same inputs.
        factor: allowed multiple of the split chain's errors.
        floor: `floor_ulps` of the output's dtype.
        maxima: whether the bounds of maximum errors are judged.
    """
    if kernel.mismatches:
        where = "; ".join(kernel.first_mismatches)
        return f"NaN or Inf where the reference has none, or the reverse, in {kernel.mismatches} elements: {where}"
    found = [
        f"{bound.what} {bound.error:.3g} exceeds {bound.limit:.3g} ({bound.origin})"
        for bound in bounds(kernel, split, factor, floor)
        if bound.use > 1 and (maxima or not bound.maximum)
    ]
    if kernel.elements >= BIAS_ELEMENTS and kernel.rows >= BIAS_ROWS:
        found += [text for text in (_judge_mean(kernel, split, floor), _judge_direction(kernel, split, factor, floor)) if text]
    return "; ".join(found) or None


def _judge_mean(kernel: ErrorMetrics, split: ErrorMetrics, floor: float) -> str | None:
    allowed = BIAS_SHARE * max(kernel.rms, floor * split.ulp_rms)
    if abs(kernel.excess_mean) <= allowed:
        return None
    return f"biased: mean error {kernel.excess_mean:+.3g} exceeds {allowed:.3g} ({BIAS_SHARE:g} x the RMS error)"


def _judge_direction(kernel: ErrorMetrics, split: ErrorMetrics, factor: float, floor: float) -> str | None:
    """Judge the direction of errors as a sign, which a few large elements cannot hide.

    On outputs that are symmetric about zero, the signed mean cancels truncation, whose errors all point toward zero.
    """
    if kernel.rms <= floor * split.ulp_rms:
        return None
    chance = OUTWARD_SIGMAS * kernel.outward_bias_sd
    if abs(kernel.outward_bias) <= max(BIAS_SHARE + chance, factor * abs(split.outward_bias)):
        return None
    direction = "toward zero, as truncation does" if kernel.outward_bias < 0 else "away from zero"
    share, usual = (1.0 + abs(kernel.outward_bias)) / 2, (1.0 - split.outward_bias) / 2
    return f"biased: {100 * share:.0f} % of the errors are {direction} (expected 50 %; split chain {100 * usual:.0f} % toward zero)"


@dataclass(frozen=True)
class BitAgreement:
    """The number of equal elements of two tensors, bit for bit; NaNs are equal by position, whatever their payload."""

    elements: int
    equal: int
    first_difference: str = ""
    """Position and both values of the first difference; empty when there is none."""

    @property
    def share(self) -> float:
        return self.equal / self.elements if self.elements else 1.0


def judge_bitwise(output: torch.Tensor, other: torch.Tensor) -> BitAgreement:
    """Compare two tensors of one shape and dtype element for element; -0.0 and 0.0 differ.

    Raises:
        ValueError: shapes or dtypes differ.
    """
    if output.shape != other.shape or output.dtype != other.dtype:
        raise ValueError(f"cannot compare bits of {output.dtype} {tuple(output.shape)} with those of {other.dtype} {tuple(other.shape)}")
    different, count = _different(output, other)
    if not count:
        return BitAgreement(output.numel(), output.numel())
    first = int(different.flatten().nonzero()[0])
    values = (float(tensor.flatten()[first]) for tensor in (output, other))
    text = "{} is {:.9g}, not {:.9g}".format(position(first, output.shape), *values)
    return BitAgreement(output.numel(), output.numel() - count, text)


def equal_elements(output: torch.Tensor, other: torch.Tensor) -> int:
    """The number of equal elements of two tensors of one shape and dtype, as `judge_bitwise` counts them."""
    return output.numel() - _different(output, other)[1]


def _different(output: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A mask of the elements that differ, and their number."""
    different = as_bits(output) != as_bits(other)
    count = int(torch.count_nonzero(different))
    if count and output.is_floating_point():
        different &= ~(torch.isnan(output) & torch.isnan(other))
        count = int(torch.count_nonzero(different))
    return different, count
