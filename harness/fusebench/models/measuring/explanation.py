"""The saving that stored kernel times predict for a step, the measured one, and where the difference went.

Prediction by chains: over all recorded calls, the time of the op's chain of torch operations less that of the kernel that ran, from a
stored run of this GPU model.  The suite's own sum, against its tuned split chain, stands beside it.  It is a function of a record and a
stored run, so a report makes it anew from the run that is stored today.

Where a model's eager launches were reckoned (`eager_times`), the prediction rests on them: on what diffusers launches, and not on the chain
of each op.  What lower clocks cost products and attention is reckoned twice: from attention, whose launches are the same in both profiled
steps, and from the clocks read during the timed ones, as if all of that work followed the clock.  These figures know nothing of the
saving.  The other causes are differences between the two profiled steps, and add up to it by construction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ...schema import Result, Run, Status
from ...schema.models import Breakdown, Cause, EagerTimes, Explanation, ModelRecord, OpSaving, SiteCalls, StepTime
from ..linear_gelu import LINEAR_GELU
from ..op_calls import EXTRA_CALLS
from ..variants import GRAPH, SPLIT, parse_variant

LIBRARY_STAGES = ("matmul", "attention")
"""Stages that no op touches."""
TORCH = "split_torch@1"
"""The op's chain of torch operations."""
HOST_BOUND = 0.1
"""Share of a step that a CUDA graph spares, from which the step is called host-bound."""
OPS_OF_ATTENTION = ("qknorm_rope", "qknorm_across_heads_rope", "rotary_embedding")
"""Ops that diffusers runs inside attention modules; all others stand outside."""
ROUNDING_US = 1.0
"""Sums of a step's activities differ by less than this where none overlap."""
NO_PLACES = (
    "the record lacks what ran inside attention modules, so the model's own phrasing of the ops' steps is not held against their chains: "
    "measure the model again"
)
OTHER_SUBSTITUTION = (
    "the launches of diffusers were reckoned for other calls than this record's: it is of an older substitution, so chains predict it"
)
GELU_KERNEL = "GeluCUDAKernel"
"""Part of the name of torch's kernel of a GELU alone."""


def explained(record: ModelRecord, stored: Run | None, eager: EagerTimes | None = None) -> ModelRecord:
    """`record` with the explanation of its first substituted variant's saving by `stored`; as it is where there is none to make.

    Args:
        eager: by the chains of `stored`.  It explains no record of other stacks, or of another substitution.

    A record of a CPU has none.  One that has an explanation keeps it where no run of its GPU model is stored.
    """
    fused = next((one.variant for one in record.times if not one.error and parse_variant(one.variant).fused), None)
    if record.environment.get("device") == "cpu" or fused is None or (stored is None and record.explanation is not None):
        return record
    own = eager if eager is not None and (eager.layers, eager.moved_bytes) == (record.layers, _moved(record.calls)) else None
    found = explain(record.calls, record.times, record.breakdowns, stored, fused=fused, suite=f"models/{record.model}", eager=own)
    if found is not None and eager is not None and own is None:
        found = msgspec.structs.replace(found, remarks=(*found.remarks, OTHER_SUBSTITUTION))
    return msgspec.structs.replace(record, explanation=found)


