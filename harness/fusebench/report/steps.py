"""Denoise steps of several models side by side: one page with tables, and a page and a picture for each model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..models.catalogue import MODELS
from ..schema.models import Drift, ModelRecord, StepTime
from ..stats.paired import ratio_estimate
from . import escape
from .model import cut_words, difference_words, environment_line, model_markdown, share_words, speedup_words, whole_lines
from .plots.step import step_png
from .run.markdown import markdown_table
from .run.pages import INDEX
from .wording import DASH

STEP_HEADER = ("model", "diffusers ms", "best of torch.compile alone", "best with fused ops", "over torch.compile")
COMPILED_ALONE = ("compiled", "compiled_graph")
WITH_FUSED = ("fused", "fused_graph", "fused_compiled", "fused_compiled_graph")
VARIANTS = ("fused", "compiled", "fused_compiled", "split_graph", "fused_graph", "compiled_graph", "fused_compiled_graph")
CHECK_HEADER = ("model", "best with fused ops", "in a fresh process", "by GPU busy time", "drift", "most GiB")
SAVING_HEADER = (
    "model",
    "saves ms",
    "by chains ms",
    "predicted ms",
    "off by",
    "by attention ms",
    "off by",
    "by clocks ms",
    "off by",
    "unexplained",
)
NOT_MEASURED = "not measured"
METHOD = (
    "`diffusers ms` is a step of the model as diffusers runs it (`split`); speedups are over it, and their intervals cover one process. "
    "`over torch.compile` is the time of the best variant without fused ops over that of the best one with them, paired by round. "
    "The best of several is chosen by these same times."
)
PREDICTION = (
    "`saves ms` is the time of `split` less that of `fused`. `by chains` is the sum, over all calls of ops, of the op's chain of "
    "torch operations less the kernel's time, by the stored run that each model's page names. `predicted` rests on what diffusers "
    "launches, at the costs of launches in these chains; where that was not reckoned, it is the same as `by chains`. `by attention` "
    "takes from it what products and attention lose to lower clocks, told by the same launches of attention in both profiled steps; "
    "`by clocks` the same, told by the clocks that were read during the timed steps, as if all of that work followed the clock. "
    "`unexplained` is the share of the saving for which the profiled steps, too, show no place."
)


def steps_markdown(records: Mapping[str, ModelRecord], *, linked: Collection[str] = ()) -> str:
    """Tables of all models of the catalogue, and what the records were measured with.

    Args:
        records: by the model's name.
        linked: names of models whose page `NAME.md` lies beside this one.
    """
    names = list(dict.fromkeys([*MODELS, *records]))
    measured = [records[name] for name in names if name in records]
    parts = [
        "# Denoise steps by model",
        _table(STEP_HEADER, [_step_row(name, records.get(name), name in linked) for name in names]),
        METHOD,
    ]
    parts += ["## Speedup of each variant", _table(("model", *VARIANTS), [_variant_row(record) for record in measured])]
    parts += ["## Checks", _table(CHECK_HEADER, [_check_row(record) for record in measured])]
    if any(record.explanation for record in measured):
        parts += ["## The saving of fused ops, predicted", _table(SAVING_HEADER, [_saving_row(record) for record in measured]), PREDICTION]
    parts += ["\n".join(f"* {escape.markdown(line)}" for line in _told(measured))]
    return "\n\n".join(part for part in parts if part) + "\n"


def step_pages(records: Mapping[str, ModelRecord], *, pictures: bool = True) -> dict[str, bytes]:
    """File names and contents: `README.md` with the tables, and `NAME.md` and `NAME.png` for every record.

    Args:
        pictures: make the pictures too, which take most of the time; the pages show them either way.
    """
    pages = {INDEX: steps_markdown(records, linked=records).encode()}
    for name, record in records.items():
        drawn = f"{name}.png" if record.breakdowns else ""
        pages[f"{name}.md"] = model_markdown(record, picture=drawn).encode()
        if drawn and pictures:
            pages[drawn] = step_png(record)
    return pages


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(markdown_table(header, rows)) if rows else ""


def _step_row(name: str, record: ModelRecord | None, linked: bool) -> list[str]:
    if record is None:
        return [name, NOT_MEASURED, *[DASH] * (len(STEP_HEADER) - 2)]
    title = _title(record)
    if linked:
        title = escape.Markup(f"[{escape.markdown(title)}]({name}.md)")
    split = next((one.time_ms for one in record.times if one.variant == "split"), None)
    best, compiled = _fastest(record, WITH_FUSED), _fastest(record, COMPILED_ALONE)
    return [title, DASH if split is None else f"{split.value:.2f}", _named(compiled), _named(best), _over(best, compiled)]


def _variant_row(record: ModelRecord) -> list[str]:
    times = {one.variant: one for one in record.times}
    return [_title(record), *(_speedup(times.get(variant)) for variant in VARIANTS)]


def _check_row(record: ModelRecord) -> list[str]:
    best = _fastest(record, WITH_FUSED)
    again = record.confirmation.speedups if record.confirmation is not None else {}
    most = max((one.peak_bytes for one in record.times), default=0)
    return [
        _title(record),
        _named(best),
        speedup_words(again[best.variant]) if best is not None and best.variant in again else "not repeated",
        speedup_words(best.gpu.speedup) if best is not None and best.gpu is not None and best.gpu.speedup is not None else NOT_MEASURED,
        NOT_MEASURED if record.drift is None else _drift(record.drift),
        f"{most / 2**30:.1f}" if most else DASH,
    ]


def _saving_row(record: ModelRecord) -> list[str]:
    found = record.explanation
    if found is None:
        return [_title(record), *[DASH] * (len(SAVING_HEADER) - 1)]
    return [
        _title(record),
        f"{found.measured_us / 1000:.2f}",
        _milliseconds(found.predicted_us if found.chains_us is None else found.chains_us),
        *(
            text
            for time_us in (found.predicted_us, found.reckoned_us, found.clocked_us)
            for text in (_milliseconds(time_us), difference_words(found, time_us))
        ),
        DASH if found.unexplained_us is None else share_words(found.unexplained_us, found),
    ]


def _milliseconds(time_us: float | None) -> str:
    return DASH if time_us is None else f"{time_us / 1000:.2f}"


def _title(record: ModelRecord) -> str:
    cut = cut_words(record)
    return f"{record.title} ({cut})" if cut else record.title


def _fastest(record: ModelRecord, names: Sequence[str]) -> StepTime | None:
    ran = [one for one in record.times if one.variant in names and one.speedup is not None]
    return max(ran, key=lambda one: one.speedup.value if one.speedup is not None else 0.0, default=None)


def _speedup(one: StepTime | None) -> str:
    if one is None:
        return DASH
    return "failed" if one.error else DASH if one.speedup is None else f"{one.speedup.value:.3f}x"


def _named(one: StepTime | None) -> str:
    return DASH if one is None else f"{_speedup(one)} {one.variant}"


def _over(best: StepTime | None, compiled: StepTime | None) -> str:
    """Time of torch.compile alone over that of the best variant with fused ops, paired by round."""
    if best is None or compiled is None or len(best.rounds_ms) != len(compiled.rounds_ms):
        return DASH
    return speedup_words(ratio_estimate([[value] for value in compiled.rounds_ms], [[value] for value in best.rounds_ms], 0.0))


def _drift(drift: Drift) -> str:
    """The verdict, and the most times that it drifts as far as the equivalent model after any step."""
    pairs = zip(drift.steps, drift.equivalent, strict=False)
    factors = [own.rms / other.rms for own, other in pairs if other.rms > 0]
    return f"{drift.verdict.kind}, {max(factors):.2f}x" if factors else str(drift.verdict.kind)


def _told(records: Sequence[ModelRecord]) -> list[str]:
    """What the records were measured with, and what is wrong with them."""
    measured_with: dict[str, list[str]] = {}
    for record in records:
        measured_with.setdefault(environment_line(record), []).append(record.model)
    lines = [f"{line}: {', '.join(names)}" for line, names in measured_with.items()]
    for record in records:
        if not record.complete:
            lines.append(f"{record.model} is incomplete; missing: {', '.join(record.missing)}")
        lines += [f"{record.model}, the whole from the reduced stack: {line}" for line in whole_lines(record)]
        lines += [f"{record.model}, {one.variant}: {one.error}" for one in record.times if one.error]
        lines += [f"{record.model}: {text}" for text in (*record.findings, *record.failures)]
    return lines
