"""Compares outputs with a float64 reference, in few passes over memory and one wait for the device per output.

`Reference` holds what depends on the reference alone; it is made once per draw, and every kernel's output is compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .metrics import LISTED, ErrorMetrics, merge, position

_CHUNK = {"cpu": (1 << 15) - 1, "cuda": 1 << 24}
"""Elements per step.  On a CPU it is the largest number that torch computes on one thread: steps stay in the cache, and no step waits for a
thread pool that other processes keep busy (14 M elements took 0.24 s this way, and 1.6 to 3.4 s in steps of 2^18, on two shared cores).  On
a GPU a small number of steps matters more (128 MB of float64)."""

_CHANNEL_ROWS = 16
"""Fewest rows of a draw that give a channel's RMS well enough to scale errors by; with fewer, each error is scaled by its own reference
value.  Rows that repeat the row before are no more rows: a residual of one row, 1e14 times as large as what is added to it, makes all rows
equal.  Their errors are equal too, so their number makes nothing surer: of 300 such float32 rows of 7936, two right orders of summation
differed by more than the bound in 16 %."""

FLIPPED_INF_SHARE = 0.01
"""Share of a piece's Infs that may have the other sign.  Inf times a value near zero takes that value's sign.  Where the value is a small
difference of two larger ones, rounding decides it: 16-bit rounding decides some 0.3 % of them.  The contract covers positions; a kernel
with a wrong sign has it in finite values too, and in more than these."""

_NAN = 3


def compare(output: torch.Tensor, reference: torch.Tensor, *, tolerated: torch.Tensor | None = None) -> ErrorMetrics:
    """Errors of one `output` against `reference`; several outputs share the work of a `Reference`, whose `errors` this is.

    Raises:
        ValueError: shapes differ, or `reference` is not float64.
    """
    return Reference(reference, output.dtype).errors(output, tolerated=tolerated)


@dataclass(frozen=True)
class _Piece:
    """Some rows of a reference, compared in one step."""

    rows: slice
    odd: torch.Tensor
    """Numbers of its rows, from 0, that hold a NaN or an Inf once they are rounded to the output's dtype."""
    sums: Mapping[str, float]
    """The figures of `ErrorMetrics` that depend on the reference alone, of all rows but the odd ones; empty where most rows are odd."""


