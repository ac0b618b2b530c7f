"""The inputs of a check: magnitudes, number of draws, and planted special values."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import torch

MOST_DRAWS = 256
"""Most draws per magnitude, for outputs too small to fill `BIAS_ELEMENTS`; 16 elements reach it."""

_SMALL = 1 << 20
"""Elements of all inputs below which special values get draws of their own.  Above, a draw costs seconds on a CPU, and a few planted rows
leave the rest of the tensor plain."""


_SHARED_ROWS = 64
"""Rows of every activation from which all kinds of special values share a draw; an eighth of the rows becomes special then."""

_MOST_ROWS = 16
"""Most rows planted per kind; more would only cost time."""

_FEWEST_ELEMENTS = 8
"""Fewest elements of a parameter in which special values are planted: a NaN in a scalar would leave nothing to compare."""

_NORMAL_MEDIAN = 0.6745
"""Median of the magnitudes of standard normal values."""

_NEAR_CONSTANT_BITS = 7
"""The step of a row that is nearly constant, below the power of two of its value: that of bfloat16, the coarsest format.  float32 is left
out: there the errors of two right orders of summation differ by far on such rows."""
_STEPS = (1 / 40, 1 / 12)
"""Least and greatest share of a nearly constant row's channels that lie a step higher: its mean is 470 to 1600 times its deviation.  With a
variance as E[x^2] - mean^2, outputs of 256 to 5120 channels err 9 to 60 times as much as the split chain's in bfloat16, and by two
passes, or Welford's formula over up to 512 elements in a row, at most 1.3 times as much."""

_MANTISSA_BITS = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}
_HALF = (torch.bfloat16, torch.float16)
_BITS = {2: torch.int16, 4: torch.int32}


class Special(StrEnum):
    """A kind of row planted into inputs."""

    ZEROS = "zeros"
    """Zeros of both signs."""
    NAN = "nan"
    INF = "inf"
    NEGATIVE_INF = "-inf"
    SMALL = "small"
    """Values 2^-10 as large as they were, where a norm's epsilon matters, or subnormals of the dtype."""
    LONE_INF = "lone inf"
    """One Inf a row."""
    PLAIN = "plain"
    """Normal values without outlier channels, in all rows."""
    NEAR_CONSTANT = "near constant"
    """Rows whose mean is hundreds of times their deviation, in 16-bit formats: one value, and one step above it in a few channels."""


_GATE_KINDS = (Special.ZEROS, Special.NAN, Special.INF, Special.NEGATIVE_INF, Special.SMALL)
"""Kinds that the gate's draws hold; the judge of untrusted kernels draws of all."""


def is_small(buffers: Mapping[str, torch.Tensor]) -> bool:
    """Whether a draw of these inputs costs almost nothing."""
    return sum(buffer.numel() for buffer in buffers.values()) < _SMALL


