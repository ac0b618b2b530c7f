"""A model's denoise step as tables: variants, calls, stages and drift; for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from ..schema import Estimate
from ..schema.models import Explanation, ModelRecord, StepTime
from .run.markdown import markdown_table
from .wording import DASH, bounded

TIME_COLUMNS = (
    "variant",
    "step ms",
    "speedup",
    "in a fresh process",
    "GPU busy ms",
    "speedup by it",
    "1.5 % rule",
    "SM MHz",
    "peak GiB",
    "verdict",
)
LOOP_COLUMNS = ("variant", "steps", "loop ms", "steps x step ms", "speedup")
PICTURE = "step.png"
"""File name of the breakdown's picture, beside the report."""
CALL_COLUMNS = ("site", "op", "calls", "kernel", "fallbacks")


def head_lines(record: ModelRecord) -> list[str]:
    """What ran, in words."""
    cut = cut_words(record)
    layers = f"; a reduced stack: {cut}" if cut else ""
    size = "tiny configuration" if record.tiny else "full configuration" if not cut else "published widths"
    return [
        f"{record.title}: {size}{layers}; {record.parameters / 1e9:.3g} billion weights ({record.weights}), {record.dtype}, "
        f"diffusers {record.diffusers}",
        *([] if record.complete else [f"this measurement is incomplete; missing: {', '.join(record.missing)}"]),
    ]


def cut_words(record: ModelRecord) -> str:
    """`4 of 40 num_layers` for a reduced stack; nothing for a whole one."""
    stacks = record.layers.items()
    return ", ".join(f"{count} of {record.full_layers[name]} {name}" for name, count in stacks if count != record.full_layers[name])


def environment_line(record: ModelRecord) -> str:
    """What it was measured on and with; a record that does not say so leaves that out."""
    known = record.environment
    named = [f"{label} {known[key]}" for label, key in (("driver", "driver"), ("torch", "torch"), ("triton", "triton")) if known.get(key)]
    device, commit = known.get("device_name") or known.get("device"), str(known.get("git_commit") or "")[:12]
    parts = [device, *named, f"diffusers {record.diffusers}", f"commit {commit}" if commit else ""]
    return ", ".join(str(part) for part in parts if part)


def time_rows(record: ModelRecord) -> list[list[str]]:
    """A row per variant."""
    again = record.confirmation.speedups if record.confirmation is not None else {}
    return [
        [
            one.variant,
            f"{one.time_ms.value:.2f}" if one.time_ms is not None else "-",
            _speedup(one),
            f"{again[one.variant].value:.3f}x" if one.variant in again else "-",
            f"{one.gpu.busy_ms.value:.2f}" if one.gpu is not None else "-",
            "-" if one.gpu is None or one.gpu.speedup is None else speedup_words(one.gpu.speedup),
            _rule(record, one.variant),
            f"{one.sm_mhz:.0f}" if one.sm_mhz else "-",
            f"{one.peak_bytes / 2**30:.1f}" if one.peak_bytes else "-",
            record.verdicts[one.variant].kind if one.variant in record.verdicts else "",
        ]
        for one in record.times
    ]


def gpu_time_lines(record: ModelRecord) -> list[str]:
    """Why variants have no GPU busy time, where some have none."""
    return [f"GPU busy times are absent: {record.gpu_times_absent}"] if record.gpu_times_absent else []


def _rule(record: ModelRecord, variant: str) -> str:
    """SGLang's rule: a mean gain of 1.5 % or more passes."""
    return {True: "pass", False: "fail", None: "-"}[record.acceptance.get(variant)]


def _speedup(one: StepTime) -> str:
    return one.error or speedup_words(one.speedup)


def speedup_words(speedup: Estimate | None) -> str:
    """`1.319x [1.314, 1.324]`; `[?]` after one round; `1` for the variant that the others are compared with."""
    if speedup is None:
        return "1"
    return f"{speedup.value:.3f}x " + (f"[{speedup.low:.3f}, {speedup.high:.3f}]" if bounded(speedup) else "[?]")