def explain(
    calls: Sequence[SiteCalls],
    times: Sequence[StepTime],
    breakdowns: Sequence[Breakdown],
    stored: Run | None,
    *,
    fused: str,
    suite: str,
    eager: EagerTimes | None = None,
) -> Explanation | None:
    """Explain the saving of the variant `fused` over `split`; None where one of them was not timed and profiled.

    The profiler slows the host down, so that its gaps say nothing: of the profiled steps only busy times count.  What a timed step takes
    beyond them is gaps, told from a CUDA graph of the same variant, and clocks, which sustained load lowers.

    Args:
        suite: holds the cases that the calls are, to be named where the stored run lacks them.
        eager: what diffusers launches, by the chains of `stored`; without it the ops' chains predict.
    """
    timed = {one.variant: 1000 * one.time_ms.value for one in times if one.time_ms is not None}
    mhz = {one.variant: one.sm_mhz for one in times}
    profiled = {one.variant: one for one in breakdowns}
    before, after = profiled.get(SPLIT), profiled.get(fused)
    if before is None or after is None or SPLIT not in timed or fused not in timed:
        return None
    measured = timed[SPLIT] - timed[fused]
    found = predict(calls, stored, suite=suite)
    chains, tuned = _sum(op.predicted_us for op in found.ops), _sum(op.tuned_us for op in found.ops)
    reckoned = None if eager is None or found.unpredicted_calls or not found.ops else _by_launches(eager, found)
    left_out = 0.0 if eager is None or reckoned is None else eager.products_left_out
    products = left_out * _stage(before, "matmul")[0]
    predicted = chains if reckoned is None else sum(reckoned.values()) + products
    clocks = _clocks(before, after, left_out=left_out)
    causes = _causes_of_chains(calls, before, after, found) if reckoned is None else _causes_of_launches(before, after, reckoned)
    causes += _causes_of_libraries(before, after, clocks, products=products)
    saved = sum(_savings(before, after).values())
    overlap = before.busy_us - after.busy_us - saved
    if abs(overlap) > ROUNDING_US:
        causes.append(Cause(cause="activities that overlap, such as modulations ahead", time_us=overlap))
    beyond = measured - (before.busy_us - after.busy_us)
    remarks = [_stages_said(before, after), *found.lacks]
    if products >= ROUNDING_US:
        remarks.append(
            f"the prediction holds {products / 1000:.2f} ms of matrix products that the fused step does not make: {100 * left_out:.1f} % "
            "of the split step's, by their operations at the peak rates of their dtypes"
        )
    if found.ops and reckoned is None and _inside_attention(before, after) is None:
        remarks.append(NO_PLACES)
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
        chains_us=None if reckoned is None else chains,
        reckoned_us=None if predicted is None or clocks is None else predicted + clocks.time_us,
        clocked_us=None if predicted is None else _by_read_clocks(predicted, before, mhz[SPLIT], mhz[fused], left_out=left_out),
        tuned_us=tuned,
        measured_us=measured,
        stored="" if stored is None else f"{stored.id} of {stored.created}",
        ops=found.ops,
        unpredicted_calls=found.unpredicted_calls,
        causes=tuple(causes),
        unexplained_us=measured - (predicted or 0.0) - sum(cause.time_us for cause in causes),
        remarks=tuple(remarks),
    )


class Prediction(NamedTuple):
    """What a stored run predicts."""

    ops: tuple[OpSaving, ...]
    unpredicted_calls: int
    """Calls in one step of work or kernels that the stored run lacks."""
    lacks: tuple[str, ...]
    """Their sites, and the commands that would measure them."""
    kernels_us: Mapping[str, float]
    """What the predicted calls of each op take by the stored run."""


def _by_launches(eager: EagerTimes, found: Prediction) -> dict[str, float]:
    """Microseconds by place that the fused step saves of what diffusers launches."""
    return {
        place: split - eager.left_us.get(place, 0.0) - sum(time for op, time in found.kernels_us.items() if _place(op) == place)
        for place, split in eager.split_us.items()
    }


def _place(op: str) -> str:
    return "inside" if op in OPS_OF_ATTENTION else "outside"


def _moved(calls: Sequence[SiteCalls]) -> dict[str, int]:
    """Bytes that the calls of each site must read and write."""
    moved: defaultdict[str, int] = defaultdict(int)
    for site in calls:
        moved[site.site] += site.calls * site.minimum_bytes
    return dict(moved)


def _causes_of_launches(before: Breakdown, after: Breakdown, reckoned: Mapping[str, float]) -> list[Cause]:
    """What the profiled steps save beside products and attention more than the launches of diffusers say, by place where that is known."""
    saved, places = _saved_by_place(before, after), dict(reckoned)
    if saved is None:
        saved, places = {"in and outside": _own_savings(before, after)}, {"in and outside": sum(reckoned.values())}
    causes = []
    for place, by_stage in saved.items():
        own = sum(by_stage.values())
        text = (
            f"{place} attention modules the fused model ({_each(by_stage)}) saves {own / 1000:.2f} ms of the profiled steps, "
            f"where {places[place] / 1000:.2f} ms are predicted"
        )
        causes.append(Cause(cause=text, time_us=own - places[place]))
    return causes