def special_draws(buffers: Mapping[str, torch.Tensor]) -> list[tuple[Special, ...]]:
    """The sets of special values to plant, one draw each.

    With `_SHARED_ROWS` rows or more per activation all kinds share a draw, some rows each.  In smaller inputs NaN and the Infs get draws of
    their own, because one NaN would leave little else to compare; a single row has no room for small values beside zeros.
    """
    rows = min((buffer.numel() // buffer.shape[-1] for buffer in _activations(buffers).values()), default=0)
    if rows >= _SHARED_ROWS:
        return [_GATE_KINDS]
    finite = (Special.ZEROS, Special.SMALL) if rows > 1 else (Special.ZEROS,)
    return [finite, (Special.NAN,), (Special.INF,), (Special.NEGATIVE_INF,)]


def plant(buffers: Mapping[str, torch.Tensor], kinds: tuple[Special, ...], rng: random.Random) -> None:
    """Overwrite random rows of every activation per kind: a whole row with zeros or small values, or a sixteenth of it with NaN or Inf.

    Every kind gets several rows, if the input has several, because a row of a packed buffer may lie outside every argument's view.
    """
    for buffer in _activations(buffers).values() if kinds else ():
        width = buffer.shape[-1]
        rows = buffer.view(-1, width)
        if Special.PLAIN in kinds:
            size = float(rows.flatten()[:4096].float().abs().median()) / _NORMAL_MEDIAN
            generator = torch.Generator(buffer.device).manual_seed(rng.getrandbits(63))
            noise = torch.randn(rows.shape, generator=generator, device=buffer.device, dtype=torch.float32)
            rows.copy_(noise.mul_(size))
            continue
        if Special.NEAR_CONSTANT in kinds:
            if buffer.dtype in _HALF:
                rows.copy_(_near_constant(rows, rng))
            continue
        each = min(max(1, rows.shape[0] // (32 if len(kinds) > 1 else 4)), _MOST_ROWS)
        chosen = rng.sample(range(rows.shape[0]), each * len(kinds))
        for place, kind in enumerate(kinds):
            _plant_kind(rows, kind, chosen[place :: len(kinds)], rng)


def _plant_kind(rows: torch.Tensor, kind: Special, chosen: Sequence[int], rng: random.Random) -> None:
    """Plant `kind` in the `chosen` rows, all at once: on a GPU every copy of row numbers waits for it."""
    width, device = rows.shape[1], rows.device
    if kind is Special.ZEROS:
        zeros = torch.zeros(width, dtype=rows.dtype, device=device)
        zeros[::2] = -0.0
        rows[torch.tensor(chosen, device=device)] = zeros
    elif kind is Special.SMALL:
        subnormal = [row for row in chosen if rows.dtype in _MANTISSA_BITS and rng.random() < 0.5]
        if subnormal:
            rows[torch.tensor(subnormal, device=device)] = _subnormals((len(subnormal), width), rows.dtype, rng).to(device)
        if others := [row for row in chosen if row not in subnormal]:
            rows[torch.tensor(others, device=device)] *= 2.0**-10
    else:
        # A row may hold many heads: a sixteenth of its elements reaches them all.
        count = 1 if kind is Special.LONE_INF else max(1, width // 16)
        columns = [rng.sample(range(width), count) for _ in chosen]
        where = torch.tensor([chosen, *zip(*columns, strict=True)], device=device)
        rows[where[:1], where[1:]] = float(kind.removeprefix("lone "))


def plant_in_parameters(arguments: Mapping[str, Any], kinds: tuple[Special, ...], rng: random.Random, *, reduced: Sequence[str]) -> None:
    """Overwrite single elements of the small floating arguments (weights, modulations, tables): one with NaN, two with zeros of both signs.

    Where NaN is planted alone, or zeros, only these.  A NaN spoils one channel, or in a table the tokens of one position.  No Inf: a
    kernel may multiply parameters with each other before it multiplies the row, and Inf - Inf is NaN in one order and not in the other.
    No subnormals: float32 arithmetic may flush its own, and of a whole channel that shows.

    Args:
        arguments: a call's; what is planted lands in the buffers that they view.
        reduced: names to leave alone (`Op.reduced`).
    """
    largest = max((value.numel() for value in arguments.values() if isinstance(value, torch.Tensor)), default=0)
    large = largest >= _SMALL
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or name in reduced or 4 * value.numel() >= largest:
            continue
        # In large inputs a special value in every row would have each element compared by kind: tables of many rows alone.
        if value.numel() < _FEWEST_ELEMENTS or (large and value.numel() < _SHARED_ROWS * value.shape[-1]):
            continue
        planted = [math.nan] * (Special.NAN in kinds) + [0.0, -0.0] * (Special.ZEROS in kinds)
        for number in planted:
            value[tuple(rng.randrange(size) for size in value.shape)] = number


def _subnormals(shape: tuple[int, ...], dtype: torch.dtype, rng: random.Random) -> torch.Tensor:
    """Random subnormals of both signs, on the CPU."""
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    size = torch.randint(1, 2 ** _MANTISSA_BITS[dtype], shape, generator=generator, dtype=torch.int64)
    sign = torch.randint(2, shape, generator=generator, dtype=torch.int64) << (8 * dtype.itemsize - 1)
    return (size | sign).to(_BITS[dtype.itemsize]).view(dtype)


def _near_constant(rows: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Rows of `rows`'s shape, dtype and device that are nearly constant, hundreds of times as large as the values there."""
    generator = torch.Generator(rows.device).manual_seed(rng.getrandbits(63))
    count, width = rows.shape
    size = float(rows.flatten()[:4096].float().abs().median()) / _NORMAL_MEDIAN
    largest = torch.finfo(rows.dtype).max / 4
    least = min(256.0 * max(size, torch.finfo(rows.dtype).tiny), largest)
    values = least * (1.0 + torch.rand((count, 1), generator=generator, device=rows.device, dtype=torch.float32))
    step = torch.exp2(values.log2().floor() - _NEAR_CONSTANT_BITS)
    low, high = _STEPS
    shares = low + (high - low) * torch.rand((count, 1), generator=generator, device=rows.device, dtype=torch.float32)
    order = torch.rand((count, width), generator=generator, device=rows.device, dtype=torch.float32)
    order[:, 0] = torch.where(order[:, 0] < 0.5, 0.0, order[:, 0])  # a narrow row has a step, too, more often than not
    return ((values / step).round() * step + step * (order < shares)).to(rows.dtype)


def keep_in_range(buffers: Mapping[str, torch.Tensor]) -> None:
    """Bring Inf back to the dtype's greatest value.

    Outliers at magnitude 1e3 overflow float16 and would turn every row to NaN, with nothing left to compare.  Inf is planted on purpose
    instead.
    """
    for buffer in buffers.values():
        if buffer.dtype == torch.float16:
            buffer.clamp_(-torch.finfo(torch.float16).max, torch.finfo(torch.float16).max)


def _activations(buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The floating buffers of at least a quarter of the largest one's size.

    Weights and tables that are small beside the activations are left out: one NaN in a weight is NaN in every row.
    """
    floating = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point() and buffer.dim() and buffer.numel()}
    largest = max((buffer.numel() for buffer in floating.values()), default=0)
    return {name: buffer for name, buffer in floating.items() if 4 * buffer.numel() >= largest}
