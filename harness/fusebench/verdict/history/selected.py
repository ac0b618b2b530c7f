"""The part of a catalogue that a history reads, as a condition in SQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from .series import Figure

FIGURES = {Figure.SOL: "time_us / limit_us", Figure.SPEEDUP: "1 / speedup", Figure.RAW: "time_us"}
"""Each figure from the columns of a catalogue."""


class Selected(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a catalogue that a history reads."""

    suites: tuple[str, ...] = ()
    op: str | None = None
    """Names with commas between them, as `--op`; None for all."""
    kernel: str | None = None
    """Globs of kernel ids, with commas between them."""
    case: str | None = None
    since: datetime | None = None
    last: int | None = None
    figure: Figure = Figure.SOL

    def where(self) -> tuple[str, list[Any]]:
        """The condition in SQL, and its values."""
        parts, values = ["usable", f"isfinite({FIGURES[self.figure]})"], list[Any]()
        if self.suites:
            parts.append("list_contains(?, suite)")
            values.append(list(self.suites))
        if self.op is not None:
            parts.append("list_contains(?, op)")
            values.append(self.op.split(","))
        for column, globs in (("kernel", self.kernel), ("case", self.case)):
            spellings = [one for glob in (globs or "").split(",") if glob for one in _spellings(column, glob)]
            if spellings:
                parts.append("(" + " OR ".join(condition for condition, _ in spellings) + ")")
                values += [value for _, value in spellings]
        if self.since is not None:
            parts.append("created >= ?")
            values.append(self.since.astimezone(UTC).replace(tzinfo=None))
        return " AND ".join(parts), values


def _spellings(column: str, glob: str) -> list[tuple[str, str]]:
    """Conditions in SQL, with their values, for the spellings of a kernel id or a case that a glob may match."""
    glob = glob.replace("[!", "[^")
    if column == "case":
        return [('"case" GLOB ?', glob), ("suite || ':' || \"case\" GLOB ?", glob)]
    if not set(glob) & set("*?[") and "/" in glob and "@" in glob:
        return [("kernel = ?", glob)]
    return [("kernel GLOB ?", one) for one in (glob, f"*/{glob}", f"*/{glob}@*")]
