"""Kernels with identical machine code in both runs: the comparison of digests, and the verdicts.

Between two versions of a source tree most kernels compile to the same instructions.  They are not judged by their times; their times are
the noise floor of the comparison (`verdict.noise_floor`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..schema import Estimate, Verdict, VerdictKind
from ..stats.paired import describe_change


def same_code(new: Mapping[str, str], old: Mapping[str, str]) -> bool | None:
    """Whether two calls launch the same instructions, from the digest of machine code of every function that each launches.

    The digests must cover launch geometry that is not in the code. None if either call's code is unknown (empty, or an empty digest).
    """
    if not new or not old or not all((*new.values(), *old.values())):
        return None
    return dict(new) == dict(old)


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


def verdict_on_unchanged(speed: Verdict, differences: Sequence[str]) -> Verdict:
    """The verdict on machine code that is the same in both runs.

    A slowdown of the same code has another cause: until it is found, or shown to be noise, the verdict is undecided.  Within the margin,
    across it, or faster beyond it, the kernel passes.

    Args:
        speed: the verdict by the times alone.
        differences: other differences between the two runs, which the reason names as suspects.
    """
    if speed.change is None:
        return speed
    if speed.kind is VerdictKind.REGRESSION:
        suspects = "; ".join(differences) or "a clock, the machine or the measurement, since the records name no difference"
        reason = f"identical machine code, so what changed is not the kernel ({speed.reason}); suspect {suspects}"
        return msgspec.structs.replace(speed, kind=VerdictKind.UNDECIDED, reason=reason)
    if speed.kind is VerdictKind.PASS:
        return msgspec.structs.replace(speed, reason=f"identical machine code; {speed.reason}")
    return verdict_on_identical(speed.change)