def loop_rows(record: ModelRecord) -> list[list[str]]:
    """A row per denoise loop, beside as many steps as it has."""
    return [
        [one.variant, str(one.steps), f"{one.time_ms.value:.2f}", f"{one.steps_ms:.2f}", speedup_words(one.speedup)] for one in record.loops
    ]


def call_rows(record: ModelRecord) -> list[list[str]]:
    """A row per site and parameters."""
    return [[one.site, one.op, str(one.calls), one.kernel, str(one.fallbacks) if one.fallbacks else ""] for one in record.calls]


def stage_columns(record: ModelRecord) -> list[str]:
    """The breakdown's columns: the stage, and milliseconds of each variant."""
    return ["stage", *(f"{one.variant} ms" for one in record.breakdowns)]


def stage_rows(record: ModelRecord) -> list[list[str]]:
    """A row per stage, then the idle time, the busy time and the span."""
    stages = list(dict.fromkeys(stage.stage for one in record.breakdowns for stage in one.stages))
    rows = []
    for stage in stages:
        times = [next((found.time_us for found in one.stages if found.stage == stage), 0.0) for one in record.breakdowns]
        rows.append([stage, *(f"{time / 1000:.2f}" for time in times)])
    rows.append(["idle", *(f"{one.idle_us / 1000:.2f}" for one in record.breakdowns)])
    rows.append(["span", *(f"{one.span_us / 1000:.2f}" for one in record.breakdowns)])
    return rows


def stage_remarks(record: ModelRecord) -> list[str]:
    """What the stages of a graph rest on, where one was profiled."""
    graphs = [one.variant for one in record.breakdowns if one.variant.endswith("_graph")]
    if not graphs:
        return []
    return [
        f"{', '.join(graphs)}: in a CUDA graph stages rest on kernel names alone, so rotations and gates count as elementwise or copies; "
        "compare stages with those of variants without a graph"
    ]


def whole_lines(record: ModelRecord) -> list[str]:
    """What the reduced stack says of the whole model, and how that was checked."""
    found = record.whole
    if found is None:
        return []
    lines = []
    for one in found.steps:
        blocks = ", ".join(f"{time:.3f} ms for a block of {stack}" for stack, time in one.block_ms.items())
        if one.time_ms is not None:
            lines.append(f"{one.variant}: {_milliseconds(one.time_ms)} by its blocks: {blocks}")
    if found.speedup is not None:
        lines.append(f"speedup of the whole by its blocks: {speedup_words(found.speedup)}")
    return [*lines, *found.checked.split("; ")]


def _milliseconds(time_ms: Estimate) -> str:
    return f"{time_ms.value:.2f} ms " + (f"[{time_ms.low:.2f}, {time_ms.high:.2f}]" if bounded(time_ms) else "[?]")


def explanation_lines(record: ModelRecord) -> list[str]:
    """The predicted and the measured saving, and what stands between."""
    found = record.explanation
    if found is None:
        return []
    source = f" by stored run {found.stored}" if found.stored else ""
    off = f" ({difference_words(found, found.predicted_us)})" if found.predicted_us is not None else ""
    lines = [f"a step saves {found.measured_us / 1000:.2f} ms; predicted{source}: {_ms(found.predicted_us)}{off}"]
    by_clocks = (("that attention shows", found.reckoned_us), ("read in timed steps", found.clocked_us))
    lines += [
        f"  with the clocks {which}: {_ms(time_us)} ({difference_words(found, time_us)})"
        for which, time_us in by_clocks
        if time_us is not None
    ]
    if found.chains_us is not None:
        lines.append(f"  it rests on what diffusers launches; by each op's chain of torch operations it would be {_ms(found.chains_us)}")
    if found.tuned_us is not None:
        lines.append(f"  against the suite's tuned split chains, which diffusers does not run, it would save {_ms(found.tuned_us)}")
    lines += [f"  {op.op}: {_ms(op.predicted_us)} predicted ({_ms(op.tuned_us)} against the tuned chain)" for op in found.ops]
    lines += [f"  {cause.time_us / 1000:+.2f} ms: {cause.cause}" for cause in found.causes]
    if found.unexplained_us is not None and round(found.unexplained_us / 1000, 2):
        lines.append(f"  {found.unexplained_us / 1000:+.2f} ms: unexplained ({share_words(found.unexplained_us, found)} of the saving)")
    return [*lines, *(f"  {remark}" for remark in found.remarks)]


