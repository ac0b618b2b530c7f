"""Nsight Compute's raw page as CSV: a row per launch, a column per metric, and a row of units between the names and the values.

Values are read in this way only.  Nsight Compute's Python module would give the same numbers, but not every installation has it, while
every one has `ncu --import … --page raw --csv`.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable

from ..errors import FusebenchError
from ..schema import ExitCode
from .records import Launch

_TIME_NS = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_PREFIXED = re.compile(r"(?P<prefix>[kmgtp]?)(?P<unit>bytes?|hz)", re.IGNORECASE)
_NAME, _GRID, _BLOCK = "Kernel Name", "Grid Size", "Block Size"


class CounterTableError(FusebenchError):
    """Nsight Compute printed another table than expected."""

    exit_code = ExitCode.KERNEL_FAILED


def parse_raw_page(text: str, keep: Callable[[str], bool]) -> tuple[Launch, ...]:
    """The launches of `text`, in order, with the numeric metrics whose name `keep` accepts, in base units.

    Lines before the table (`==PROF== …`) are skipped.  A cell without a number (empty, a word, nan) gives its launch no metric.

    Raises:
        CounterTableError: there is no table, or one of its rows is cut short.
    """
    lines = text.splitlines(keepends=True)
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = " ".join(text.split())[-500:]
        raise CounterTableError(
            f'Nsight Compute printed no table of metrics; expected a line that starts with "ID", found {said or "nothing"}'
        )
    try:
        rows = list(csv.reader(io.StringIO("".join(lines[start:]))))
    except csv.Error as error:
        raise CounterTableError(f"Nsight Compute's table is no CSV: {error}") from error
    names, units, launches = rows[0], rows[1] if len(rows) > 1 else [], [row for row in rows[2:] if row]
    absent = [name for name in (_NAME, _GRID, _BLOCK) if name not in names]
    if absent or len(units) != len(names):
        problem = f"lacks {', '.join(absent)}" if absent else f"has {len(names)} names and {len(units)} units"
        raise CounterTableError(f"Nsight Compute's table {problem}; this version's raw page is not known to fusebench")
    columns = [
        (place, name, unit_factor(unit)) for place, (name, unit) in enumerate(zip(names, units, strict=True)) if "__" in name and keep(name)
    ]
    for number, row in enumerate(launches):
        if len(row) != len(names):
            raise CounterTableError(
                f"row {number + 1} of Nsight Compute's table has {len(row)} cells, expected {len(names)}: it was cut short"
            )
    at = {name: names.index(name) for name in (_NAME, _GRID, _BLOCK)}
    return tuple(
        Launch(
            name=row[at[_NAME]],
            grid=_extent(row[at[_GRID]]),
            block=_extent(row[at[_BLOCK]]),
            metrics={name: value * factor for place, name, factor in columns if (value := number_in(row[place])) is not None},
        )
        for row in launches
    )


def number_in(cell: str) -> float | None:
    """The number in a cell, thousands separated by commas; None for anything else."""
    try:
        value = float(cell.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def unit_factor(unit: str) -> float:
    """The factor from `unit` to base units: nanoseconds, bytes, hertz; per second for a rate.

    `Mbyte` and `Tbyte/s` are decimal.  Counts (`inst`, `sector`, `warp`) and shares (`%`) have a factor of 1.
    """
    numerator, *denominators = unit.split("/")
    factor = _part_factor(numerator)
    for denominator in denominators:
        in_ns = _TIME_NS.get(denominator)
        factor /= in_ns / _TIME_NS["s"] if in_ns is not None else _part_factor(denominator)
    return factor


def _part_factor(part: str) -> float:
    if part in _TIME_NS:
        return _TIME_NS[part]
    match = _PREFIXED.fullmatch(part)
    return _PREFIXES[match["prefix"].lower()] if match else 1.0


def _extent(cell: str) -> tuple[int, int, int]:
    """The three sizes in a cell such as `(4096, 1, 1)`."""
    try:
        numbers = [int(number) for number in re.findall(r"\d+", cell)]
    except ValueError as error:  # Python converts 4300 digits at most
        raise CounterTableError(f"a grid or a block of {len(cell)} characters, expected three numbers: {error}") from error
    if len(numbers) != 3:
        raise CounterTableError(f"Nsight Compute's table: a size of {cell!r}, expected three numbers such as (4096, 1, 1)")
    return numbers[0], numbers[1], numbers[2]
