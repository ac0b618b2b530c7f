"""`fusebench ab --static`: what the kernels of head and base are compiled to, side by side, without a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from ..runner.evidence.base_checkout import BaseChoice
    from .selection import Selection

DEFAULT_MARGIN = 0.05
"""Share of instructions that may be added; see docs/static.md."""


class StaticOptions(NamedTuple):
    """As the command line gives them."""

    kernel: str | None
    arch: list[str] | None
    margin: float | None
    allow_incomparable: bool
    jobs: int | None
    no_cache: bool
    json: bool


def compare_static(selection: Selection, base: BaseChoice, options: StaticOptions) -> int:
    """Compare this checkout's compiled kernels with those of the base, and return the exit code."""
    from ..report.static_table import verdict_line
    from ..runner.evidence.base_checkout import name_of
    from .output import print_json
    from .static_work import collect_all, find_targets, judge_against, print_judgements, require_margin

    limit = DEFAULT_MARGIN if options.margin is None else options.margin
    require_margin(limit)
    targets = find_targets(options.arch)

    def collected(label: str, folders: Sequence[Path] | None) -> Any:
        return collect_all(
            selection, targets, kernel=options.kernel, jobs=options.jobs, use_cache=not options.no_cache, roots=folders, label=label
        )

    with tempfile.TemporaryDirectory(prefix="fusebench-ab-") as unpacked:
        revision, roots = base.resolve(selection.project, selection.collection.roots, Path(unpacked))
        name = name_of(revision)
        after, before = collected("", None), collected(f"{name}, ", roots)
    judgements, code = judge_against(after, before, selection, margin=limit, allow_incomparable=options.allow_incomparable, reference=name)
    if options.json:
        print_json({"base": name, "margin": limit, "exit_code": code, "judgements": judgements})
    else:
        print_judgements(judgements)
        typer.echo(f"against {name}: {verdict_line(judgements)}")
    return int(code)