def difference_words(found: Explanation, predicted: float | None) -> str:
    """`+5.9 %`: how much more than the measured saving a prediction is; and how many calls have none."""
    if predicted is None:
        return DASH
    lacking = f", without {found.unpredicted_calls} calls" if found.unpredicted_calls else ""
    return share_words(predicted - found.measured_us, found) + lacking


def share_words(time_us: float, found: Explanation) -> str:
    """`-3.8 %`: a time as a share of the measured saving."""
    return f"{100 * time_us / abs(found.measured_us):+.1f} %" if found.measured_us else DASH


def _ms(time_us: float | None) -> str:
    return "nothing" if time_us is None else f"{time_us / 1000:.2f} ms"


def drift_lines(record: ModelRecord) -> list[str]:
    """The drift in words and by step."""
    drift = record.drift
    if drift is None:
        return []
    lines = [f"drift of {drift.variant} against split: {drift.verdict.kind}: {drift.verdict.reason}"]
    for own, other in zip(drift.steps, drift.equivalent, strict=True):
        lines.append(
            f"  step {own.step}: RMS {own.rms:.2e}, largest {own.largest:.2e}, PSNR {own.psnr_db:.1f} dB; "
            f"equivalent model {other.rms:.2e}, {other.largest:.2e}, {other.psnr_db:.1f} dB"
        )
    return [*lines, f"  equivalent model: {drift.equivalent_by}"]


def verdict_lines(record: ModelRecord) -> list[str]:
    """Every verdict's reason, and what is wrong with the substitution."""
    lines = [f"{variant}: {verdict.kind}: {verdict.reason}" for variant, verdict in record.verdicts.items()]
    return [*lines, *(f"substitution: {finding}" for finding in record.findings), *(f"failed: {failure}" for failure in record.failures)]


def model_markdown(record: ModelRecord, *, picture: str = "") -> str:
    """The whole record as a page.

    Args:
        picture: file name of the breakdown's picture beside it; empty for none.
    """
    parts = [f"# {record.title}", *head_lines(record), environment_line(record)]
    parts.append(_titled("Step times", TIME_COLUMNS, time_rows(record)))
    parts.append("\n".join(f"* {line}" for line in (*gpu_time_lines(record), *verdict_lines(record))))
    if record.loops:
        parts.append(_titled("Denoise loop", LOOP_COLUMNS, loop_rows(record)))
    if record.whole is not None:
        parts.append("## The whole model, from the reduced stack\n\n" + "\n".join(f"* {line}" for line in whole_lines(record)))
    if record.breakdowns:
        parts.append(_titled("Where the time goes", stage_columns(record), stage_rows(record)))
        parts += stage_remarks(record)
        if picture:
            parts.append(f"![Where a step's time goes, by variant]({picture})")
    if record.explanation is not None:
        parts.append("## The saving explained\n\n" + "\n".join(f"    {line}" for line in explanation_lines(record)))
    if record.calls:
        parts.append(_titled("Calls of ops in one step", CALL_COLUMNS, call_rows(record)))
    if record.drift is not None:
        parts.append("## Drift\n\n" + "\n".join(f"    {line}" for line in drift_lines(record)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _titled(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"## {title}\n\n" + "\n".join(markdown_table(columns, rows))
