"""Whether `run`, `ab`, `ncu` and `calibrate` may go on with a stopped measurement: nothing has changed that results depend on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..errors import AlteredRecordError, UsageError
from ..schema import Case, Environment, boards_of
from ..store.seal import SealState, altered_words

FINGERPRINT = (
    "device_name", "device_uuid", "driver", "cuda", "python", "torch", "triton", "ptxas", "ptxas_blackwell", "cpu", "cpu_process",
    "fusebench", "git_commit", "git_dirty",
)  # fmt: skip
"""Fields of the environment that must agree: the resumed record must be true of each of its cases."""
UNCOMMITTED = "uncommitted changes, which may differ (`git status` names them; what is no source belongs into .gitignore)"


def require_same(
    what: str,
    known: Environment,
    now: Environment,
    settings: Sequence[tuple[str, object, object]],
    *,
    sources: tuple[str, str] | None = None,
    names_boards: bool = False,
) -> None:
    """Refuse to go on on another machine, with other sources, or with other settings.

    Args:
        what: the stopped measurement, for the message.
        settings: the name of each, as it was and as it is.
        sources: digests of the kernels folders, then and now, where the record holds one; without them a commit has to say it.
        names_boards: whether each part of the record may name a board of its own, so that any GPU of the model will do.

    Raises:
        UsageError: naming every difference.
    """
    any_board = names_boards and (now.device == "cuda" or max(len(boards_of(one.device_uuid)) for one in (known, now)) > 1)
    names = [name for name in FINGERPRINT if name != "device_uuid" or not any_board]
    pairs = [(name, getattr(known, name), getattr(now, name)) for name in names]
    differences = [f"{name} {old!s} -> {new!s}" for name, old, new in [*pairs, *settings] if old != new]
    if sources is not None and sources[0] and sources[0] != sources[1]:
        differences.append("files of the kernels folders")
    if sources is None or not sources[0]:
        if not now.git_commit:
            differences.append("an unknown commit (set FUSEBENCH_COMMIT where sources travel without history)")
        if now.git_dirty:
            differences.append(UNCOMMITTED)
    if differences:
        raise UsageError(
            f"--resume: {what} cannot be gone on with, because results would not be of one kind: {'; '.join(differences)}; "
            "start a new one by leaving --resume out"
        )


def require_incomplete(what: str, *, complete: bool, nothing_left: str = "") -> None:
    """Raise UsageError if the record was not stopped before its end.

    Args:
        nothing_left: in words, that what could be done after its end is done as well.
    """
    if complete:
        raise UsageError(f"--resume: {what} is complete{nothing_left and f', and {nothing_left}'}; start a new one by leaving --resume out")


def require_unaltered(what: str, seal: SealState, where: Path) -> None:
    """Refuse to take over results that do not fit their seal.

    Raises:
        AlteredRecordError: naming the files.
    """
    if seal.altered:
        raise AlteredRecordError(f"--resume: {altered_words(what, seal.altered, where)}")


def same_timers(then: str, now: str) -> list[tuple[str, object, object]]:
    """The timers as a setting to compare, where both are known."""
    return [("timer", then, now)] if "auto" not in (then, now) else []


def content_of(case: Case) -> tuple[str, str, float, str]:
    """The content of a case, apart from its name and source."""
    return case.op, json.dumps(case.params, sort_keys=True), case.weight, case.variant
