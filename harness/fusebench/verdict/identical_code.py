"""Kernels with identical machine code in both runs: the comparison of digests, and the verdicts.

Between two versions of a source tree most kernels compile to the same instructions.  They are not judged by their times; their times are
the noise floor of the comparison (`verdict.noise_floor`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..schema import CHANGES, Estimate, Result, Run, Verdict, VerdictKind
from ..stats.paired import describe_change
from .comparability import fingerprint_differences


def same_code(new: Mapping[str, str], old: Mapping[str, str]) -> bool | None:
    """Whether two calls launch the same instructions, from the digest of machine code of every function that each launches.

    The digests must cover launch geometry that is not in the code. None if either call's code is unknown (empty, or an empty digest).
    """
    if not new or not old or not all((*new.values(), *old.values())):
        return None
    return dict(new) == dict(old)


def equal_code(new: Result, old: Result, new_run: Run, old_run: Run) -> bool:
    """Whether a kernel is known to be the same in two runs: by digests, or, where neither has one, by one clean commit and toolchain."""
    if new.code is not None or old.code is not None:
        return new.code == old.code
    commits = _commits_behind(new, new_run) | _commits_behind(old, old_run)
    both_clean = not (new_run.environment.git_dirty or old_run.environment.git_dirty)
    return both_clean and len(commits) == 1 and "" not in commits and not fingerprint_differences(new_run, old_run)


def _commits_behind(result: Result, run: Run) -> frozenset[str]:
    """The commits of the runs that a result comes from: a joined baseline may keep those of earlier runs."""
    if run.joined and result.measurement is not None:
        return frozenset(run.joined[place].git_commit for place in result.measurement.runs)
    return frozenset({run.environment.git_commit})


def verdict_on_identical(change: Estimate | None, what: str = "machine code") -> Verdict:
    """The verdict on identical code: it passes, independent of the times.

    Args:
        what: what is identical, in words.
    """
    measured = f"; the measured {describe_change(change, 2)} is noise" if change is not None else ""
    return Verdict(kind=VerdictKind.PASS, reason=f"identical {what}{measured}", change=change)


def verdict_in_changed_folder(speed: Verdict, what: str, data: Sequence[str]) -> Verdict:
    """The verdict on identical code where other files of the kernels folders differ, which the kernel may read.

    A change of speed is undecided: its cause is not in the code.  Everything else stays as the times have it.

    Args:
        speed: the verdict by the times alone.
        what: what is identical, in words.
        data: changed files that the kernel may read.
    """
    if speed.kind is VerdictKind.PASS or speed.change is None:
        return msgspec.structs.replace(speed, reason=f"identical {what}; {speed.reason}")
    few = f"{', '.join(data[:3])}{', ...' if len(data) > 3 else ''}"
    where = f"a file that the kernel reads ({few})" if data else "another file of the kernels folders"
    reason = (
        f"identical {what}, {describe_change(speed.change, 2)}: the difference lies in {where} or in the measurement; "
        f"by times alone {speed.reason}"
    )
    return msgspec.structs.replace(speed, kind=VerdictKind.UNDECIDED, reason=reason)


def verdict_on_unchanged(speed: Verdict, differences: Sequence[str], *, noise_known: bool = False, disturbed: str = "") -> Verdict:
    """The verdict on machine code that is the same in both runs.

    Where the same code is slower or faster beyond the margin, something else changed: until it is found, the verdict is undecided.  Within
    the margin or across it the kernel passes, and the reason says so where its times differ beyond noise.  A time that was disturbed and is
    far off does not pass.

    Args:
        speed: the verdict by the times alone.
        differences: other differences between the two runs, which the reason names as suspects.
        noise_known: whether the interval holds all noise between runs, so that a change outside of it is none.
        disturbed: what shows that the time was disturbed and is far off, in words.  Its interval is so wide that it would hold any change.
    """
    if speed.change is None:
        return speed
    suspects = "; ".join(differences) or "a clock, the machine or the measurement, since the records name no difference"
    if speed.kind in CHANGES:
        reason = f"identical machine code, so what changed is not the kernel ({speed.reason}); suspect {suspects}"
        return msgspec.structs.replace(speed, kind=VerdictKind.UNDECIDED, reason=reason)
    if disturbed:
        reason = f"identical machine code, {describe_change(speed.change)}, but the time was disturbed: {disturbed}; measure again"
        return msgspec.structs.replace(speed, kind=VerdictKind.UNDECIDED, reason=reason)
    if noise_known and not speed.change.low <= 1.0 <= speed.change.high:
        reason = f"identical machine code, but its times differ beyond the noise between runs, {describe_change(speed.change, 2)}"
        return msgspec.structs.replace(speed, kind=VerdictKind.PASS, reason=f"{reason}; suspect {suspects}")
    if speed.kind is VerdictKind.PASS:
        return msgspec.structs.replace(speed, reason=f"identical machine code; {speed.reason}")
    return verdict_on_identical(speed.change)
