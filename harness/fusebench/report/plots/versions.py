"""The picture of versions: how much faster each version is than the one before, beside the share of the speed of light of both.

Cases are rows, the largest speedup first, so that labels stay legible from one case to 150.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schema import Estimate, Role, Run
from ..versions import VersionStep
from ..wording import short_kernel
from .palette import colour_of, marker_of
from .parts import MOST_LABELLED_CASES, finish, mark, percent_ticks, two_panels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

_WIDE = 4.0
"""Ratio of the largest speedup to the smallest above which the axis is logarithmic."""


def versions_figure(run: Run, steps: Sequence[VersionStep]) -> Figure:
    """The picture of `steps`, as `version_steps` sorts them; there is at least one.  A mark has the newer version's colour."""
    cases: dict[str, list[VersionStep]] = {}
    for step in steps:
        cases.setdefault(step.newer.case_key, []).append(step)
    figure, left, right, each = two_panels(run, list(cases))
    speedups: dict[str, list[tuple[float, Estimate]]] = {}
    shares: dict[str, list[tuple[float, float]]] = {}
    roles: dict[str, Role] = {}
    for place, of_case in enumerate(cases.values()):
        for index, step in enumerate(sorted(of_case, key=lambda step: step.newer.kernel)):
            at = place + (index - (len(of_case) - 1) / 2) * 0.6 / len(of_case)
            both = [(short_kernel(one.kernel), one.measurement.sol if one.measurement else None) for one in (step.older, step.newer)]
            roles |= {short_kernel(one.kernel): one.role for one in (step.older, step.newer)}
            speedups.setdefault(both[1][0], []).append((at, step.speedup))
            known = [(kernel, share) for kernel, share in both if share is not None]
            for kernel, share in known:
                shares.setdefault(kernel, []).append((share, at))
            right.plot([share for _, share in known], [at] * len(known), color="#9a9a9a", linewidth=1, zorder=2)
    for kernel, points in speedups.items():
        mark(left, points, kernel, roles[kernel], small=each < 0.2, percent=False if len(cases) <= MOST_LABELLED_CASES else None)
    for kernel, pairs in shares.items():
        across, up = zip(*pairs, strict=True)
        colour, size = colour_of(kernel, roles[kernel]), 3 if each < 0.2 else 4.5
        right.plot(across, up, marker_of(roles[kernel]), color=colour, markersize=size, zorder=3)
    values = [step.speedup.value for step in steps]
    if max(values) > _WIDE * min(values):
        left.set_xscale("log", base=2)
        left.xaxis.set_major_formatter("{x:g}")
    left.set_xlabel("speedup over the version before")
    right.set_xlabel("share of the speed of light, both versions")
    right.xaxis.set_major_formatter(percent_ticks())
    finish(run, figure, {kernel: (kernel, role) for kernel, role in sorted(roles.items())}, "version over version, by case")
    return figure
