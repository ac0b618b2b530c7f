"""Tables for a terminal of any width: no word is broken, and no column becomes narrow and tall.

A table that fits is printed as it is.  A wider one wraps its prose at spaces.  Where that would leave a tall sliver, every row is printed
as a block instead: its first cell, then `column: value` lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.style import Style
    from rich.text import Text


GAP = "  "
NARROWEST = 24
"""Columns of text are not wrapped to fewer characters."""
MOST_LINES = 6
"""A cell with more lines makes the table a list of blocks."""


class FittedTable:
    """A table as a rich renderable, fitted to the width that it is printed at.  Cells are texts, or rich texts with a style."""

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, right: Collection[str] = (), title: str = ""
    ) -> None:
        self._columns, self._rows, self._right, self._title = list(columns), [list(row) for row in rows], frozenset(right), title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        if self._title:
            yield Text(self._title, style="bold", no_wrap=True, overflow="ignore")
        if not self._rows:
            return
        widths = self._widths(options.max_width)
        yield from self._blocks(options.max_width) if widths is None else self._table(widths)

    def _widths(self, limit: int) -> list[int] | None:
        """Width of every column; None if the table is better shown as blocks."""
        cells = [[str(row[place]) for row in self._rows] for place in range(len(self._columns))]
        natural = [max(len(title), *map(len, column)) for title, column in zip(self._columns, cells, strict=True)]
        spare = limit - len(GAP) * (len(natural) - 1)
        if sum(natural) <= spare:
            return natural
        least = [
            max(len(title), min(wide, NARROWEST), *(_longest_word(cell) for cell in column))
            if any(" " in cell for cell in column)
            else wide
            for title, column, wide in zip(self._columns, cells, natural, strict=True)
        ]
        if sum(least) > spare:
            return None
        widths = least
        while sum(widths) < spare and (short := [place for place, wide in enumerate(natural) if widths[place] < wide]):
            widths[max(short, key=lambda place: natural[place] / widths[place])] += 1
        tall = any(len(_wrapped(cell, wide)) > MOST_LINES for column, wide in zip(cells, widths, strict=True) for cell in column)
        return None if tall else widths

    def _table(self, widths: Sequence[int]) -> Iterator[Text]:
        from rich.text import Text

        yield self._line([(title, "") for title in self._columns], widths, style="bold")
        yield Text("─" * (sum(widths) + len(GAP) * (len(widths) - 1)), no_wrap=True, overflow="ignore")
        for row in self._rows:
            styles = [_style(cell) for cell in row]
            wrapped = [_wrapped(str(cell), wide) for cell, wide in zip(row, widths, strict=True)]
            for number in range(max(map(len, wrapped))):
                parts = [lines[number] if number < len(lines) else "" for lines in wrapped]
                yield self._line(list(zip(parts, styles, strict=True)), widths)

    def _line(self, cells: Sequence[tuple[str, str | Style]], widths: Sequence[int], style: str = "") -> Text:
        """A line of texts with their styles; neighbours of one style are one span, since each costs rich more than its characters."""
        from rich.text import Text

        spans: list[tuple[str, str | Style]] = []
        for title, (plain, own), wide in zip(self._columns, cells, widths, strict=True):
            aligned = (plain.rjust(wide) if title in self._right else plain.ljust(wide)) + GAP
            if spans and spans[-1][1] == own:
                aligned = spans.pop()[0] + aligned
            spans.append((aligned, own))
        spans[-1] = spans[-1][0].rstrip(), spans[-1][1]
        line = Text.assemble(*spans, style=style, no_wrap=True, overflow="ignore")
        line.rstrip()
        return line

    def _blocks(self, limit: int) -> Iterator[Text]:
        from rich.text import Text

        for row in self._rows:
            first, *others = zip(self._columns, row, strict=True)
            yield Text(str(first[1]) or f"{first[0] or '-'}", style="bold", no_wrap=True, overflow="ignore")
            for title, cell in others:
                if not str(cell):
                    continue
                head = f"  {title}: "
                for line in _wrapped(str(cell), max(limit, 40), head):
                    yield Text(line, style=_style(cell), no_wrap=True, overflow="ignore")


def _style(cell: str | Text) -> str | Style:
    return "" if isinstance(cell, str) else cell.style


def _wrapped(text: str, width: int, head: str = "") -> list[str]:
    """`text` in lines of whole words, the first after `head`, the others indented if there is one."""
    if len(head) + len(text) <= width:
        return [head + text]
    indent = "    " if head else ""
    return textwrap.wrap(text, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)