def _causes_of_chains(calls: Sequence[SiteCalls], before: Breakdown, after: Breakdown, found: Prediction) -> list[Cause]:
    """GELUs that moved into products, and how much more the model's own phrasing of the ops' steps takes than the ops' chains do alone.

    The latter needs a prediction of every call, and profiles that tell what ran inside attention modules.
    """
    gelu = _gelu(calls, before)
    causes = [] if gelu is None else [gelu]
    saved = _saved_by_place(before, after)
    if found.unpredicted_calls or not found.ops or saved is None:
        return causes
    for place, by_stage in saved.items():
        named = [op for op in found.ops if _place(op.op) == place]
        alone = _sum(op.predicted_us for op in named) or 0.0
        of_model = sum(by_stage.values()) - (gelu.time_us if gelu is not None and place == "outside" else 0.0)
        text = (
            f"{place} attention modules the model's own phrasing ({_each(by_stage)}) saves {of_model / 1000:.2f} ms of the profiled steps, "
            f"where {', '.join(op.op for op in named) or 'no op'} alone would save {alone / 1000:.2f} ms"
        )
        causes.append(Cause(cause=text, time_us=of_model - alone))
    return causes


def _saved_by_place(before: Breakdown, after: Breakdown) -> dict[str, dict[str, float]] | None:
    """Microseconds by stage that the stages outside of libraries save, by place; None where a profile does not tell the places."""
    inside = _inside_attention(before, after)
    if inside is None:
        return None
    return {"inside": inside, "outside": {stage: time - inside[stage] for stage, time in _own_savings(before, after).items()}}


def _gelu(calls: Sequence[SiteCalls], before: Breakdown) -> Cause | None:
    """What the split model's GELUs take; None where its profile does not list as many of them as now run in products."""
    moved = sum(site.calls - site.fallbacks for site in calls if site.op == LINEAR_GELU)
    listed = [kernel for kernel in before.kernels if GELU_KERNEL in kernel.name and kernel.stage not in LIBRARY_STAGES]
    if not moved or sum(kernel.launches for kernel in listed) != moved:
        return None
    return Cause(cause=f"{moved} launches of GELU, which the products of the fused step apply", time_us=sum(one.time_us for one in listed))


def _stages_said(before: Breakdown, after: Breakdown) -> str:
    saved = _own_savings(before, after)
    return f"in the profiled steps all but matrix products and attention save {sum(saved.values()) / 1000:.2f} ms: {_each(saved)}"


def _each(saved: Mapping[str, float]) -> str:
    """Milliseconds by stage, without those that save none."""
    return ", ".join(f"{stage} {time / 1000:.2f}" for stage, time in saved.items() if round(time / 1000, 2)) or "nothing"


def _clocks(before: Breakdown, after: Breakdown, *, left_out: float) -> Cause | None:
    """What products and attention lose to the clocks of the fused step, as the same launches of attention tell; None without them.

    Args:
        left_out: share of the split step's products that the fused step does not make.
    """
    (own, launches), (now, launches_now) = (_stage(one, "attention") for one in (before, after))
    if not own or launches != launches_now:
        return None
    longer = now / own - 1
    change = f"{abs(100 * longer):.1f} % {'more' if longer > 0 else 'less'} time"
    text = f"clocks: the same {launches} launches of attention take {change} in the fused step, and so would the split step's products"
    return Cause(cause=text, time_us=-longer * _kept(before, left_out))


def _by_read_clocks(predicted: float, before: Breakdown, split_mhz: float, fused_mhz: float, *, left_out: float) -> float | None:
    """The prediction less what the fused step's lower clock adds to products and attention."""
    return predicted - (split_mhz / fused_mhz - 1) * _kept(before, left_out) if split_mhz and fused_mhz else None


def _kept(before: Breakdown, left_out: float) -> float:
    """Microseconds of the split step's products and attention that the fused step has too."""
    return _stage(before, "attention")[0] + (1 - left_out) * _stage(before, "matmul")[0]


def _stage(one: Breakdown, stage: str) -> tuple[float, int]:
    """Microseconds and launches of a stage."""
    found = [each for each in one.stages if each.stage == stage]
    return sum(each.time_us for each in found), sum(each.launches for each in found)


