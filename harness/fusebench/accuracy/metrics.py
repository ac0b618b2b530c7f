"""Errors of an output against its float64 reference, as sums that can be pooled over draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

LISTED = 3
"""Positions named in a message; the message also has their number."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`'s bits as signed integers of the element's width, contiguous, same shape."""
    return tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()])


@dataclass(frozen=True, kw_only=True)
class ErrorMetrics:
    """Pooled errors; `error = output - reference`, over the elements that are finite in both."""

    elements: int = 0
    rows: int = 0
    """Slices along the last dimension.  One normalisation covers a slice, so errors within it need not be independent.  1 for a draw whose
    rows repeat one another."""
    error_sum: float = 0.0
    error_squares: float = 0.0
    rounding_sum: float = 0.0
    """Sum of the errors of rounding the exact result once; they are no bias of the kernel."""
    max: float = 0.0
    """Largest absolute error."""
    channel_elements: int = 0
    """Elements in the two figures below; 0 for draws of few rows, or of rows that repeat one another."""
    channel_squares: float = 0.0
    """Sum of squares of error / (RMS of the reference in the element's channel, the last dimension)."""
    rounding_channel_squares: float = 0.0
    """As `channel_squares`, for the errors of rounding the exact result once."""
    channel_max: float = 0.0
    """Largest absolute error in units of its channel's RMS: it shows a wrong element that an outlier channel's errors would hide."""
    relative_elements: int = 0
    """Elements in the next figure: those of draws of few rows, where the channels' RMS is unknown."""
    relative_squares: float = 0.0
    """Sum of squares of error / (the reference value, or the median of its row where that is larger, both absolute).  Outlier channels do
    not make it grow."""
    rounding_relative_squares: float = 0.0
    """As `relative_squares`, for the errors of rounding the exact result once."""
    ulp_relative_squares: float = 0.0
    """As `ulp_squares`, in these units."""
    inexact: int = 0
    """Elements with an error and a nonzero reference value."""
    outward: float = 0.0
    """Number of errors away from zero, less the number toward zero."""
    outward_row_squares: float = 0.0
    """Sum over rows of the square of that row's `outward`."""
    ulp_squares: float = 0.0
    """Sum of squares of the unit in the last place of each reference value; 0 unless the output is float32."""
    ulp_max: float = 0.0
    """The unit in the last place of the reference value of largest magnitude."""
    ulp_channel_squares: float = 0.0
    ulp_channel_max: float = 0.0
    """As `ulp_squares` and `ulp_max`, in units of the channel's RMS."""
    mismatches: int = 0
    """Elements whose kind (finite, NaN, +Inf, -Inf) differs from the reference's."""
    first_mismatches: tuple[str, ...] = ()

    @property
    def rms(self) -> float:
        return _root_mean_square(self.error_squares, self.elements)

    @property
    def mean(self) -> float:
        """Signed mean error."""
        return self.error_sum / self.elements if self.elements else 0.0

    @property
    def excess_mean(self) -> float:
        """Signed mean error beyond that of rounding the exact result once.

        The latter is not zero where values lie close together: all of 1003 +- 0.5 round to 1004 in bfloat16, in any implementation.
        """
        return (self.error_sum - self.rounding_sum) / self.elements if self.elements else 0.0

    @property
    def ulp_rms(self) -> float:
        return _root_mean_square(self.ulp_squares, self.elements)

    @property
    def channel_rms(self) -> float:
        return _root_mean_square(self.channel_squares, self.channel_elements)

    @property
    def rounding_channel_rms(self) -> float:
        return _root_mean_square(self.rounding_channel_squares, self.channel_elements)

    @property
    def rounding_relative_rms(self) -> float:
        return _root_mean_square(self.rounding_relative_squares, self.relative_elements)

    @property
    def relative_rms(self) -> float:
        return _root_mean_square(self.relative_squares, self.relative_elements)

    @property
    def ulp_relative_rms(self) -> float:
        return _root_mean_square(self.ulp_relative_squares, self.relative_elements)

    @property
    def ulp_channel_rms(self) -> float:
        return _root_mean_square(self.ulp_channel_squares, self.channel_elements)

    @property
    def outward_bias(self) -> float:
        """From -1 (every error is toward zero, as in truncation) to 1; 0 for unbiased rounding."""
        return self.outward / self.inexact if self.inexact else 0.0

    @property
    def outward_bias_sd(self) -> float:
        """Standard error of `outward_bias`, from the spread between rows."""
        if self.rows < 2 or not self.inexact:
            return 0.0
        between = self.outward_row_squares - self.outward**2 / self.rows
        return math.sqrt(max(between, 0.0) * self.rows / (self.rows - 1)) / self.inexact


def _root_mean_square(squares: float, count: int) -> float:
    return math.sqrt(squares / count) if count else 0.0


def merge(parts: Iterable[ErrorMetrics]) -> ErrorMetrics:
    """Metrics of all elements together: pooled RMS and mean, the maximum of the maxima."""
    parts = list(parts)
    pooled: dict[str, Any] = {}
    for member in fields(ErrorMetrics):
        values = [getattr(part, member.name) for part in parts]
        if member.name == "first_mismatches":
            pooled[member.name] = tuple(text for texts in values for text in texts)[:LISTED]
        elif member.name.endswith("max"):
            pooled[member.name] = max(values, default=0.0)
        else:
            pooled[member.name] = sum(values)
    return ErrorMetrics(**pooled)


def rms_spread(squares: Sequence[float], counts: Sequence[float]) -> float | None:
    """Standard error of a pooled RMS as a share of it, from how the draws differ; None for fewer than two draws or no error.

    Each draw is left out once: Tukey's jackknife (Ann. Math. Statist. 29 (1958) 614).

    Args:
        squares: sum of squares of each draw.
        counts: elements of each draw; or another chain's sum of squares, for the ratio of two RMS errors.
    """
    parts = [(square, count) for square, count in zip(squares, counts, strict=True) if count]
    all_squares, all_counts = math.fsum(square for square, _ in parts), math.fsum(count for _, count in parts)
    if len(parts) < 2 or not all_squares > 0:
        return None
    # Subtraction from the sum would leave rounding errors alone of the others where one draw makes all of it.
    without = []
    for place in range(len(parts)):
        others = parts[:place] + parts[place + 1 :]
        share = math.fsum(square for square, _ in others) / all_squares
        without.append(math.sqrt(share * all_counts / math.fsum(count for _, count in others)))
    mean = math.fsum(without) / len(without)
    return math.sqrt((len(without) - 1) / len(without) * math.fsum((one - mean) ** 2 for one in without))


def position(flat: int, shape: torch.Size) -> str:
    """The index of the `flat`-th element of `shape` as text: `[3, 0, 17]`."""
    index = []
    for size in reversed(shape):
        flat, last = divmod(flat, size)
        index.append(last)
    return str(index[::-1])
