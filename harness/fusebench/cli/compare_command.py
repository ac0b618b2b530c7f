"""`fusebench compare`: two runs side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from .shared.options import JsonOption
from .shared.output import console, print_json
from .shared.results import ResultsOption, open_results
from .shared.seals import say_altered


def compare(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The earlier run: a folder, a run id or the start of one, or `latest`.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The later run, in the same forms.")],
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """Show two runs side by side: times, speedups, errors, and the change with its interval where the runs are comparable.

    The exit code is always 0; `fusebench gate` judges.
    """
    from ..config import find_project
    from ..report.comparison import comparison_document, print_comparison
    from ..store.run_folder import read_run
    from ..store.scatter_file import load_scatter
    from ..verdict.baseline.judgement import judge_each
    from ..verdict.margins.rule import MarginRule
    from ..verdict.record_validation import require_valid

    found = open_results(results, find_project())
    folders = [found.find(one) for one in (old, new)]
    before, after = (read_run(folder) for folder in folders)
    for folder, record in zip(folders, (before, after), strict=True):
        require_valid(record)
        say_altered(folder, record)
    scatter = load_scatter(found.project.results, after.environment.device_name)
    judgements = judge_each(after, before, MarginRule(scatter=scatter, device=after.environment.device))
    if json:
        print_json(comparison_document(before, after, judgements))
    else:
        print_comparison(before, after, judgements, console())