class Reference:
    """A float64 reference of one output, with all figures that do not depend on the output."""

    def __init__(self, values: torch.Tensor, dtype: torch.dtype) -> None:
        """
        Args:
            values: any shape, float64; kept, not copied, if it is contiguous.
            dtype: dtype of the outputs.

        Raises:
            ValueError: `values` is not float64.
        """
        if values.dtype != torch.float64:
            raise ValueError(f"an output is compared with a float64 reference, got {values.dtype} {tuple(values.shape)}")
        self.values, self.dtype = values.contiguous(), dtype
        width = values.shape[-1] if values.dim() else 1
        self._rows = self.values.reshape(-1, width) if values.numel() else values.reshape(0, max(1, width))
        step = max(1, _CHUNK.get(values.device.type, _CHUNK["cpu"]) // self._rows.shape[1])
        self._slices = [slice(first, min(first + step, len(self._rows))) for first in range(0, len(self._rows), step)]
        many = len(self._rows) >= _CHANNEL_ROWS
        self._repeats = many and dtype.is_floating_point and self._repeat_one_another()
        self._per_channel = self._inverse_channel_rms() if many and not self._repeats else None
        self._pieces = self._cut()

    def errors(self, output: torch.Tensor, *, tolerated: torch.Tensor | None = None) -> ErrorMetrics:
        """Errors of `output`, computed in float64 on its device, in steps of bounded memory.

        An element's kind must be that of the reference rounded to the output's dtype: a float16 output beyond 65504 must be Inf.  Within 4
        epsilon of the dtype's greatest value one rounding decides: finite and Inf are both right, and neither counts.

        Rows that `_repeat_one_another` count as one row.

        Args:
            output: of the reference's shape, on its device.
            tolerated: same shape and dtype as `output`: the split chain's output.  A kind that both share is no mismatch: a kernel is not
                blamed for an intermediate overflow that models have today.

        Raises:
            ValueError: shape or dtype is not that of the reference.
        """
        if output.shape != self.values.shape or output.dtype != self.dtype:
            due, got = f"{self.dtype} {tuple(self.values.shape)}", f"{output.dtype} {tuple(output.shape)}"
            raise ValueError(f"this float64 reference is one of outputs {due}, got {got}")
        rows = output.detach().reshape(self._rows.shape)
        beside = tolerated.detach().reshape(self._rows.shape) if tolerated is not None else None
        plain = [piece for piece in self._pieces if piece.sums]
        fetched = iter(_fetch([self._plain_sums(rows, piece) for piece in plain]))
        found = []
        for piece in self._pieces:
            sums, count, odd = next(fetched) if piece.sums else {}, piece.rows.stop - piece.rows.start, len(piece.odd)
            if not math.isfinite(sums.get("error_squares", math.nan)):  # or a value of the output is not finite, and the reference's is
                found.append(self._by_element(rows, beside, piece.rows))
                continue
            known = {"elements": (count - odd) * rows.shape[1], "rows": count - odd}
            found.append(self._metrics({**known, **sums, **piece.sums}))
            if odd:
                found.append(self._by_element(rows, beside, piece.odd + piece.rows.start))
        errors = merge(found)
        return replace(errors, rows=1, outward_row_squares=errors.outward**2) if self._repeats else errors

    def _repeat_one_another(self) -> bool:
        """Whether fewer than `_CHANNEL_ROWS` rows are left without those that differ from the row before by rounding alone."""
        left = 1 + _changes(self._rows[:_CHANNEL_ROWS], self.dtype)
        if left < _CHANNEL_ROWS:  # seldom: else the first rows tell
            left = 1
            for part in self._slices:
                left += _changes(self._rows[max(0, part.start - 1) : part.stop], self.dtype)
        return left < _CHANNEL_ROWS

    def _inverse_channel_rms(self) -> torch.Tensor:
        """`[width]`: 1 / RMS of the finite values of each column, 0 for a column of zeros."""
        sums = torch.stack([_column_squares(self._rows[part]) for part in self._slices])
        for place, finite in enumerate(torch.isfinite(sums).all(1).tolist()):
            if not finite:
                sums[place] = _column_squares(self._rows[self._slices[place]].nan_to_num(0.0, 0.0, 0.0))
        squares = sums.sum(0)
        inverse: torch.Tensor = torch.where(squares > 0, (squares / len(self._rows)).rsqrt(), 0.0)
        return inverse

    def _cut(self) -> list[_Piece]:
        odd = [torch.logical_not(torch.isfinite(self._rows[part].to(self.dtype)).all(1)).nonzero().flatten() for part in self._slices]
        plain = [2 * len(those) < part.stop - part.start for part, those in zip(self._slices, odd, strict=True)]
        sums = []
        for part, those, most in zip(self._slices, odd, plain, strict=True):
            if most:
                reference = self._rows[part].index_fill(0, those, 0.0) if len(those) else self._rows[part]
                sums.append(_reference_sums(reference, self.dtype, self._per_channel))
        fetched = iter(_fetch(sums))
        return [_Piece(part, those, next(fetched) if most else {}) for part, those, most in zip(self._slices, odd, plain, strict=True)]

    def _plain_sums(self, rows: torch.Tensor, piece: _Piece) -> dict[str, torch.Tensor]:
        """The figures that depend on the output, of all rows of `piece` but the odd ones."""
        reference = self._rows[piece.rows]
        error = _difference(rows[piece.rows], reference)
        if len(piece.odd):
            error.index_fill_(0, piece.odd, 0.0)
        return _error_sums(error, reference, self._per_channel, piece.odd)

    def _by_element(self, output: torch.Tensor, tolerated: torch.Tensor | None, chosen: slice | torch.Tensor) -> ErrorMetrics:
        """All figures of the `chosen` rows, some of which hold a NaN or an Inf: kinds are compared element by element."""
        output, reference = output[chosen], self._rows[chosen]
        error = _difference(output, reference)
        known: dict[str, Any] = {"elements": error.numel(), "rows": error.shape[0]}
        if not bool(torch.isfinite(error).all()):
            expected = reference.to(output.dtype)
            wrong, left_out = _kinds(output, expected, reference, tolerated[chosen] if tolerated is not None else None)
            known["mismatches"] = int(wrong.sum())
            if known["mismatches"]:
                numbers = range(chosen.start, chosen.stop) if isinstance(chosen, slice) else chosen
                known["first_mismatches"] = _list_mismatches(output, expected, wrong, numbers, self.values.shape)
            error.masked_fill_(left_out, 0.0)
            reference = reference.masked_fill(left_out, 0.0)
            known["elements"] -= int(left_out.sum())
        sums = _error_sums(error, reference, self._per_channel) | _reference_sums(reference, self.dtype, self._per_channel)
        return self._metrics(known | _fetch([sums])[0])

    def _metrics(self, known: Mapping[str, Any]) -> ErrorMetrics:
        unit = "relative_elements" if self._per_channel is None else "channel_elements"
        return ErrorMetrics(**known, **{unit: known["elements"]})


def _changes(rows: torch.Tensor, dtype: torch.dtype) -> int:
    """Rows that differ from the row before by more than an epsilon of `dtype` in some element, or where one is not finite."""
    same = (rows[1:] - rows[:-1]).abs() <= torch.finfo(dtype).eps * rows[1:].abs()
    return int(torch.logical_not(same.all(1)).sum())


def _fetch(sums: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, float]]:
    """The values of all tensors, each of one element, in one copy from the device; every mapping has the same keys."""
    if not sums:
        return []
    values = torch.stack([value.to(torch.float64) for one in sums for value in one.values()]).tolist()
    names = list(sums[0])
    return [dict(zip(names, values[first : first + len(names)], strict=True)) for first in range(0, len(values), len(names))]


