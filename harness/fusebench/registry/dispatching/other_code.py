"""Times in a dispatch table that were measured with other code than today's, by the digests of the kernels' sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...schema.dispatch import DispatchTable, TableEntry
from .code_digest import code_digest
from .tables import FOLDER, TableRefusedError, read_table


class Measured(NamedTuple):
    """The entries that timed one kernel."""

    kernel: str
    """`name@version`."""
    entries: int
    other: int
    """Those of which a run measured another source than today's."""
    unknown: int
    """Those whose runs' source is not known, or today's is not; not counted in `other`."""
    runs: tuple[str, ...]
    """Ids of the runs that measured another source."""


def code_today(op: str, kernels: Iterable[str], roots: Sequence[Path]) -> dict[str, str]:
    """The digests of today's sources of these kernels (`name@version`), without those that cannot be read."""
    found: dict[str, str] = {}
    for name in kernels:
        try:
            digest = code_digest(f"{op}/{name}", roots)
        except (SyntaxError, OSError, UnicodeDecodeError):
            continue
        found |= {name: digest} if digest else {}
    return found


def compared_code(table: DispatchTable, entries: Sequence[TableEntry], today: Mapping[str, str]) -> list[Measured]:
    """For each kernel that `entries` of `table` time, how many of them were measured with other code.

    Args:
        today: `code_today` of these kernels.
    """
    names = sorted({time.kernel for entry in entries for time in entry.times})
    found = []
    for name in names:
        timed = [entry for entry in entries if any(time.kernel == name for time in entry.times)]
        differing = {
            run for run, source in table.runs.items() if name in source.code and name in today and source.code[name] != today[name]
        }
        other = [entry for entry in timed if differing.intersection(entry.runs)]
        unknown = [
            entry
            for entry in timed
            if entry not in other and (name not in today or not _source_known(name, [table.runs[run].code for run in entry.runs]))
        ]
        runs = sorted(differing.intersection(run for entry in other for run in entry.runs))
        found.append(Measured(name, len(timed), len(other), len(unknown), tuple(runs)))
    return found


def _source_known(name: str, codes: Sequence[Mapping[str, str]]) -> bool:
    """Whether the runs of an entry tell the source of a kernel; some may have timed other kernels alone."""
    return all(codes) and any(name in code for code in codes)


def told(found: Iterable[Measured]) -> str:
    """Which kernels were measured with other code, in words; empty if none was."""
    alike: dict[tuple[int, int, tuple[str, ...]], list[str]] = {}
    for one in found:
        if one.other:
            alike.setdefault((one.other, one.entries, one.runs), []).append(one.kernel)
    changed = [
        f"{', '.join(names)} since run {' and run '.join(runs)}" + (f" ({other} of {entries} cases)" if entries > 1 else "")
        for (other, entries, runs), names in alike.items()
    ]
    if not changed:
        return ""
    return f"measured with other code: the source has changed of {'; of '.join(changed)}; the machine code of a case may be the same"


class CheckedTable(NamedTuple):
    """One table, compared with today's sources."""

    op: str
    file: Path
    kernels: tuple[Measured, ...]
    refused: str = ""
    """Why the table cannot be read; empty if it can."""


def check_tables(ops: Iterable[str], roots: Sequence[Path]) -> list[CheckedTable]:
    """Every table of these ops in `roots`, of every GPU model and Triton."""
    found = []
    for op in ops:
        for file in (file for root in roots for file in sorted((root / op / FOLDER).glob("*.json"))):
            try:
                table = read_table(file)
            except TableRefusedError as error:
                found.append(CheckedTable(op, file, (), str(error)))
                continue
            today = code_today(op, {time.kernel for entry in table.entries for time in entry.times}, roots)
            found.append(CheckedTable(op, file, tuple(compared_code(table, table.entries, today))))
    return found
