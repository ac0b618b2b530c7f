"""Shell completion of the SELECTION options, from suite files, op definitions and the kept listing of kernels: nothing imports torch.

Kernels are offered once any command has loaded them (see `kernel_listing`).  Completion that fails offers nothing and says nothing.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from .selection import Selection

VARIABLE = "_FUSEBENCH_COMPLETE"
"""By this variable the shell's function asks for completions; typer makes its name from the command's."""
_BASH_BREAKS = "@:="
"""Characters that end a word for bash's completion, and that stand in kernel ids, in `suite:case` and in `--option=value`."""


def complete_suite(context: typer.Context, incomplete: str) -> list[str]:
    """Names of suites."""
    from ...config import find_project
    from ...suites import suite_names

    return _offered(incomplete, lambda: suite_names(find_project()))


def complete_op(context: typer.Context, incomplete: str) -> list[str]:
    """Names of ops."""
    from .selection import load_project

    return _offered(incomplete, lambda: load_project(context.params.get("kernels"), load_kernels=False)[1].ops)


def complete_kernel(context: typer.Context, incomplete: str) -> list[str]:
    """`name` and `name@version` of the chosen ops' kernels; `op/name@version` after a slash or part of an op's name."""
    from .kernel_listing import listing_file

    def known() -> Iterable[str]:
        chosen = _selection(context)
        listing = listing_file(chosen.collection.roots).read()
        found = listing.kernels if listing is not None else None
        ids = [one.id for one in found or () if one.id.op in chosen.ops]
        short = [spelling for one in ids for spelling in one.spellings[1:] if spelling.startswith(incomplete)]
        return short or [str(one) for one in ids]

    return _offered(incomplete, known)


def complete_case(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the chosen suites' cases; `suite:case` after a colon or part of a suite's name."""

    def known() -> Iterable[str]:
        cases = _selection(context).cases
        return [case.name for case in cases if case.name.startswith(incomplete)] or [case.key for case in cases]

    return _offered(incomplete, known)


def _selection(context: typer.Context) -> Selection:
    from .selection import resolve_selection

    given = context.params
    suite = given.get("suite")
    return resolve_selection(
        suite=[suite] if isinstance(suite, str) else suite,
        op=given.get("op"),
        kernels=given.get("kernels"),
        load_kernels=False,
        all_suites=True,
    )


def _offered(incomplete: str, known: Callable[[], Iterable[str]]) -> list[str]:
    try:
        with redirect_stderr(io.StringIO()):
            return sorted({name for name in known() if name.startswith(incomplete)})
    except Exception:  # noqa: BLE001 - a traceback would be printed into the line that a person types
        return []


def complete_in_bash(environment: MutableMapping[str, str], run: Callable[[], Any]) -> str:
    """The completions that `run` prints, as bash wants them.

    Bash hands over `fused_triton@2` as three words, and replaces the last one alone.
    """
    words, at = environment["COMP_WORDS"].split("\n"), int(environment["COMP_CWORD"])
    joined: list[str] = []
    for word in words[: at + 1]:
        if joined and (word[:1] in tuple(_BASH_BREAKS) or joined[-1][-1:] in tuple(_BASH_BREAKS)):
            joined[-1] += word
        else:
            joined.append(word)
    environment.update({"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(len(joined) - 1)})
    typed = joined[-1].partition("=")[2] if joined[-1].startswith("--") else joined[-1]
    fixed = len(re.split(f"[^{_BASH_BREAKS}]*$", typed)[0])
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        run()
    return "".join(f"{line[fixed:]}\n" for line in printed.getvalue().splitlines())


def asks_in_bash() -> bool:
    """Whether bash asks for completions."""
    return os.environ.get(VARIABLE) == "complete_bash"