def _error_sums(
    error: torch.Tensor, reference: torch.Tensor, per_channel: torch.Tensor | None, left_out: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """The figures of `error` `[rows, width]`, which is overwritten.

    Args:
        left_out: rows where `error` is 0 and `reference` may be NaN or Inf.
    """
    found = {"error_sum": error.sum()}
    if per_channel is not None:
        # Errors in units of their channel need no pass of their own: sums and maxima of columns give both.
        squares, largest = _column_squares(error), torch.maximum(error.amax(0), -error.amin(0))
        found |= {"error_squares": squares.sum(), "max": largest.amax()}
        found |= {"channel_squares": (squares * per_channel.square()).sum(), "channel_max": (largest * per_channel).amax()}
    else:
        found |= {"error_squares": _squares(error), "max": error.abs().amax()}
        found["relative_squares"] = _squares(_relative(error, reference))
    signs = error.mul_(reference)
    if left_out is not None and len(left_out):
        signs.index_fill_(0, left_out, 0.0)
    per_row = signs.sign_().sum(1)
    return found | {"inexact": torch.count_nonzero(signs), "outward": per_row.sum(), "outward_row_squares": _squares(per_row)}


def _reference_sums(reference: torch.Tensor, dtype: torch.dtype, per_channel: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The figures that depend on `reference` `[rows, width]` alone."""
    rounding = _difference(reference.to(dtype), reference)
    rounding.nan_to_num_(0.0, 0.0, 0.0)  # Inf where rounding overflows and the output did not
    found = {"rounding_sum": rounding.sum()}
    ulp = _float32_ulp(reference) if dtype == torch.float32 else None
    if ulp is not None:
        found |= {"ulp_squares": _squares(ulp), "ulp_max": ulp.amax()}
    if per_channel is not None:
        found["rounding_channel_squares"] = (_column_squares(rounding) * per_channel.square()).sum()
        if ulp is not None:
            ulp *= per_channel
            found |= {"ulp_channel_squares": _squares(ulp), "ulp_channel_max": ulp.amax()}
    else:
        found["rounding_relative_squares"] = _squares(_relative(rounding, reference))
        if ulp is not None:
            found["ulp_relative_squares"] = _squares(_relative(ulp, reference))
    return found


def _difference(output: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """`output - reference` in float64."""
    if output.device.type == "cpu":
        wide: torch.Tensor = output.to(torch.float64)
        return wide.sub_(reference)  # twice as fast as subtraction that converts
    return torch.sub(output, reference)  # one pass


def _squares(tensor: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(tensor)
    return norm.square()


def _column_squares(tensor: torch.Tensor) -> torch.Tensor:
    """`[width]`: the sum of squares of each column."""
    if tensor.device.type == "cpu":
        return tensor.square().sum(0)  # 5 to 30 times as fast there as the norm of columns
    norms: torch.Tensor = torch.linalg.vector_norm(tensor, dim=0)
    return norms.square_()


def _relative(error: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """`error` in units of its reference value or the median of its row, whichever is larger; 0 if both are 0."""
    size = reference.abs().nan_to_num_(0.0, 0.0, 0.0)
    scale = torch.maximum(size, size.median(dim=1, keepdim=True).values)
    return torch.where(scale > 0, error / scale, 0.0)


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


def _kind(tensor: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 +Inf, 2 -Inf, 3 NaN."""
    return torch.isposinf(tensor).to(torch.int8) + 2 * torch.isneginf(tensor).to(torch.int8) + _NAN * torch.isnan(tensor).to(torch.int8)


def _list_mismatches(
    output: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, numbers: range | torch.Tensor, shape: torch.Size
) -> tuple[str, ...]:
    """Texts of the first mismatches; `numbers` are those of the rows."""
    texts, width = [], output.shape[1]
    for flat in wrong.flatten().nonzero().flatten()[:LISTED].tolist():
        got, due = float(output.flatten()[flat]), float(expected.flatten()[flat])
        row, column = divmod(flat, width)
        texts.append(f"{position(int(numbers[row]) * width + column, shape)} is {got:g}, expected {due:g}")
    return tuple(texts)


def _float32_ulp(reference: torch.Tensor) -> torch.Tensor:
    """Spacing of float32 values at each element of `reference` (float64), as float64: 2^(exponent - 23), at least 2^-149."""
    exponent_bits = reference.to(torch.float32).view(torch.int32) & 0x7F800000
    power = exponent_bits.clamp_(min=0x00800000).view(torch.float32).to(torch.float64)
    return power.mul_(2.0**-23)
