"""What a finished job says: its exit code, its sentences, its steps and every verdict."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..errors import UsageError
from ..report.escape import one_line
from .findings import Judged
from .steps import Step

MEANINGS = {
    0: "pass",
    1: "regression",
    2: "wrong usage or configuration",
    3: "no GPU that is fit to measure",
    4: "undecided",
    5: "a kernel failed",
    70: "fault of fusebench",
}
"""By exit code."""


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A finished job: `outcome.json`."""

    job: str
    """`nightly` or `pull request`."""
    device: str
    """Device model, or the label of the runner where nothing was measured."""
    exit_code: int
    lines: list[str]
    """What ended otherwise than well, one sentence each; never empty if the exit code is not 0."""
    steps: list[Step]
    judged: list[Judged]
    run: str = ""
    """Folder of the run or comparison; empty if there is none."""
    commits: str = ""
    """`base..head`, as far as known."""
    dry: bool = False

    @property
    def title(self) -> str:
        """`nightly on NVIDIA H200: regression (exit code 1)`."""
        dry = " (dry run)" if self.dry else ""
        return f"{self.job} on {one_line(self.device)}{dry}: {MEANINGS.get(self.exit_code, 'failure')} (exit code {self.exit_code})"


def read_outcomes(folders: Iterable[Path]) -> list[JobOutcome]:
    """The outcomes that jobs left in `folders`, in the order of the folders' names.

    Raises:
        UsageError: one cannot be read.
    """
    found = []
    for file in sorted(folder / "outcome.json" for folder in folders):
        try:
            found.append(msgspec.json.decode(file.read_bytes(), type=JobOutcome))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{file}: cannot be read: {error}; expected the outcome of a `fusebench ci` job") from error
    return found
