"""Dispatch tables from runs: which kernel each measured case puts first, and how well the table chooses for cases that it lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence

import msgspec

from ..registry.dispatching.ranking import Ranker
from ..registry.dispatching.tables import minor_version
from ..schema import CacheState, Result, Run
from ..schema.dispatch import TABLE_VERSION, DispatchKey, DispatchTable, KernelTime, TableEntry, TableGroup, TableRun
from .dispatch_choice import fused_times

TIE = 1.01
"""Kernels within this ratio of the fastest are equal, and the first in the op's default order is taken, so that noise changes no table. On
H200s the times of equal code scatter by 0.2 to 1 % between runs."""


class TunedCase(msgspec.Struct, frozen=True, kw_only=True):
    """The measured times of one case, as an entry takes them."""

    key: DispatchKey
    entry: TableEntry


def refused_run(run: Run) -> str:
    """Why no table can be made of `run`; empty if one can."""
    if run.environment.device != "cuda":
        return f"it was measured on {run.environment.device_name}, and tables are for GPUs"
    if run.plan.cache is not CacheState.COLD:
        return f"its cache was {run.plan.cache}, and dispatch tables hold cold times"
    return ""


def tuned_cases(
    run: Run, op: str, keys: Mapping[str, DispatchKey], order: Sequence[str], declined: Mapping[str, Container[str]] | None = None
) -> list[TunedCase]:
    """The cases of `op` in `run` with believed times of at least two fused kernels, of one if the op has no more: one compares nothing.

    Args:
        keys: by case key, the parameters that decide; cases without one are left out.
        order: ids of the fused kernels in the op's default order; others are left out.
        declined: by case key, ids of the kernels that decline the case today; their times are left out.
    """
    results: dict[str, list[Result]] = {}
    for result in run.results:
        if result.op == op:
            results.setdefault(result.case_key, []).append(result)
    found = []
    for summary in run.cases:
        case = summary.case.key
        key = keys.get(case)
        times = {kernel: one for kernel, one in fused_times(results.get(case, ())).items() if kernel in order}
        times = {kernel: one for kernel, one in times.items() if kernel not in (declined or {}).get(case, ())}
        if key is None or len(times) < min(2, len(order)) or summary.not_cold or summary.same_as:
            continue
        measured = {kernel.partition("/")[2]: one.measurement.time_us for kernel, one in times.items() if one.measurement is not None}
        taken = _ordered({name: (one.value, max(one.high - one.value, one.value - one.low)) for name, one in measured.items()}, order)
        entry = TableEntry(sizes=key.sizes, traits=key.traits, case=case, runs=(run.id,), times=taken)
        found.append(TunedCase(key=key, entry=entry))
    return found


def _ordered(times: Mapping[str, tuple[float, float]], order: Sequence[str]) -> tuple[KernelTime, ...]:
    """The times and spreads by speed, after the kernel to take."""
    names = [kernel.partition("/")[2] for kernel in order]
    fastest = min(value for value, _ in times.values())
    first = next(name for name in names if name in times and times[name][0] <= TIE * fastest)
    ranked = sorted(times, key=lambda name: (name != first, times[name][0]))
    return tuple(KernelTime(name, float(f"{us:.4g}"), float(f"{spread:.2g}")) for name in ranked for us, spread in (times[name],))


def _joined(entries: Sequence[TableEntry], order: Sequence[str]) -> TableEntry:
    """One entry for measurements of equal keys, the newest first: those that timed most kernels count, and their times are averaged.

    Older runs lack newer kernels, and boards differ: a mean over runs that timed different kernels would compare boards. A kernel that only
    another measurement timed is added (see `_completed`).
    """
    most = max(len(entry.times) for entry in entries)
    kept = [entry for entry in entries if len(entry.times) == most]
    names = [time.kernel for time in kept[0].times]
    kept = [entry for entry in kept if {time.kernel for time in entry.times} == set(names)]
    joined = kept[0] if len(kept) == 1 else _averaged(kept, names, order)
    for other in (entry for entry in entries if entry not in kept):
        joined = _completed(joined, other, order)
    return joined


def _completed(whole: TableEntry, other: TableEntry, order: Sequence[str]) -> TableEntry:
    """`whole` with the kernels that only `other` timed: each time is multiplied by the mean ratio of the kernels that both timed.

    The ratio takes the boards' difference out. Without a kernel in common nothing is added.
    """
    known = {time.kernel: time for time in whole.times}
    ratios = [math.log(known[time.kernel].us / time.us) for time in other.times if time.kernel in known]
    added = [time for time in other.times if time.kernel not in known]
    if not ratios or not added:
        return whole
    ratio = math.exp(sum(ratios) / len(ratios))
    times = {name: (time.us, time.spread) for name, time in known.items()}
    times |= {time.kernel: (ratio * time.us, ratio * time.spread) for time in added}
    runs = tuple(dict.fromkeys((*whole.runs, *other.runs)))
    return msgspec.structs.replace(whole, runs=runs, times=_ordered(times, order))


def _averaged(kept: Sequence[TableEntry], names: Sequence[str], order: Sequence[str]) -> TableEntry:
    """The geometric means of entries that timed the same kernels."""
    found = {name: [time for entry in kept for time in entry.times if time.kernel == name] for name in names}
    times = {name: _mean(own) for name, own in found.items()}
    runs = tuple(dict.fromkeys(run for entry in kept for run in entry.runs))
    return msgspec.structs.replace(kept[0], runs=runs, times=_ordered(times, order))


def _mean(times: Sequence[KernelTime]) -> tuple[float, float]:
    """The geometric mean, and the distance to the farthest end of the intervals."""
    mean = math.exp(sum(math.log(one.us) for one in times) / len(times))
    return mean, max(max(one.high - mean, mean - one.low) for one in times)


def tuned_table(
    op: str,
    runs: Sequence[Run],
    cases: Sequence[TunedCase],
    *,
    order: Sequence[str],
    before: DispatchTable | None = None,
    records: Mapping[str, str] | None = None,
    codes: Mapping[str, Mapping[str, str]] | None = None,
) -> DispatchTable:
    """The table of `cases`, and of the entries of `before` that no case replaces. Cases of equal keys make one entry.

    A case replaces no entry that timed more kernels, since a run that lacks the newer kernels would take them out of the table, and none
    that holds its run already. To an entry that timed more it adds the kernels that the entry lacks.

    Args:
        runs: of one GPU model and one minor version of Triton; the newest first, like `cases`.
        order: ids of the fused kernels in the op's default order.
        records: by run id, the folder of its record within the project.
        codes: by run id and kernel (`name@version`), the digest of the source that it measured.
    """
    groups: dict[str, dict[str, list[TableEntry]]] = {}
    kinds: dict[str, dict[str, object]] = {}
    for one in cases:
        group = _text(one.key.kinds)
        kinds.setdefault(group, one.key.kinds)
        groups.setdefault(group, {}).setdefault(_text(one.key.sizes), []).append(one.entry)
    for old in before.groups if before else ():
        group = _text(old.kinds)
        kinds.setdefault(group, old.kinds)
        for entry in old.entries:
            found = groups.setdefault(group, {}).setdefault(_text(entry.sizes), [entry])
            if {run for one in found for run in one.runs} <= set(entry.runs):
                found[:] = [entry]
            elif len(entry.times) > max(len(one.times) for one in found):
                found.append(entry)
    entries = {
        group: sorted((_joined(one, order) for one in found.values()), key=lambda entry: tuple(entry.sizes.values()))
        for group, found in groups.items()
    }
    timed: dict[str, set[str]] = {}
    for entry in (entry for found in entries.values() for entry in found):
        for run in entry.runs:
            timed.setdefault(run, set()).update(time.kernel for time in entry.times)
    records = records or {}
    replaced = set(records.values())  # folders that hold these runs now, and no older one
    older = {
        name: msgspec.structs.replace(one, record="") if one.record in replaced else one
        for name, one in (before.runs if before else {}).items()
    }
    every = older | {run.id: _run(run, records.get(run.id, ""), (codes or {}).get(run.id, {})) for run in runs}
    environment = runs[0].environment
    return DispatchTable(
        schema_version=TABLE_VERSION,
        op=op,
        gpu=environment.device_name,
        triton=minor_version(environment.triton),
        runs={
            name: msgspec.structs.replace(
                every[name], code={kernel: digest for kernel, digest in sorted(every[name].code.items()) if kernel in timed[name]}
            )
            for name in sorted(timed)
        },
        groups=tuple(TableGroup(kinds=kinds[group], entries=tuple(entries[group])) for group in sorted(groups)),
    )


def table_ratios(table: DispatchTable, *, left_out: bool, asked: Callable[[TableEntry], bool] = lambda entry: True) -> list[float]:
    """For each entry, the time of the kernel that `table` chooses there over the fastest time.

    Args:
        left_out: choose for each entry by the other entries alone, which is how the table does for shapes that it lacks. Entries for
            which the others say nothing have no ratio.
        asked: whether an entry counts.
    """
    ratios, ranker = [], Ranker(table)
    for group in table.groups:
        for entry in filter(asked, group.entries):
            times = {time.kernel: time.us for time in entry.times}
            key = DispatchKey(entry.sizes, group.kinds, entry.traits)
            ranking = ranker.rank_by_others(entry) if left_out else ranker.rank(key)
            ranked = [name for name in ranking.kernels if name in times]
            if ranked:
                ratios.append(times[ranked[0]] / min(times.values()))
    return ratios


def _run(run: Run, record: str, code: Mapping[str, str]) -> TableRun:
    environment = run.environment
    return TableRun(
        commit=environment.git_commit,
        created=run.created,
        torch=environment.torch,
        triton=environment.triton,
        driver=environment.driver,
        timer=run.timer,
        joined=tuple(one.id for one in run.joined),
        code=dict(code),
        record=record,
    )


def _text(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
