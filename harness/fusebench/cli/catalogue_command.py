"""`fusebench catalogue`: the runs of a folder or store of results, as rows to query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .shared.options import JsonOption
from .shared.output import print_json, print_table, remark
from .shared.results import Results, ResultsOption, open_results

if TYPE_CHECKING:
    from ..schema import Run
    from ..store.catalogue.files import Files
    from ..store.catalogue.query import Catalogue

catalogue = typer.Typer(help="Show, query, publish and restore the runs of a folder or store of results.", no_args_is_help=True)

_OVERVIEW = """
SELECT device, count(DISTINCT run), count(*), count(DISTINCT board), min(created), max(created), arg_max(run, (created, run)),
       arg_max("commit", (created, run))
FROM results GROUP BY device ORDER BY device
"""
_COLUMNS = ("device", "runs", "results", "boards", "first", "newest", "newest_run", "commit")


@catalogue.command(short_help="List runs, boards and dates by device model.")
def show(results: ResultsOption = None, json: JsonOption = False) -> None:
    """List what the catalogue holds: runs, results, boards and dates by device model.

    Exit codes: 0; 2 no catalogue, or it cannot be read.
    """
    found = [dict(zip(_COLUMNS, row, strict=True)) for row in _catalogue(results).rows(_OVERVIEW)]
    rows = [
        {**row, "first": f"{row['first']:%Y-%m-%d}", "newest": f"{row['newest']:%Y-%m-%d}", "commit": row["commit"][:12]} for row in found
    ]
    if json:
        print_json(rows)
    else:
        print_table(_COLUMNS, [[str(row[name]) for name in _COLUMNS] for row in rows], right=("runs", "results", "boards"))


@catalogue.command(short_help="Print the rows that an SQL query selects.")
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT from `results`, in DuckDB's SQL.  docs/stores.md lists the columns.")],
    *,
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """Print the rows that a query selects: one row of `results` is one kernel on one case in one run.

    Example: fusebench catalogue query "SELECT created, time_us FROM results WHERE kernel = 'qknorm_rope/fused_triton@2' ORDER BY 1"

    Exit codes: 0; 2 the query is refused, there is no catalogue, or it cannot be read.
    """
    columns, rows = _catalogue(results).answer(sql)
    if json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, [["" if value is None else str(value) for value in row] for row in rows])


@catalogue.command(short_help="Upload runs of this machine to a store.")
def publish(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Runs of this machine: folders, run ids or starts of one, or `latest`.")
    ],
    *,
    results: ResultsOption = None,
) -> None:
    """Upload runs of this machine to the store that --results names, and add them to its catalogue.

    `fusebench run --results URL` does so by itself; this is for a run whose publication failed, and for runs from before.  A run that is
    there already stays as it is.

    Exit codes: 0; 2 a run cannot be read, or the store fails.
    """
    from ..config import find_project
    from ..store.finding import find_run

    if results is None:
        raise UsageError("--results is missing: name the store by its URL, such as s3://bucket/fusebench")
    project = find_project()
    opened = open_results(results, project)
    if opened.store is None:
        raise UsageError(
            f"--results {results}: a folder; expected the URL of a store, such as s3://bucket/fusebench or file:///mnt/results"
        )
    for folder in [find_run(run, project) for run in runs]:
        opened.publish(folder)


@catalogue.command(short_help="Make the catalogue again from the run folders.")
def rebuild(results: ResultsOption = None) -> None:
    """Make the catalogue again from the run folders.  Runs that cannot be read are named, and left out.

    Exit codes: 0; 2 a run cannot be read (the catalogue holds the others), or the store fails.
    """
    from ..report.wording import count
    from ..store.catalogue.files import rebuild as rebuild_files

    opened, files = _opened(results)
    skipped: list[str] = []
    made = rebuild_files(files, _runs(opened, skipped))
    for one in skipped:
        remark("skipped", one)
    typer.echo(f"{count(made, 'run')} in the catalogue of {opened.name}")
    if skipped:
        raise UsageError(f"not in the catalogue: {count(len(skipped), 'run')} that cannot be read; restore them, or remove their folders")


@catalogue.command(short_help="Merge the files of every past month into one.")
def merge(results: ResultsOption = None) -> None:
    """Merge the files of every month but the newest into one, which makes queries of years fast.

    Exit codes: 0; 2 a file cannot be read, or the store fails.
    """
    from ..store.catalogue.files import merge as merge_files

    opened, files = _opened(results)
    typer.echo(f"{merge_files(files)} files merged in the catalogue of {opened.name}")


def _opened(results: str | None) -> tuple[Results, Files]:
    from ..config import find_project

    opened = open_results(results, find_project())
    return opened, opened.files


def _catalogue(results: str | None) -> Catalogue:
    from ..store.catalogue.query import Catalogue

    return Catalogue(_opened(results)[1])


def _runs(opened: Results, skipped: list[str]) -> Iterator[Run]:
    """Every run of the results, one at a time; those that cannot be read are added to `skipped`."""
    import shutil

    from ..errors import RunRecordError
    from ..store.finding import run_folders, runs_folder
    from ..store.remote.runs import RUNS, download, run_names
    from ..store.run_folder import read_run

    parent = runs_folder(opened.project)
    names = [one.name for one in run_folders(parent)] if opened.store is None else run_names(opened.store)
    for name in names:
        folder: Path = parent / name
        try:
            if opened.store is not None:
                download(opened.store, f"{RUNS}/{name}", folder)
            yield read_run(folder)
        except RunRecordError as error:
            skipped.append(str(error))
        finally:
            if opened.store is not None:
                shutil.rmtree(folder, ignore_errors=True)
