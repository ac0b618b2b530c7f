"""Which kernels a dispatch table puts first for a call: those measured at the same key, or those predicted from all its entries.

The prediction is a Gaussian process (kriging) over the distance of two keys, one per kernel. Its constants were compared on 397 random
shapes of the H200, each predicted by the other cases. Chosen on the ops of other families, out of 324 settings, they gave 70 % within 1.02
of the best kernel; the settings gave 65 to 71 %. On shapes drawn afterwards, which an H200 ran, they gave 76 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...schema.dispatch import DispatchKey, DispatchTable, KernelTime, TableEntry
from ...schema.kernels import CHOICE_MARK
from .tables import Ranking

if TYPE_CHECKING:
    import numpy

REACH = 3.0
"""Distance at which the correlation of two losses has fallen to 0.48 (Matern 3/2)."""
FURTHEST = 5.0
"""Distance beyond which an entry says nothing about a call. Each entry of the H200's tables has another one within it."""
KIND = 1.5
"""How far an unequal kind lies apart. A size lies as many standard deviations apart as its doublings make among the table's entries."""
TRAIT = 3.0
"""How far an unequal trait lies apart, and how much farther dtypes of other widths do."""
LEAST_DEVIATION = 1.0
"""Standard deviation of a size, in doublings, that is taken at least: all entries of a table may have the same size."""
NOISE = 0.08
"""Share of a loss's variance that is its own: noise of the measurement, and what the key does not hold."""
CLOSE_LOSS = 0.05
"""Loss from which losses are compressed: they count as `CLOSE_LOSS * log(1 + loss / CLOSE_LOSS)`. Which kernel is best is decided by small
losses, and the prediction of small ones must not follow a kernel's few disasters."""
COMMON = 0.7
"""Share of the entries that must have timed a kernel for losses to be counted from it. Older entries lack newer kernels; counted from an
entry's best kernel of all, the older kernels would look worse where a newer one was timed: 69 % of the choices are then within 1.02,
and the worst of the suites is 2.25x."""
NEAR = 0.3
"""Share of the entries around a call, weighted by their correlation, that must have timed a kernel; it is not predicted with less. A kernel
that was only tried where it is good would else look good everywhere.  See `_Fit._asked` for which entries are asked."""
CHOICE_LEAD = 0.01
"""A choice of tiles counts as so much slower than it is predicted, so that it is taken where it is ahead by that: a table names a measured
one by the same rule. Of the H200's suites' cases, each by the other cases, dispatch is within 1.02 of the best on 78 % so, on 76 % with
choices only where they were measured, and on 77 % without a lead; of its random shapes on 66, 65 and 68 %."""
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of the dtypes that kinds name."""


class Ranker:
    """A table, ready to rank the kernels of any call. Nothing is computed before the first call that has no entry of its own."""

    def __init__(self, table: DispatchTable) -> None:
        self.table = table
        self._places = [(group.kinds, entry) for group in table.groups for entry in group.entries]
        self._exact = {_text(DispatchKey(entry.sizes, kinds, entry.traits)): entry for kinds, entry in self._places}
        self._fitted: _Fit | None = None

    def measured(self, key: DispatchKey) -> TableEntry | None:
        """The call's own entry; None without one."""
        return self._exact.get(_text(key))

    def rank(self, key: DispatchKey) -> Ranking:
        """The kernels in the order that the table gives a call of `key`; none, and why, where it says nothing about such a call."""
        entry = self.measured(key)
        if entry is not None:
            return Ranking(tuple(time.kernel for time in entry.times), f"{self._measured_on()}: {self._told(entry)}", (entry,))
        fit = self._fit()
        return self._predicted(fit, key, fit.distances(key))

    def rank_by_others(self, entry: TableEntry) -> Ranking:
        """The kernels in the order that the other entries give a call of the key of `entry`, which is one of the table's."""
        fit = self._fit()
        place = next(place for place, (_, one) in enumerate(self._places) if one is entry)
        return self._predicted(fit, fit.keys[place], fit.between[place], left_out=place)

    def _fit(self) -> _Fit:
        if self._fitted is None:
            self._fitted = _Fit(self._places)
        return self._fitted

    def _predicted(self, fit: _Fit, key: DispatchKey, apart: numpy.ndarray[Any, Any], left_out: int | None = None) -> Ranking:
        """
        Args:
            apart: distances of the entries.
            left_out: place of an entry that does not count.
        """
        nearest = [place for place in sorted(range(len(apart)), key=apart.__getitem__) if place != left_out]
        if not nearest or math.isinf(apart[nearest[0]]):
            return Ranking((), f"no measured case has such sizes: {_sizes(key.sizes)}")
        kinds, entry = self._places[nearest[0]]
        if apart[nearest[0]] > FURTHEST:
            where = f"{_apart(key, kinds, entry)}; distance {apart[nearest[0]]:.1f}"
            return Ranking((), f"the nearest measured case ({where}) is too far; {FURTHEST} is the limit")
        losses = fit.losses(key, apart, left_out)
        order = sorted(losses, key=lambda name: (losses[name], fit.mean(name), name))
        behind = [(name, _expanded(losses[name]) - _expanded(losses[order[0]])) for name in order[1:2]]
        told = [order[0], *(f"{name} {100 * math.expm1(loss):.1f} % behind it" for name, loss in behind)]
        near = [f"{self._told(one)} ({_apart(key, kinds, one)})" for kinds, one in (self._places[place] for place in nearest[:2])]
        why = f"predicted from {len(self._places)} cases {self._measured_on()}: {', then '.join(told)}; the nearest: {'; '.join(near)}"
        return Ranking(tuple(order), why, tuple(one for place, (_, one) in enumerate(self._places) if place != left_out))

    def _measured_on(self) -> str:
        return f"measured on {self.table.gpu} with Triton {self.table.triton}"

    def _told(self, entry: TableEntry) -> str:
        """One measurement, in words."""
        first, *others = entry.times
        then = f", then {_time(others[0])}" if others else ""
        runs = " and ".join(f"run {run} at commit {self.table.runs[run].commit[:12] or 'unknown'}" for run in entry.runs)
        return f"{entry.case}: {_time(first)}{then}, in {runs}"


