"""Picture of a model's denoise step: a bar per variant, stacked from the stages of its profiled step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schema.models import ModelRecord
from .. import escape
from .parts import picture_file, said_only

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "matmul": "#8c8c8c",
    "attention": "#0072b2",
    "norm": "#d55e00",
    "rope": "#e69f00",
    "elementwise": "#009e73",
    "copies": "#cc79a7",
    "other": "#56b4e9",
    "idle": "#e8e8e8",
}
"""By stage: Okabe and Ito's, which colour-blind readers tell apart; greys for the products and for idle time."""
LEAST_LABELLED = 0.05
"""Share of the longest step from which a part has its milliseconds written in it."""


def step_png(record: ModelRecord) -> bytes:
    """The breakdowns as PNG bytes; without any, a picture that says so."""
    return picture_file(step_figure(record), "png")


def step_figure(record: ModelRecord) -> Figure:
    """Stacked bars in milliseconds: stages in their order, then idle time."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    if not record.breakdowns:
        return said_only(f"{record.title}: no step was profiled")
    figure = Figure(figsize=(10.0, 1.6 + 0.5 * len(record.breakdowns)), layout="constrained")
    axes = figure.subplots()
    longest = max(one.span_us for one in record.breakdowns)
    named: set[str] = set()
    for place, one in enumerate(record.breakdowns):
        left = 0.0
        for stage, time_us in (*((part.stage, part.time_us) for part in one.stages), ("idle", max(0.0, one.idle_us))):
            axes.barh(place, time_us / 1000, left=left / 1000, height=0.72, color=_colour(stage), edgecolor="white", linewidth=0.5)
            if time_us > LEAST_LABELLED * longest:
                axes.text((left + time_us / 2) / 1000, place, f"{time_us / 1000:.3g}", ha="center", va="center", fontsize=7)
            named.add(stage)
            left += time_us
    axes.set_yticks(range(len(record.breakdowns)), [escape.picture(one.variant) for one in record.breakdowns], fontsize=8)
    axes.set_ylim(len(record.breakdowns) - 0.5, -0.5)
    axes.set_xlabel("milliseconds of one profiled step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(escape.picture(f"{record.title}: where a step's time goes"), fontsize=10)
    handles = [Patch(color=_colour(stage), label=escape.picture(stage)) for stage in sorted(named, key=_order)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(named), fontsize=8, frameon=False)
    return figure


def _colour(stage: str) -> str:
    return COLOURS.get(stage, "#333333")


def _order(stage: str) -> int:
    return list(COLOURS).index(stage) if stage in COLOURS else len(COLOURS)
