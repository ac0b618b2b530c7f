"""Which kernels a dispatch table puts first for a call: those measured at the same key, or those predicted from all its entries.

The prediction is a Gaussian process (kriging) over the distance of two keys, one per kernel. Its constants were compared on the H200's
tables, each random shape predicted by the others; around the values here the share of choices within 1.02 moves by 2 points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...schema.dispatch import DispatchKey, DispatchTable, KernelTime, TableEntry
from .tables import Ranking

if TYPE_CHECKING:
    import numpy

FURTHEST = 4.5
"""Distance beyond which an entry says nothing about a call. The nearest entry of the H200's random shapes lies up to 4.4 away, and from 3.5
on, too, the prediction is better than the default order (6 shapes: worst 1.09 and 3.29)."""
TRAIT = 2.0
"""How far an unequal trait lies apart, and so do dtypes of other widths; any other unequal kind counts 1, like a doubling of a size.
Without traits the choices within 1.02 are 4 points fewer."""
REACH = 4.0
"""Distance at which the correlation of two losses has fallen to 0.48 (Matern 3/2). From 3 to 6 the result is the same."""
NOISE = 0.03
"""Share of a loss's variance that is its own: noise of the measurement, and what the key does not hold."""
LARGEST_LOSS = 0.4
"""Losses count as at most this (a ratio of 1.5), so that a kernel's few disasters do not outweigh its usual cases."""
NEAR = 0.3
"""Share of the entries around a call, weighted by their correlation, that must have timed a kernel; it is not predicted with less. A kernel
that was only tried where it is good would else look good everywhere."""
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of the dtypes that kinds name."""


class Ranker:
    """A table, ready to rank the kernels of any call. Nothing is computed before the first call that has no entry of its own."""

    def __init__(self, table: DispatchTable) -> None:
        self._table = table
        self._places = [(group.kinds, entry) for group in table.groups for entry in group.entries]
        self._exact = {_text(DispatchKey(entry.sizes, kinds, entry.traits)): entry for kinds, entry in self._places}
        self._fitted: _Fit | None = None

    def rank(self, key: DispatchKey) -> Ranking:
        """The kernels in the order that the table gives a call of `key`; none, and why, where it says nothing about such a call."""
        entry = self._exact.get(_text(key))
        if entry is not None:
            return Ranking(tuple(time.kernel for time in entry.times), f"{self._measured_on()}: {self._told(entry)}")
        if self._fitted is None:
            self._fitted = _Fit(self._places)
        return self._predicted(self._fitted, key)

    def _predicted(self, fit: _Fit, key: DispatchKey) -> Ranking:
        apart = fit.distances(key)
        nearest = sorted(range(len(apart)), key=lambda place: float(apart[place]))
        if not nearest or math.isinf(apart[nearest[0]]):
            return Ranking((), f"no measured case has such sizes: {_sizes(key.sizes)}")
        kinds, entry = self._places[nearest[0]]
        if apart[nearest[0]] > FURTHEST:
            where = f"{_apart(key, kinds, entry)}; distance {apart[nearest[0]]:.1f}"
            return Ranking((), f"the nearest measured case ({where}) is too far; {FURTHEST} is the limit")
        losses = fit.losses(apart)
        order = sorted(losses, key=lambda name: (losses[name], fit.mean(name), name))
        told = [f"{name} {math.expm1(losses[name]):.1%} behind the best" for name in order[:2]]
        near = [f"{self._told(one)} ({_apart(key, kinds, one)})" for kinds, one in (self._places[place] for place in nearest[:2])]
        why = f"predicted from {len(self._places)} cases {self._measured_on()}: {', then '.join(told)}; the nearest: {'; '.join(near)}"
        return Ranking(tuple(order), why)

    def _measured_on(self) -> str:
        return f"measured on {self._table.gpu} with Triton {self._table.triton}"

    def _told(self, entry: TableEntry) -> str:
        """One measurement, in words."""
        first, *others = entry.times
        then = f", then {_time(others[0])}" if others else ""
        runs = " and ".join(f"{run} at commit {self._table.runs[run].commit[:12] or 'unknown'}" for run in entry.runs)
        return f"{entry.case}: {_time(first)}{then}, in run {runs}"


class _Fit:
    """The entries as arrays, and each kernel's losses there, weighted so that a call's correlations give its prediction."""

    def __init__(self, places: Sequence[tuple[Mapping[str, Any], TableEntry]]) -> None:
        import numpy

        self._keys = [DispatchKey(entry.sizes, dict(kinds), entry.traits) for kinds, entry in places]
        self._sizes = sorted({name for key in self._keys for name in key.sizes})
        self._logs = numpy.array([[_log(key.sizes.get(name)) for name in self._sizes] for key in self._keys]).reshape(len(places), -1)
        related = _correlation(numpy.array([self.distances(key) for key in self._keys]).reshape(len(places), -1))
        self._weights: dict[str, tuple[Any, float, Any]] = {}
        timed = [losses_of(entry) for _, entry in places]
        for name in sorted({name for losses in timed for name in losses}):
            rows = numpy.array([row for row, losses in enumerate(timed) if name in losses])
            losses = numpy.array([min(LARGEST_LOSS, timed[row][name]) for row in rows])
            mean = float(losses.mean())
            noisy = related[numpy.ix_(rows, rows)] + NOISE * numpy.eye(len(rows))
            self._weights[name] = rows, mean, numpy.linalg.solve(noisy, losses - mean)

    def distances(self, key: DispatchKey) -> numpy.ndarray[Any, Any]:
        """From `key` to every entry; infinite where one names other sizes."""
        import numpy

        logs = numpy.array([_log(key.sizes.get(name)) for name in self._sizes])
        squares = ((self._logs - logs) ** 2).sum(axis=1)
        squares += [_unlike(key.kinds, one.kinds) + TRAIT**2 * (key.traits != one.traits) for one in self._keys]
        alike = [key.sizes.keys() == one.sizes.keys() for one in self._keys]
        return numpy.where(alike, numpy.sqrt(squares), math.inf)

    def losses(self, apart: numpy.ndarray[Any, Any]) -> dict[str, float]:
        """The predicted loss of each kernel that enough of the entries around the call have timed; at least 0."""
        related = _correlation(apart)
        near = {name: float(related[rows].sum() / related.sum()) for name, (rows, _, _) in self._weights.items()}
        least = min(NEAR, max(near.values()))
        return {
            name: max(0.0, mean + float(related[rows] @ weights))
            for name, (rows, mean, weights) in self._weights.items()
            if near[name] >= least
        }

    def mean(self, kernel: str) -> float:
        """The kernel's mean loss over the entries that timed it."""
        return self._weights[kernel][1]