class _Weights(NamedTuple):
    """Of one kernel: what a call's correlations with `rows` are multiplied by, and added to."""

    rows: numpy.ndarray[Any, Any]
    mean: float
    weights: numpy.ndarray[Any, Any]


class _Fit:
    """The entries as arrays, and each kernel's compressed losses there, weighted so that a call's correlations give its prediction."""

    def __init__(self, places: Sequence[tuple[Mapping[str, Any], TableEntry]]) -> None:
        import numpy

        self.keys = [DispatchKey(entry.sizes, dict(kinds), entry.traits) for kinds, entry in places]
        self._sizes = sorted({name for key in self.keys for name in key.sizes})
        self._logs = numpy.array([self._logs_of(key) for key in self.keys]).reshape(len(places), -1)
        self._deviations = numpy.maximum(self._logs.std(axis=0), LEAST_DEVIATION)
        self.between = numpy.array([self.distances(key) for key in self.keys]).reshape(len(places), -1)
        counts = Counter(time.kernel for _, entry in places for time in entry.times)
        self._common = {name for name, count in counts.items() if count >= COMMON * len(places)}
        timed = [losses_of(entry, self._common) for _, entry in places]
        self._timed = {name: _compressed(numpy.array([losses.get(name, math.nan) for losses in timed])) for name in sorted(counts)}
        self._solved = {name: self._solve(losses, None) for name, losses in self._timed.items()}

    def _solve(self, losses: numpy.ndarray[Any, Any], left_out: int | None) -> _Weights:
        import numpy

        rows = numpy.array([row for row in numpy.flatnonzero(~numpy.isnan(losses)) if row != left_out], dtype=int)
        mean = float(losses[rows].mean()) if len(rows) else math.inf
        noisy = _correlation(self.between[numpy.ix_(rows, rows)]) + NOISE * numpy.eye(len(rows))
        return _Weights(rows, mean, numpy.linalg.solve(noisy, losses[rows] - mean))

    def distances(self, key: DispatchKey) -> numpy.ndarray[Any, Any]:
        """From `key` to every entry, in standard deviations of a size; infinite where one names other sizes."""
        import numpy

        squares = (((self._logs - self._logs_of(key)) / self._deviations) ** 2).sum(axis=1)
        squares += [_unlike(key.kinds, one.kinds) + TRAIT**2 * len({*key.traits} ^ {*one.traits}) for one in self.keys]
        alike = [key.sizes.keys() == one.sizes.keys() for one in self.keys]
        return numpy.where(alike, numpy.sqrt(squares), math.inf)

    def losses(self, key: DispatchKey, apart: numpy.ndarray[Any, Any], left_out: int | None = None) -> dict[str, float]:
        """The predicted compressed loss, of the common kernels at least 0, of each kernel that enough entries around the call timed; of a
        choice with CHOICE_LEAD."""
        related = _correlation(apart)
        if left_out is None:
            solved = self._solved
        else:
            related[left_out] = 0.0
            solved = {name: self._solve(losses, left_out) for name, losses in self._timed.items()}
        call = self._logs_of(key)
        near = {name: float(related[one.rows].sum() / related[self._asked(call, one.rows)].sum()) for name, one in solved.items()}
        least = min(NEAR, max(near.values()))
        found = {name: one.mean + float(related[one.rows] @ one.weights) for name, one in solved.items() if near[name] >= least}
        found = {name: max(0.0, loss) if name in self._common else loss for name, loss in found.items()}
        return {name: loss + CHOICE_LEAD * (CHOICE_MARK in name) for name, loss in found.items()}

    def _logs_of(self, key: DispatchKey) -> numpy.ndarray[Any, Any]:
        """Doublings of each size that the entries name."""
        import numpy

        return numpy.array([_log(key.sizes.get(name)) for name in self._sizes])

    def _asked(self, call: numpy.ndarray[Any, Any], rows: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
        """Which entries count for whether a kernel that `rows` timed was tried around a call: for a call of sizes among which it was timed,
        those of such sizes, else all.  A kernel made for few rows was not tried with many, and need not be."""
        import numpy

        timed = self._logs[rows]
        low, high = timed.min(axis=0, initial=math.inf), timed.max(axis=0, initial=-math.inf)

        def among(logs: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
            inside: numpy.ndarray[Any, Any] = ((low <= logs) & (logs <= high)).all(axis=-1)
            return inside

        return among(self._logs) if among(call) else numpy.ones(len(self.keys), dtype=bool)

    def mean(self, kernel: str) -> float:
        """The kernel's mean loss, compressed, over the entries that timed it."""
        return self._solved[kernel].mean


def losses_of(entry: TableEntry, common: Collection[str]) -> dict[str, float]:
    """By kernel, the logarithm of its time over the best time of the `common` kernels; over the best of all where none of them was timed.

    A kernel that is faster than the entry's first one counts as equal to it: it is faster by noise alone.
    """
    behind = {time.kernel: max(0.0, math.log(time.us / entry.times[0].us)) for time in entry.times}
    best = min((loss for kernel, loss in behind.items() if kernel in common), default=0.0)
    return {kernel: loss - best for kernel, loss in behind.items()}


def _compressed(losses: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """See `CLOSE_LOSS`; of either sign."""
    import numpy

    found: numpy.ndarray[Any, Any] = numpy.copysign(CLOSE_LOSS * numpy.log1p(numpy.abs(losses) / CLOSE_LOSS), losses)
    return found


def _expanded(loss: float) -> float:
    """The loss of which `loss` is compressed."""
    return math.copysign(CLOSE_LOSS * math.expm1(abs(loss) / CLOSE_LOSS), loss)


def _correlation(apart: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    import numpy

    scaled = numpy.minimum(math.sqrt(3) * apart / REACH, 700.0)
    return (1 + scaled) * numpy.exp(-scaled)


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The square of the distance of two sets of kinds, each that differs KIND away, and TRAIT farther where a dtype has another width."""
    unequal = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
    wide = [name for name in unequal if WIDTHS.get(str(one.get(name)), 0) != WIDTHS.get(str(other.get(name)), 0)]
    return KIND**2 * len(unequal) + TRAIT**2 * sum(str(one.get(name)) in WIDTHS and str(other.get(name)) in WIDTHS for name in wide)


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
