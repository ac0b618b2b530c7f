"""The plan of a run on several boards: which shard measures a case.

Cases of equal work stay together, since one of them is measured and the others take its results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from ..errors import UsageError
from ..runner.case_kernels import Kernels
from ..schema import Case, Run

T = TypeVar("T")
_SHARD = re.compile(r"(\d{1,4})/(\d{1,4})")


class Shard(NamedTuple):
    """One of the parts of a selection."""

    number: int
    """From 1."""
    parts: int

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"


def parse_shard(text: str) -> Shard:
    """`2/4`: the second of four parts.

    Raises:
        UsageError: another form, or a part that does not exist.
    """
    match = _SHARD.fullmatch(text)
    if match is None:
        raise UsageError(f"--shard {text!r}: expected I/N, such as 2/4 for the second of four parts")
    shard = Shard(int(match[1]), int(match[2]))
    if not 1 <= shard.number <= shard.parts:
        raise UsageError(f"--shard {text}: there is no such part; the parts are 1/{shard.parts} to {shard.parts}/{shard.parts}")
    return shard


def cases_of_shard(shard: Shard, cases: Sequence[Case], collection: Kernels, known: Run | None) -> tuple[Case, ...]:
    """The cases of one shard, in their order.  Every host gets the same parts from the same sources and baseline.

    The longest work goes first, each to the shard that has least to do.

    Raises:
        UsageError: there are more shards than different cases.
    """
    from ..runner.run.reckoning import expected_seconds, works_of  # here, so that a refused command line imports no numpy

    works = works_of(cases, collection)
    if shard.parts > len(works):
        raise UsageError(f"--shard {shard}: the selection holds {len(works)} different cases, so some parts would be empty")
    seconds = expected_seconds(cases, collection, known)
    ordered = sorted(works.values(), key=lambda same: (-seconds[same[0].key], same[0].key))
    parts = _dealt(ordered, [seconds[same[0].key] for same in ordered], shard.parts)
    mine = {case.key for same in parts[shard.number - 1] for case in same}
    return tuple(case for case in cases if case.key in mine)


def _dealt(items: Sequence[T], seconds: Sequence[float], parts: int) -> list[list[T]]:
    """The items, which come longest first, in `parts` of about the same length: each goes to the part that has least to do."""
    found: list[list[T]] = [[] for _ in range(parts)]
    loads = [0.0] * parts
    for item, length in zip(items, seconds, strict=True):
        place = loads.index(min(loads))
        found[place].append(item)
        loads[place] += length
    return found
