"""Two captures side by side: every figure before and after, its change in percent, and the choice of pairs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from .figures import FIGURES, Better, Figure, Unit, call_figures, total, worth_showing
from .records import Capture, CaptureStatus


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of two captures."""

    title: str
    unit: Unit
    launch: int | None = None
    """Index of the launch among several, from 0; None for the whole call."""
    before: float | None
    after: float | None
    """None if it was not collected."""
    better: Better
    scatter: float
    """Percent below which a change counts as none."""

    @property
    def percent(self) -> float | None:
        """The change in percent of `before`; None without both, or from zero."""
        if self.before is None or self.after is None or self.before == 0:
            return None
        return 100 * (self.after / self.before - 1)

    @property
    def improved(self) -> bool | None:
        """Whether the change is for the better; None within the scatter, and for figures without a better direction."""
        if self.before is None or self.after is None or self.before == self.after or self.better is Better.NEITHER:
            return None
        if self.percent is not None and abs(self.percent) < self.scatter:
            return None
        return (self.after < self.before) is (self.better is Better.LOWER)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two captures of one case to put side by side."""

    before: Capture
    after: Capture


def changes(before: Capture, after: Capture) -> list[Change]:
    """One row per figure of either capture, in the order of `FIGURES`.

    Calls of one launch each are compared figure by figure.  Otherwise additive figures are compared call by call.  If both calls make the
    same number of launches, all figures follow launch by launch, in order.
    """
    old, new = call_figures(before), call_figures(after)
    rows = list(_rows([(figure, total(figure, old), total(figure, new)) for figure in FIGURES]))
    if len(old) == len(new) > 1:
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            rows += _rows([(figure, figure.value(one), figure.value(other)) for figure in FIGURES], place)
    return rows


def version_pairs(captures: Sequence[Capture]) -> list[Pair]:
    """Versions of one kernel on one case in one revision, each beside the next higher captured version."""
    groups: dict[tuple[str, str, str], list[Capture]] = {}
    for capture in _captured(captures):
        groups.setdefault((capture.case_key, _unversioned(capture), capture.revision), []).append(capture)
    return [
        Pair(before=before, after=after)
        for group in groups.values()
        for before, after in itertools.pairwise(sorted(group, key=_version))
        if _version(before) != _version(after)
    ]


def revision_pairs(before: Sequence[Capture], after: Sequence[Capture]) -> list[Pair]:
    """The same kernel on the same case in two lists of captures (base and head, or two runs), in the order of `after`."""
    known = {(capture.case_key, capture.kernel): capture for capture in _captured(before)}
    found = ((known.get((capture.case_key, capture.kernel)), capture) for capture in _captured(after))
    return [Pair(before=old, after=new) for old, new in found if old is not None]


def _captured(captures: Sequence[Capture]) -> list[Capture]:
    return [capture for capture in captures if capture.status is CaptureStatus.CAPTURED]


def _unversioned(capture: Capture) -> str:
    return capture.kernel.rpartition("@")[0] or capture.kernel


def _version(capture: Capture) -> int:
    version = capture.kernel.rpartition("@")[2]
    return int(version) if version.isdecimal() else 0


def _rows(values: Sequence[tuple[Figure, float | None, float | None]], launch: int | None = None) -> Iterator[Change]:
    for figure, before, after in values:
        if worth_showing(figure, (before, after)):
            yield Change(
                title=figure.title,
                unit=figure.unit,
                launch=launch,
                before=before,
                after=after,
                better=figure.better,
                scatter=figure.scatter,
            )
