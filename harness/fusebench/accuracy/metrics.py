"""Errors of an output against its float64 reference, computed in float64, as sums that can be pooled over draws."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch

_CHUNK = {"cpu": (1 << 15) - 1, "cuda": 1 << 24}
"""Elements per step.  On a CPU it is the largest number that torch computes on one thread: steps stay in the cache, and no step waits for a
thread pool that other processes keep busy (14 M elements took 0.24 s this way, and 1.6 to 3.4 s in steps of 2^18, on two shared cores).  On
a GPU a small number of steps matters more (128 MB of float64)."""

_CHANNEL_ROWS = 16
"""Fewest rows of a draw that give a channel's RMS well enough to scale errors by; with fewer, each error is scaled by its own reference
value."""

_LISTED = 3
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
    """Slices along the last dimension.  One normalisation covers a slice, so errors within it need not be independent."""
    error_sum: float = 0.0
    error_squares: float = 0.0
    rounding_sum: float = 0.0
    """Sum of the errors of rounding the exact result once; they are no bias of the kernel."""
    max: float = 0.0
    """Largest absolute error."""
    channel_elements: int = 0
    """Elements in the two figures below; 0 for draws of few rows."""
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
            pooled[member.name] = tuple(text for texts in values for text in texts)[:_LISTED]
        elif member.name.endswith("max"):
            pooled[member.name] = max(values, default=0.0)
        else:
            pooled[member.name] = sum(values)
    return ErrorMetrics(**pooled)


def compare(output: torch.Tensor, reference: torch.Tensor, *, tolerated: torch.Tensor | None = None) -> ErrorMetrics:
    """Errors of `output` against `reference`, computed in float64 on the output's device, in steps of bounded memory.

    An element's kind must be that of the reference rounded to the output's dtype: a float16 output beyond 65504 must be Inf.  Within 4
    epsilon of the dtype's greatest value one rounding decides: finite and Inf are both right, and neither counts.

    Args:
        output: any shape, any real dtype.
        reference: same shape, float64, on the same device.
        tolerated: same shape and dtype as `output`: the split chain's output.  A kind that both share is no mismatch: a kernel is not
            blamed for an intermediate overflow that models have today.

    Raises:
        ValueError: shapes differ, or `reference` is not float64.
    """
    if output.shape != reference.shape or reference.dtype != torch.float64:
        found, due = f"{reference.dtype} {tuple(reference.shape)}", tuple(output.shape)
        raise ValueError(f"compare() needs a float64 reference of the output's shape {due}, got {found}")
    if output.numel() == 0:
        return ErrorMetrics()
    width = output.shape[-1] if output.dim() else 1
    rows, reference_rows = output.detach().reshape(-1, width), reference.reshape(-1, width)
    tolerated_rows = tolerated.detach().reshape(-1, width) if tolerated is not None else None
    step = max(1, _CHUNK.get(output.device.type, _CHUNK["cpu"]) // width)
    per_channel = _inverse_channel_rms(reference_rows, step) if rows.shape[0] >= _CHANNEL_ROWS else None
    parts = []
    for first in range(0, rows.shape[0], step):
        part = slice(first, first + step)
        share = tolerated_rows[part] if tolerated_rows is not None else None
        parts.append(_compare_rows(rows[part], reference_rows[part], share, per_channel, offset=first * width, shape=output.shape))
    return merge(parts)


def _inverse_channel_rms(rows: torch.Tensor, step: int) -> torch.Tensor:
    """`[width]`: 1 / RMS of the finite values of each column of `rows`, 0 for a column of zeros."""
    squares = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for first in range(0, rows.shape[0], step):
        part = rows[first : first + step]
        sums = torch.linalg.vector_norm(part, dim=0).square_()
        if not bool(torch.isfinite(sums).all()):
            sums = torch.linalg.vector_norm(part.nan_to_num(0.0, 0.0, 0.0), dim=0).square_()
        squares += sums
    return torch.where(squares > 0, (squares / rows.shape[0]).rsqrt(), 0.0)


def _compare_rows(
    output: torch.Tensor,
    reference: torch.Tensor,
    tolerated: torch.Tensor | None,
    per_channel: torch.Tensor | None,
    *,
    offset: int,
    shape: torch.Size,
) -> ErrorMetrics:
    error = output.to(torch.float64).sub_(reference)
    found: dict[str, Any] = {"elements": error.numel(), "rows": error.shape[0]}
    if not math.isfinite(_sum_of_squares(error)):  # rare, so the common path does not test element by element
        expected = reference.to(output.dtype)
        wrong, left_out = _kinds(output, expected, reference, tolerated)
        found["mismatches"] = int(wrong.sum())
        if found["mismatches"]:
            found["first_mismatches"] = _list_mismatches(output, expected, wrong, offset, shape)
        error.masked_fill_(left_out, 0.0)
        reference = reference.masked_fill(left_out, 0.0)
        found["elements"] -= int(left_out.sum())
    found |= {"error_sum": float(error.sum()), "error_squares": _sum_of_squares(error), "max": _largest(error)}
    rounding = reference.to(output.dtype).to(torch.float64).sub_(reference)
    rounding.nan_to_num_(0.0, 0.0, 0.0)  # Inf where rounding overflows and the output did not
    found["rounding_sum"] = float(rounding.sum())
    ulp = _float32_ulp(reference) if output.dtype == torch.float32 else None
    if ulp is not None:
        found |= {"ulp_squares": _sum_of_squares(ulp), "ulp_max": _largest(ulp)}
    if per_channel is not None:
        scaled = error * per_channel
        found |= {"channel_elements": found["elements"], "channel_squares": _sum_of_squares(scaled), "channel_max": _largest(scaled)}
        found["rounding_channel_squares"] = _sum_of_squares(rounding.mul_(per_channel))
        if ulp is not None:
            ulp *= per_channel
            found |= {"ulp_channel_squares": _sum_of_squares(ulp), "ulp_channel_max": _largest(ulp)}
    else:
        found |= {"relative_elements": found["elements"], "relative_squares": _sum_of_squares(_relative(error, reference))}
        found["rounding_relative_squares"] = _sum_of_squares(_relative(rounding, reference))
        if ulp is not None:
            found["ulp_relative_squares"] = _sum_of_squares(_relative(ulp, reference))
    signs = error.mul_(reference).sign_()
    per_row = signs.sum(1)
    found |= {"inexact": int(torch.count_nonzero(signs)), "outward": float(per_row.sum()), "outward_row_squares": _sum_of_squares(per_row)}
    return ErrorMetrics(**found)


def _relative(error: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """`error` in units of its reference value or the median of its row, whichever is larger; 0 if both are 0."""
    size = reference.abs().nan_to_num_(0.0, 0.0, 0.0)
    scale = torch.maximum(size, size.median(dim=1, keepdim=True).values)
    return torch.where(scale > 0, error / scale, 0.0)


def _sum_of_squares(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor)) ** 2


def _largest(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, math.inf))


def _kinds(
    output: torch.Tensor, expected: torch.Tensor, reference: torch.Tensor, tolerated: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks: elements of the wrong kind, and elements without an error because one of the two values is not finite."""
    got = _kind(output)
    wrong = got != _kind(expected)
    if output.dtype.is_floating_point:
        limits = torch.finfo(output.dtype)
        borderline = (reference.abs() / limits.max - 1.0).abs() < 4 * limits.eps
        wrong &= ~(borderline & (got != _NAN))
    if tolerated is not None:
        wrong &= got != _kind(tolerated)
    flipped = wrong & torch.isinf(output) & torch.isinf(expected)
    if int(flipped.sum()) <= FLIPPED_INF_SHARE * int(torch.isinf(expected).sum()):
        wrong &= ~flipped
    return wrong, ~(torch.isfinite(output) & torch.isfinite(expected))


