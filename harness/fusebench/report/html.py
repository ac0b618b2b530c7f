"""The report as one self-contained HTML page: no script, no other file, the plot embedded."""

from __future__ import annotations

import base64

from ..schema import Run, Status
from . import escape
from .attached import attached_to, grouped
from .plots.speedup import speedup_png
from .rows import FULL_HEADER, suite_rows
from .savings import saving_lines, weighted_lines
from .summary import calibration_line, control_line, headline, sampling
from .wording import excuses, named_cases, part_notes, status_text


def html_report(run: Run) -> str:
    """The page.  Whatever the record holds (reasons, names) is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("fusebench.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    run = escape.cleaned(run)
    listed = [excuse for excuse in excuses(run) if excuse.status is not Status.CHECKED or excuse.reason]
    return templates.get_template("report.html.j2").render(
        run=run,
        headline=headline(run),
        sampling=sampling(run),
        control=control_line(run),
        calibration=calibration_line(run),
        weighted=[*weighted_lines(run), *saving_lines(run)],
        evidence=grouped(attached_to(run)),
        parts=part_notes(run),
        header=FULL_HEADER,
        suites=suite_rows(run),
        excuses=[(excuse, named_cases(excuse, len(run.cases)), status_text(excuse.status)) for excuse in listed],
        plot=base64.b64encode(speedup_png(run)).decode(),
    )