def _causes_of_libraries(before: Breakdown, after: Breakdown, clocks: Cause | None, *, products: float) -> list[Cause]:
    """Attention and matrix products, which are kernels of libraries in both steps: clocks, and the rest beyond `products`, microseconds
    that are predicted."""
    saved = _savings(before, after)
    saved["matmul"] -= products
    (_, launches), (_, launches_now) = (_stage(one, "matmul") for one in (before, after))
    text = f"matrix products: {launches} launches before, {launches_now} after"
    if clocks is not None:
        rest = saved["attention"] + saved["matmul"] - clocks.time_us
        return [clocks, Cause(cause=f"{text}, beyond clocks", time_us=rest)]
    same, now = (_stage(one, "attention")[1] for one in (before, after))
    attention = [Cause(cause=f"attention: {same} launches before, {now} after", time_us=saved["attention"])] if same or now else []
    return [*attention, Cause(cause=f"{text}, at other clocks", time_us=saved["matmul"])]


def predict(calls: Sequence[SiteCalls], stored: Run | None, *, suite: str) -> Prediction:
    """Savings by op.  Extra calls are none, and no stored run predicts them: for linear layers with their GELU, see `_gelu`."""
    calls = [site for site in calls if site.op not in EXTRA_CALLS]
    if stored is None:
        return Prediction((), sum(site.calls for site in calls), ("no stored run of this GPU model: nothing is predicted",), {})
    times = _stored_times(stored)
    savings: dict[str, list[tuple[float, float]]] = {}
    unpredicted, lacks, commands = 0, list[str](), dict[str, str]()
    kernels: defaultdict[str, float] = defaultdict(float)
    for site in calls:
        found = times.get(_work(site.op, site.shape, site.minimum_bytes), {})
        chains = [found.get(name) for name in (TORCH, SPLIT, site.kernel)]
        terms = savings.setdefault(site.op, [])
        if None in chains:
            unpredicted += site.calls
            lacks.append(f"{site.site} ({site.shape}) is not predicted: {_lack(found, site.kernel)}")
            commands[site.op] = (
                f"to predict {site.op}: `fusebench run --suite {suite} --op {site.op}`, then `fusebench baseline promote latest --add`"
            )
        else:
            torch_chain, split, own = (time for time in chains if time is not None)
            kernels[site.op] += site.calls * own
            terms.append((site.calls * (torch_chain - own), site.calls * (split - own)))
    ops = tuple(
        OpSaving(op=op, predicted_us=_sum(torch_chain for torch_chain, _ in terms), tuned_us=_sum(tuned for _, tuned in terms))
        for op, terms in savings.items()
    )
    return Prediction(ops, unpredicted, (*lacks, *commands.values()), dict(kernels))


def _lack(found: Mapping[str, float], kernel: str) -> str:
    """What the stored run lacks for a kernel on one kind of work."""
    if not found:
        return "the stored run has no such case"
    if kernel in found:
        return f"the stored run has no time of the split chain, or of {TORCH}, for it"
    name = kernel.partition("@")[0]
    others = sorted(one.partition("/")[2] for one in found if one.partition("@")[0] == name)
    return f"the stored run has the case without {kernel}" + (f", but with {', '.join(others)}" if others else "")


def _sum(terms: Iterable[float | None]) -> float | None:
    """The sum of the known terms; None where none is known."""
    known = [term for term in terms if term is not None]
    return sum(known) if known else None


Work = tuple[str | int, ...]


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


def _savings(before: Breakdown, after: Breakdown) -> dict[str, float]:
    """Microseconds saved by stage; every stage of either step, and those of the libraries in any case."""
    saved: defaultdict[str, float] = defaultdict(float, dict.fromkeys(LIBRARY_STAGES, 0.0))
    for one, sign in ((before, 1), (after, -1)):
        for stage in one.stages:
            saved[stage.stage] += sign * stage.time_us
    return dict(saved)


def _own_savings(before: Breakdown, after: Breakdown) -> dict[str, float]:
    """Microseconds saved by stage, without those of the libraries."""
    return {stage: saved for stage, saved in _savings(before, after).items() if stage not in LIBRARY_STAGES}


def _inside_attention(before: Breakdown, after: Breakdown) -> dict[str, float] | None:
    """Microseconds by stage that the stages outside of libraries save inside attention modules; None where a profile does not tell."""
    saved: defaultdict[str, float] = defaultdict(float, dict.fromkeys(_own_savings(before, after), 0.0))
    for one, sign in ((before, 1), (after, -1)):
        for stage in one.stages:
            if stage.stage not in LIBRARY_STAGES:
                if stage.attention_us is None:
                    return None
                # A launch that is repeated past torch leaves no trace of its module, and only attention modules rotate.
                saved[stage.stage] += sign * (stage.time_us if stage.stage == "rope" else stage.attention_us)
    return dict(saved)
