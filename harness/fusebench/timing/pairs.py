"""Pairs of arms to compare, judged from the samples of their common replicates while these are taken."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..errors import UsageError
from ..schema import CacheState, Finding, Sample, VerdictKind
from ..stats.paired import trimmed_mean
from ..stats.sequential import Plan, judge


class Pair(msgspec.Struct, frozen=True):
    """Two arms of one case: how much longer does `new` (head) take than `old` (base)?"""

    name: str
    """Unique within a case."""
    new: str
    """Name of the head arm, the numerator: a ratio of 1.02 means that it is 2 % slower."""
    old: str


def in_same_buffers(cache: CacheState) -> bool:
    """Whether the arms of a pair share buffers: yes when cold.  Warm, an arm would find the other arm's data in the cache.

    A/A log ratios scatter between placements by 0.4 to 2.4 % in separate buffers, and by 0.5 to 1.2 % in shared ones, which equals the
    scatter of their rounds (seven kernels of 5 to 30 us on an H200, 60 placements of 20 rounds).  Kernels that walk their data differently
    gain nothing by shared buffers.
    """
    return cache is CacheState.COLD


def buffer_groups(names: Iterable[str], pairs: Sequence[Pair]) -> dict[str, str]:
    """By arm name, the arm that gives its buffer group the name: pairs join arms into one group, directly or through others."""
    groups = {name: name for name in names}
    for pair in pairs:
        kept, given_up = groups[pair.old], groups[pair.new]
        groups.update({name: kept for name, group in groups.items() if group == given_up})
    return groups


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one pair over its replicates."""

    name: str
    logs: tuple[float, ...]
    """Natural logarithm of new over old, one per replicate with both arms, in the order of measurement."""
    new_us: float
    """Geometric mean over these replicates of the arm's trimmed means, in microseconds."""
    old_us: float
    launches: int
    """Device activities of one call of the old arm, equal in every call; 0 if the timer cannot see them."""
    finding: Finding
    """`undecided` where the deadline or the last look ended the pair."""


class Judge:
    """Follows the pairs of one case from replicate to replicate; a decided pair stays decided."""

    def __init__(self, pairs: Sequence[Pair], looks: Plan, trim: float) -> None:
        """`trim`: share of a replicate's samples cut from each end.

        Raises:
            UsageError: two pairs share a name.
        """
        if len({pair.name for pair in pairs}) < len(pairs):
            raise UsageError(f"the pairs {', '.join(pair.name for pair in pairs)} do not differ in name; give each a name of its own")
        self._pairs, self._looks, self._trim = tuple(pairs), looks, trim
        self._logs: dict[str, list[tuple[float, float]]] = {pair.name: [] for pair in pairs}
        self._findings: dict[str, Finding] = {}
        self._launches: dict[str, int] = {}
        self._dropped: set[str] = set()

    @property
    def open(self) -> list[Pair]:
        """Pairs that need more replicates."""
        return [pair for pair in self._pairs if pair.name not in self._dropped and not self._settled(pair)]

    @property
    def over(self) -> bool:
        """Whether no pair needs more replicates."""
        return not self.open

    @property
    def replicates(self) -> int:
        """The largest number of replicates."""
        return self._looks.looks[-1]

    def drop(self, names: Iterable[str]) -> None:
        """Measure these pairs no further."""
        self._dropped.update(names)

    def idle_arms(self) -> set[str]:
        """Arms that only settled pairs name."""
        wanted = {arm for pair in self.open for arm in (pair.new, pair.old)}
        return {arm for pair in self._pairs for arm in (pair.new, pair.old)} - wanted

    def add(self, samples: Sequence[Sample]) -> None:
        """Add one replicate."""
        logs = replicate_logs(samples, self._trim)
        self._launches.update((sample.arm, sample.kernels) for sample in samples)
        for pair in self.open:
            self._logs[pair.name].append((logs[pair.new], logs[pair.old]))
            count = len(self._logs[pair.name])
            if count in self._looks.looks:
                self._findings[pair.name] = self._finding(pair)

    def compared(self) -> dict[str, Compared]:
        """The results of all pairs with a replicate, in their order."""
        return {pair.name: self._compared(pair) for pair in self._pairs if self._logs[pair.name]}

    def _settled(self, pair: Pair) -> bool:
        found = self._findings.get(pair.name)
        return found is not None and (found.kind is not VerdictKind.UNDECIDED or found.next_look is None)

    def _finding(self, pair: Pair) -> Finding:
        taken = self._logs[pair.name]
        return judge([new - old for new, old in taken], _mean_us([old for _, old in taken]), self._looks)

    def _compared(self, pair: Pair) -> Compared:
        taken = self._logs[pair.name]
        return Compared(
            name=pair.name,
            logs=tuple(new - old for new, old in taken),
            new_us=_mean_us([new for new, _ in taken]),
            old_us=_mean_us([old for _, old in taken]),
            launches=self._launches[pair.old],
            finding=self._findings[pair.name] if self._settled(pair) else self._finding(pair),
        )


class FixedLength:
    """The same number of replicates for every arm."""

    def __init__(self, replicates: int) -> None:
        self.replicates = replicates
        self._taken = 0

    @property
    def over(self) -> bool:
        return self._taken >= self.replicates

    def idle_arms(self) -> set[str]:
        """No arm: every speedup is relative to the baseline of its own replicate."""
        return set()

    def add(self, samples: Sequence[Sample]) -> None:
        """Add one replicate."""
        self._taken += 1


class Lengths(FixedLength):
    """A number of replicates for each pair; the measurement ends with the longest."""

    def __init__(self, pairs: Sequence[Pair], lengths: Mapping[str, int]) -> None:
        """`lengths`: replicates of every pair, by its name.

        Raises:
            UsageError: a pair has no length, or one below 1.
        """
        wrong = [pair.name for pair in pairs if lengths.get(pair.name, 0) < 1]
        if wrong or not pairs:
            raise UsageError(f"found lengths {dict(lengths)!r}; expected 1 or more replicates for each of the pairs {wrong or 'measured'}")
        super().__init__(max(lengths[pair.name] for pair in pairs))
        self._pairs, self._lengths = tuple(pairs), lengths

    def idle_arms(self) -> set[str]:
        """Arms that belong only to pairs with all their replicates."""
        wanted = {arm for pair in self._pairs if self._taken < self._lengths[pair.name] for arm in (pair.new, pair.old)}
        return {arm for pair in self._pairs for arm in (pair.new, pair.old)} - wanted


def replicate_logs(samples: Iterable[Sample], trim: float) -> dict[str, float]:
    """By arm, the natural logarithm of the trimmed mean in nanoseconds of one replicate; `trim` is the share cut from each end."""
    spans: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        spans[sample.arm].append(float(sample.span_ns))
    return {arm: math.log(trimmed_mean(values, trim)) for arm, values in spans.items()}


def pair_logs(samples: Iterable[Sample], pair: Pair, trim: float) -> list[float]:
    """Log ratios of the pair in a measurement of fixed length, one per replicate with both arms, in order."""
    by_replicate: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        by_replicate[sample.process, sample.replicate].append(sample)
    replicates = [replicate_logs(by_replicate[number], trim) for number in sorted(by_replicate)]
    return [logs[pair.new] - logs[pair.old] for logs in replicates if pair.new in logs and pair.old in logs]


def _mean_us(logs_ns: Sequence[float]) -> float:
    return math.exp(math.fsum(logs_ns) / len(logs_ns)) / 1e3
