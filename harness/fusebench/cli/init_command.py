"""`fusebench init`: make a project that `check` passes at once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError

FolderArgument = Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder of the project, made where it does not exist.")]


def init(folder: FolderArgument = Path()) -> None:
    """Make a project: [tool.fusebench] in pyproject.toml, a small op, its split chain, a fused kernel, a suite and a script for CI.

    No file is overwritten.  A pyproject.toml without [tool.fusebench] gets the section at its end.
    """
    from ..config import has_table
    from .project_files import FILES, TABLE

    configuration = folder / "pyproject.toml"
    taken = [path for path in FILES if (folder / path).exists()]
    if configuration.is_file() and has_table(configuration):
        taken.insert(0, "[tool.fusebench] of pyproject.toml")
    if taken:
        raise UsageError(f"{folder.resolve()} has {', '.join(taken)} already, and nothing is overwritten; name another folder")
    try:
        for path, text in FILES.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                file.chmod(0o755)
        before = configuration.read_text(encoding="utf-8").rstrip("\n") + "\n\n" if configuration.is_file() else ""
        configuration.write_text(before + TABLE, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: cannot be written: {error.strerror or error}; name another folder") from error
    for path in ("pyproject.toml", *FILES):
        typer.echo(f"  {folder / path}")
    enter = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    typer.echo(f"next: {enter}fusebench check --suite silu_mul, then fusebench run --suite silu_mul")
