"""Printing: tables for people, one JSON document for programs, remarks on stderr."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ...runner.session import Outcome

UNLIMITED_WIDTH = 10_000
"""Columns of a console that is no terminal: wider than any table, so that piped output is never wrapped or cut."""
PIPED_WIDTH = 160
"""Columns of sentences, and of tables of sentences, where stdout is no terminal."""


def console(piped: int | None = None) -> Console:
    """A console on stdout that prints text unchanged: no markup, no emoji codes, no highlighting; `piped` columns where there is no
    terminal."""
    from .piped_console import PipedConsole

    width = None if sys.stdout.isatty() else piped or UNLIMITED_WIDTH
    return PipedConsole(width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", right: Iterable[str] = (), piped: int | None = None
) -> None:
    """Print a table with plain column headings; columns named in `right` are aligned to the right.  Elsewhere than on a terminal its lines
    are `piped` characters long at most."""
    from ...report.escape import cleaned
    from ...report.terminal import FittedTable

    out = console(piped)
    with out.capture() as captured:
        out.print(FittedTable(columns, cleaned([list(row) for row in rows]), title=title, right=tuple(right)), crop=False)
    typer.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def print_json(document: Any) -> None:
    """Print `document` (msgspec structs allowed) as the one JSON document on stdout."""
    import msgspec

    from ...report.escape import json_document

    typer.echo(json_document(msgspec.json.format(msgspec.json.encode(document), indent=2).decode()))


def remark(kind: str, message: object) -> None:
    """Print `kind: message` as one line on stderr, without the message's line breaks."""
    from ...report.escape import text

    typer.echo(f"{kind}: {text(' '.join(str(message).split()))}", err=True)


@contextmanager
def patience(doing: str) -> Iterator[None]:
    """On a terminal, say what is being done while the block takes longer than a second."""
    if not sys.stderr.isatty():
        yield
        return
    said = threading.Event()

    def say() -> None:
        said.set()
        typer.echo(f"{doing} ...", nl=False, err=True)

    timer = threading.Timer(1.0, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if said.is_set():
            typer.echo("\r\x1b[2K", nl=False, err=True)


def command_line() -> str:
    """The command line, as it can be pasted."""
    return shlex.join(["fusebench", *sys.argv[1:]])


def say_what_is_kept(outcome: Outcome[Any], *, resume: bool = False) -> None:
    """Say on stderr which part of an interrupted measurement is kept, if any is; with `resume`, the command that goes on with it."""
    from ...store.files import resume_command

    if outcome.folder is not None:
        remark("note", f"interrupted; {outcome.kept}, in {outcome.folder}")
        if resume:
            remark("note", f"go on with it by: {resume_command(outcome.record.command, outcome.folder)}")
