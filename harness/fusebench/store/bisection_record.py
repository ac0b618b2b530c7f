"""The record of `fusebench bisect`: a search among commits for the one that made a kernel slower.

`bisect.json` is this record, rewritten after every step.  The comparisons that it measured lie beside it, in `comparisons/`, each a folder
of `fusebench ab`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from ..schema import Attachment, Case, Confirmation, Estimate, Finding
from ..stats.bisection import Side
from .files import write_file
from .finding import BISECTION_FILE
from .kept_folder import keep
from .record_files import read_command_record
from .run_folder import stamped_name

BISECTION_VERSION = 1
ISSUE_FILE = "issue.md"
COMPARISONS = "comparisons"


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit as git tells it."""

    commit: str
    parents: tuple[str, ...]
    author: str
    date: str
    """The author's, ISO 8601."""
    subject: str


class Basis(StrEnum):
    """What an answer about a commit rests on."""

    TIMED = "timed"
    SAME_SOURCE = "identical source"
    SAME_CODE = "identical machine code"
    NONE = "not testable"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One commit's kernel, compared with another commit's."""

    commit: str
    subject: str
    """Of the commit."""
    against: str
    basis: Basis
    side: Side
    reason: str
    """What was found, in words."""
    finding: Finding | None = None
    """None unless timed."""
    confirmation: Confirmation | None = None
    margin: float | None = None
    """The share of the time that `commit` must take longer to be slow, before the floor of a clock tick; None unless run."""
    time_us: float | None = None
    """Of `against`."""
    slower: bool = False
    """Whether it is slower beyond the margin: confirmed in fresh processes and above the noise floor."""
    changed_files: tuple[str, ...] = ()
    failed: bool = False
    """Whether the kernel of `commit` failed: does not load, crashes, or is wrong."""
    folder: str = ""
    """The comparison's folder in `comparisons/`; empty if nothing was measured."""
    attachments: tuple[Attachment, ...] = ()

    @property
    def change(self) -> Estimate | None:
        """Time of `commit` over time of `against`; None unless timed."""
        return self.finding.change if self.finding is not None else None


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """One search."""

    bisection_version: int = BISECTION_VERSION
    id: str
    created: str
    """UTC, ISO 8601."""
    command: str
    kernel: str
    case: Case
    device: str
    device_name: str
    settings: str
    """Digest of timer, sampling plan and looks: probes of other settings are not taken over."""
    good: Commit
    bad: Commit
    commits: int
    """Commits after good, up to bad."""
    groups: int
    """Groups of consecutive commits with the same kernels folders, without good's."""
    error_rate: float
    size: float | None = None
    """Bad's time over good's; None until the ends are measured."""
    probes: list[Probe] = []
    """The ends first, then every step, in order."""
    suspects: list[Commit] = []
    """The commits that can be the first slow one, oldest first; one if it was found."""
    before: Commit | None = None
    """The last fast commit."""
    step: Probe | None = None
    """The one suspect against the last fast commit."""
    warnings: list[str] = []
    reason: str = ""
    """The outcome, in one sentence."""
    complete: bool = True
    exit_code: int = 0

    @property
    def measured(self) -> int:
        """Number of commits whose kernel was timed."""
        probes = [*self.probes, *([self.step] if self.step is not None else [])]
        return len({name for probe in probes if probe.basis is Basis.TIMED for name in (probe.commit, probe.against)})

    @property
    def found(self) -> Commit | None:
        """The commit that made the kernel slower; None if it is not certain."""
        return self.suspects[0] if len(self.suspects) == 1 and self.complete and self.exit_code == 0 else None


def bisection_folder(parent: Path, bisection: Bisection) -> Path:
    """The folder of the search under `parent`."""
    return parent / f"{stamped_name(bisection.id, bisection.created)}_bisect"


def keep_bisection(parent: Path, bisection: Bisection) -> Path:
    """Write the search as it stands, or replace what was written of it before, and return its folder.

    Raises:
        RecordNotWrittenError: the disk is full, or the folder takes no file.
        RunRecordError: the folder cannot be made.
    """
    record = bisection_folder(parent, bisection) / BISECTION_FILE
    return keep(record, bisection, what="search", resume=bisection.command, replaced={}, copied={})


def read_bisection(folder: Path) -> Bisection:
    """The record in `folder`.

    Raises:
        RunRecordError: there is none, it is truncated or garbled, or it is of a newer version.
    """
    file = folder / BISECTION_FILE
    return read_command_record(file, Bisection, version="bisection_version", newest=BISECTION_VERSION, command="bisect")


def write_issue(folder: Path, lines: Sequence[str]) -> Path:
    """Write the issue's text beside the record, and return its file."""
    write_file(folder / ISSUE_FILE, ("\n".join(lines).rstrip() + "\n").encode())
    return folder / ISSUE_FILE
