"""The plan of a run on several boards: how long each case takes, and which shard measures it.

Cases of equal work stay together, since one of them is measured and the others take its results.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..errors import RunRecordError, UsageError
from ..runner.case_kernels import Kernels
from ..schema import Case, Run
from ..store.finding import run_folders
from ..store.run_folder import read_run

START_S = 3.0
"""Seconds of a case of few bytes, where no stored run knows better: a nightly of 142 cases takes an H200 12 minutes."""
MOST_READ = 5
"""Stored runs that are looked at for the seconds of their cases."""
SECONDS_PER_GB = 8.0
"""Seconds more per 1e9 bytes that its op must move: inputs are made, checked in float64 and moved in all rounds."""
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


def works_of(cases: Sequence[Case], collection: Kernels) -> dict[Hashable, list[Case]]:
    """The cases by their work, in their order."""
    found: dict[Hashable, list[Case]] = defaultdict(list)
    for case in cases:
        found[case.op, collection.op(case.op, where=f"case {case.key}").facts(case.params).params].append(case)
    return found


def expected_seconds(cases: Sequence[Case], collection: Kernels, known: Run | None) -> dict[str, float]:
    """By key, the seconds that a case is expected to take: as `known`, a stored run, measured it, else by its bytes."""
    measured: Mapping[str, float] = {
        one.case.key: one.seconds for one in (known.cases if known is not None else ()) if one.seconds is not None and not one.same_as
    }

    def by_bytes(case: Case) -> float:
        return START_S + SECONDS_PER_GB * collection.op(case.op).facts(case.params).minimum_bytes / 1e9

    return {case.key: measured.get(case.key) or by_bytes(case) for case in cases}


def cases_of_shard(shard: Shard, cases: Sequence[Case], collection: Kernels, known: Run | None) -> tuple[Case, ...]:
    """The cases of one shard, in their order.  Every host gets the same parts from the same sources and baseline.

    The longest work goes first, each to the shard that has least to do.

    Raises:
        UsageError: there are more shards than different cases.
    """
    works = works_of(cases, collection)
    if shard.parts > len(works):
        raise UsageError(f"--shard {shard}: the selection holds {len(works)} different cases, so some parts would be empty")
    seconds = expected_seconds(cases, collection, known)
    ordered = sorted(works.values(), key=lambda same: (-seconds[same[0].key], same[0].key))
    parts = dealt(ordered, [seconds[same[0].key] for same in ordered], shard.parts)
    mine = {case.key for same in parts[shard.number - 1] for case in same}
    return tuple(case for case in cases if case.key in mine)


def dealt(items: Sequence[T], seconds: Sequence[float], parts: int) -> list[list[T]]:
    """The items, which come longest first, in `parts` of about the same length: each goes to the part that has least to do."""
    found: list[list[T]] = [[] for _ in range(parts)]
    loads = [0.0] * parts
    for item, length in zip(items, seconds, strict=True):
        place = loads.index(min(loads))
        found[place].append(item)
        loads[place] += length
    return found


def newest_run(runs: Path, device_name: str) -> Run | None:
    """The newest readable run of the device model in the folder `runs`, by which leases are planned where there is no baseline."""
    for folder in reversed(run_folders(runs)[-MOST_READ:]):
        with suppress(RunRecordError):
            found = read_run(folder)
            if found.environment.device_name == device_name and any(one.seconds is not None for one in found.cases):
                return found
    return None