def losses_of(entry: TableEntry) -> dict[str, float]:
    """By kernel, the logarithm of its time over the time of the entry's first kernel. At least 0: a faster one is faster by noise alone."""
    return {time.kernel: max(0.0, math.log(time.us / entry.times[0].us)) for time in entry.times}


def _correlation(apart: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    import numpy

    scaled = numpy.minimum(math.sqrt(3) * apart / REACH, 700.0)
    return (1 + scaled) * numpy.exp(-scaled)


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The square of the distance of two sets of kinds: 1 for each that differs, and TRAIT more where a dtype has another width."""
    unequal = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
    wide = [name for name in unequal if WIDTHS.get(str(one.get(name)), 0) != WIDTHS.get(str(other.get(name)), 0)]
    return len(unequal) + TRAIT**2 * sum(str(one.get(name)) in WIDTHS and str(other.get(name)) in WIDTHS for name in wide)


def _log(size: int | None) -> float:
    """Doublings; 0 (no heads of k) lies one doubling below 1."""
    return 0.0 if size is None else math.log2(max(size, 0.5))


def _text(key: DispatchKey) -> str:
    import msgspec

    return msgspec.json.encode((key.sizes, key.kinds), order="deterministic").decode()


def _apart(key: DispatchKey, kinds: Mapping[str, Any], entry: TableEntry) -> str:
    """In which sizes and kinds an entry differs from a call."""
    sizes = [f"{name} {size}" for name, size in entry.sizes.items() if key.sizes.get(name) != size]
    return ", ".join([*sizes, *(f"{name} {value}" for name, value in kinds.items() if key.kinds.get(name) != value)]) or "the same sizes"


def _time(time: KernelTime) -> str:
    return f"{time.kernel} {time.us:.2f} us [{time.low:.2f}, {time.high:.2f}]"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())
