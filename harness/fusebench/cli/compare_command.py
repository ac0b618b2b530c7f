"""`fusebench compare`: two runs side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from .shared.options import JsonOption
from .shared.output import console, print_json


def compare(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The earlier run: a folder, a run id or the start of one, or `latest`.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The later run, in the same forms.")],
    json: JsonOption = False,
) -> None:
    """Show two runs side by side: times, speedups, errors, and the change with its interval where the runs are comparable.

    The exit code is always 0; `fusebench gate` judges.
    """
    from ..config import find_project
    from ..report.comparison import comparison_document, print_comparison
    from ..store.finding import find_run
    from ..store.run_folder import read_run
    from ..store.scatter_file import load_scatter
    from ..verdict.judgement import judge_each
    from ..verdict.margin_rule import MarginRule
    from ..verdict.record_validation import require_valid

    project = find_project()
    before, after = read_run(find_run(old, project)), read_run(find_run(new, project))
    for record in (before, after):
        require_valid(record)
    judgements = judge_each(after, before, MarginRule(scatter=load_scatter(project.results, after.environment.device_name)))
    if json:
        print_json(comparison_document(before, after, judgements))
    else:
        print_comparison(before, after, judgements, console())