_NAN = 3
FLIPPED_INF_SHARE = 0.01
"""Share of a piece's Infs that may have the other sign.  Inf times a value near zero takes that value's sign.  Where the value is a small
difference of two larger ones, rounding decides it: 16-bit rounding decides some 0.3 % of them.  The contract covers positions; a kernel
with a wrong sign has it in finite values too, and in more than these."""


def _kind(tensor: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 +Inf, 2 -Inf, 3 NaN."""
    return torch.isposinf(tensor).to(torch.int8) + 2 * torch.isneginf(tensor).to(torch.int8) + _NAN * torch.isnan(tensor).to(torch.int8)


def _list_mismatches(output: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, offset: int, shape: torch.Size) -> tuple[str, ...]:
    texts = []
    for flat in wrong.flatten().nonzero().flatten()[:_LISTED].tolist():
        got, due = float(output.flatten()[flat]), float(expected.flatten()[flat])
        texts.append(f"{position(flat + offset, shape)} is {got:g}, expected {due:g}")
    return tuple(texts)


def position(flat: int, shape: torch.Size) -> str:
    """The index of the `flat`-th element of `shape` as text: `[3, 0, 17]`."""
    index = []
    for size in reversed(shape):
        flat, last = divmod(flat, size)
        index.append(last)
    return str(index[::-1])


def _float32_ulp(reference: torch.Tensor) -> torch.Tensor:
    """Spacing of float32 values at each element of `reference` (float64), as float64: 2^(exponent - 23), at least 2^-149."""
    exponent_bits = reference.to(torch.float32).view(torch.int32) & 0x7F800000
    power = exponent_bits.clamp_(min=0x00800000).view(torch.float32).to(torch.float64)
    return power.mul_(2.0**-23)
