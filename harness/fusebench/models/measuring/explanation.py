"""The saving that stored kernel times predict for a step, the measured one, and where the difference went.

Prediction: over all recorded calls, the time of the op's chain of torch operations, which is what diffusers runs, less that of the kernel
that ran, from a stored run of this GPU model.  The suite's own sum, against its tuned split chain, stands beside it.  Causes are
differences between the profiled steps; they and the prediction add up to the measured saving.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ...schema import Result, Run, Status
from ...schema.models import Breakdown, Cause, Explanation, OpSaving, SiteCalls, StepTime
from ..variants import GRAPH, SPLIT

LIBRARY_STAGES = ("matmul", "attention")
"""Stages that no op touches: they do the same work in both steps but for GELUs in products, and differ by clocks."""
TORCH = "split_torch@1"
"""The op's chain of torch operations."""
HOST_BOUND = 0.1
"""Share of a step that a CUDA graph spares, from which the step is called host-bound."""


def explain(
    calls: Sequence[SiteCalls], times: Sequence[StepTime], breakdowns: Sequence[Breakdown], stored: Run | None, *, fused: str
) -> Explanation | None:
    """Explain the saving of the variant `fused` over `split`; None where one of them was not timed and profiled.

    The profiler slows the host down, so that its gaps say nothing: of the profiled steps only busy times count.  What a timed step takes
    beyond them is gaps, told from a CUDA graph of the same variant, and clocks, which sustained load lowers.
    """
    timed = {one.variant: 1000 * one.time_ms.value for one in times if one.time_ms is not None}
    profiled = {one.variant: one for one in breakdowns}
    before, after = profiled.get(SPLIT), profiled.get(fused)
    if before is None or after is None or SPLIT not in timed or fused not in timed:
        return None
    measured = timed[SPLIT] - timed[fused]
    ops, missing = predict(calls, stored) if stored is not None else ((), ("no stored run of this GPU model: nothing is predicted",))
    predicted, tuned = _sum(op.predicted_us for op in ops), _sum(op.tuned_us for op in ops)
    stages = _differences(before, after)
    library = sum(stages[stage] for stage in LIBRARY_STAGES)
    own = sum(stages.values()) - library
    overlap = before.busy_us - after.busy_us - library - own
    causes = [
        Cause(
            cause="the model's own operations take longer (or less long, below zero) than the ops' torch chains do alone",
            time_us=own - (predicted or 0.0),
        ),
        Cause(
            cause="matrix products and attention: the same work in both profiled steps but for GELUs in products, at other clocks",
            time_us=library,
        ),
        Cause(cause="activities that overlap", time_us=overlap),
    ]
    beyond = measured - (before.busy_us - after.busy_us)
    remarks = list(missing)
    if SPLIT + GRAPH in timed and fused + GRAPH in timed:
        gaps = {name: timed[name] - timed[name + GRAPH] for name in (SPLIT, fused)}
        spared = gaps[SPLIT] - gaps[fused]
        causes.append(Cause(cause="gaps while the device waits for the host, which a CUDA graph spares", time_us=spared))
        causes.append(Cause(cause="clocks under sustained load, lower than in the profiled steps", time_us=beyond - spared))
        remarks += [
            f"{name} is host-bound: a CUDA graph spares {100 * gap / timed[name]:.0f} % of its step"
            for name, gap in gaps.items()
            if gap > HOST_BOUND * timed[name]
        ]
    else:
        causes.append(Cause(cause="gaps, and clocks under sustained load (a CUDA graph of each would tell them apart)", time_us=beyond))
    return Explanation(
        predicted_us=predicted,
        tuned_us=tuned,
        measured_us=measured,
        stored="" if stored is None else f"{stored.id} of {stored.created}",
        ops=tuple(ops),
        causes=tuple(causes),
        remarks=tuple(remarks),
    )


Work = tuple[str | int, ...]


def predict(calls: Sequence[SiteCalls], stored: Run) -> tuple[tuple[OpSaving, ...], tuple[str, ...]]:
    """Savings by op, and the sites of which no stored case has the work."""
    times = _stored_times(stored)
    savings: dict[str, list[tuple[float, float]]] = {}
    missing = []
    for site in calls:
        found = times.get(_work(site.op, site.shape, site.minimum_bytes), {})
        chains = [found.get(name) for name in (TORCH, SPLIT, site.kernel)]
        terms = savings.setdefault(site.op, [])
        if None in chains:
            missing.append(
                f"{site.site} ({site.shape}): the stored run has no such case with {site.kernel}, so its saving is not predicted"
            )
        else:
            torch_chain, split, own = (time for time in chains if time is not None)
            terms.append((site.calls * (torch_chain - own), site.calls * (split - own)))
    ops = tuple(
        OpSaving(op=op, predicted_us=_sum(torch_chain for torch_chain, _ in terms), tuned_us=_sum(tuned for _, tuned in terms))
        for op, terms in savings.items()
    )
    return ops, tuple(missing)


def _sum(terms: Iterable[float | None]) -> float | None:
    """The sum of the known terms; None where none is known."""
    known = [term for term in terms if term is not None]
    return sum(known) if known else None


def _work(op: str, shape: str, minimum_bytes: int) -> Work:
    """What decides a memory-bound kernel's time: the op, its sizes and dtype (a shape's first two words) and the bytes that it moves."""
    return op, *shape.split()[:2], minimum_bytes


def _stored_times(stored: Run) -> dict[Work, dict[str, float]]:
    """Microseconds by kernel, and by `split` for the case's baseline, of each kind of work."""
    by_case: defaultdict[str, list[Result]] = defaultdict(list)
    for result in stored.results:
        if result.status is Status.MEASURED and result.measurement is not None and not result.suspicious:
            by_case[result.case_key].append(result)
    found: dict[Work, dict[str, float]] = {}
    for summary in stored.cases:
        times = found.setdefault(_work(summary.case.op, summary.shape, summary.minimum_bytes), {})
        for result in by_case[summary.case.key]:
            if result.measurement is not None:
                times.setdefault(result.kernel, result.measurement.time_us.value)
                if result.kernel == summary.baseline:
                    times.setdefault(SPLIT, result.measurement.time_us.value)
                if result.kernel.partition("/")[2] == TORCH:
                    times.setdefault(TORCH, result.measurement.time_us.value)
    return found


def _differences(before: Breakdown, after: Breakdown) -> dict[str, float]:
    """Microseconds saved by stage; every stage of either step, and those of the libraries in any case."""
    saved: defaultdict[str, float] = defaultdict(float, dict.fromkeys(LIBRARY_STAGES, 0.0))
    for one, sign in ((before, 1), (after, -1)):
        for stage in one.stages:
            saved[stage.stage] += sign * stage.time_us
    return dict(saved)
