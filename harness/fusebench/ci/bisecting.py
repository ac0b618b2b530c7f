"""After a red nightly: the search for the commit behind its worst regression of speed, and its part of the issue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from ..schema import ExitCode
from .findings import Judged, worst_first
from .outcome import JobOutcome
from .steps import Step, Steps


def read_outcome(folder: Path) -> JobOutcome:
    """The outcome that a nightly left in `folder`.

    Raises:
        UsageError: there is none, or it is of another job.
    """
    file = folder / "outcome.json"
    try:
        found = msgspec.json.decode(file.read_bytes(), type=JobOutcome)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{file}: cannot be read: {why}; name the folder of a `fusebench ci nightly` with --out DIR") from error
    if found.job != "nightly":
        raise UsageError(f"{file}: is of the {found.job}; a search follows a nightly, which measured every case")
    return found


def slowest(outcome: JobOutcome) -> Judged | None:
    """The largest gating regression of speed; None without one."""
    found = [one for one in worst_first(outcome.judged) if one.gating and one.verdict == "regression" and (one.change or 0.0) > 1.0]
    return found[0] if found else None


def bisect_nightly(outcome: JobOutcome, steps: Steps, *, options: list[str]) -> tuple[Step | None, str]:
    """Search between the baseline's commit and the run's.

    Args:
        options: further ones of `fusebench bisect`, such as the device.

    Returns:
        The step (None if there is nothing to search), and a sentence.
    """
    worst = slowest(outcome)
    if worst is None:
        return None, "the nightly holds no gating regression of speed: nothing to search"
    good, _, bad = outcome.commits.partition("..")
    if not bad:
        return None, "the nightly does not say the commits of baseline and run: nothing to search between"
    suite = worst.case.partition(":")[0]
    selection = ["--suite", suite, "--case", worst.case, "--kernel", worst.kernel]
    step = steps.run("bisect", ["bisect", *selection, "--good", good, "--bad", bad, *options, "--json"])
    said = step.document["reason"] if isinstance(step.document, dict) else step.reason
    return step, f"{worst.kernel} on {worst.case}: {said or f'exit code {step.exit_code}'}"


def issue_part(document: Any) -> str:
    """The search's part of the nightly's issue: its text without title and marker; empty without a document."""
    if not isinstance(document, dict):
        return ""
    lines = [line for line in str(document["issue"]).splitlines() if not line.startswith("<!-- fusebench:")]
    return "\n".join(["", f"## {lines[0].removeprefix('# ')}", *lines[1:]]) + "\n"


def exit_code_of(step: Step | None) -> ExitCode:
    """That of the search; a pass without one."""
    if step is None:
        return ExitCode.PASS
    return ExitCode(step.exit_code) if step.exit_code in set(ExitCode) else ExitCode.FAULT
