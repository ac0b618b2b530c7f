"""Printing: tables for people, one JSON document for programs, remarks on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED_WIDTH = 10_000
"""Columns of a console that is no terminal: wider than any table, so that what is piped is never wrapped or cut."""


def console() -> Console:
    """A console on stdout that prints text unchanged: no markup, no emoji codes, no highlighting."""
    from .piped_console import PipedConsole

    width = None if sys.stdout.isatty() else UNLIMITED_WIDTH
    return PipedConsole(width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", right: Iterable[str] = ()) -> None:
    """Print a table with plain column headings; columns named in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table

    numeric = set(right)
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out = console()
    with out.capture() as captured:
        out.print(table)
    lines = (line.rstrip() for line in captured.get().split("\n"))
    typer.echo("\n".join(line for line in lines if line))


def print_json(document: Any) -> None:
    """Print `document` (msgspec structs allowed) as the one JSON document on stdout."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def remark(kind: str, message: object) -> None:
    """One line on stderr, `kind: message`, whatever line breaks the message holds."""
    typer.echo(f"{kind}: {' '.join(str(message).split())}", err=True)
