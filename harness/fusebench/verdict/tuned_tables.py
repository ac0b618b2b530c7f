"""Dispatch tables from runs: which kernel each measured case puts first, and how well the table chooses for cases that it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..registry.dispatching.tables import minor_version, rank
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


def tuned_cases(run: Run, op: str, keys: Mapping[str, DispatchKey], order: Sequence[str]) -> list[TunedCase]:
    """The cases of `op` in `run` with believed times of at least one fused kernel.

    Args:
        keys: by case key, the parameters that decide; cases without one are left out.
        order: ids of the fused kernels in the op's default order; others are left out.
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
        if key is None or not times or summary.not_cold or summary.same_as:
            continue
        entry = TableEntry(sizes=key.sizes, case=case, run=run.id, times=_ordered(times, order))
        found.append(TunedCase(key=key, entry=entry))
    return found


def _ordered(results: Mapping[str, Result], order: Sequence[str]) -> tuple[KernelTime, ...]:
    """The times by speed, after the kernel to take."""
    times = {kernel: one.measurement.time_us for kernel, one in results.items() if one.measurement is not None}
    fastest = min(estimate.value for estimate in times.values())
    first = next(kernel for kernel in order if kernel in times and times[kernel].value <= TIE * fastest)
    ranked = sorted(times, key=lambda kernel: (kernel != first, times[kernel].value))
    return tuple(
        KernelTime(kernel.partition("/")[2], *(round(value, 3) for value in (one.value, one.low, one.high)))
        for kernel, one in ((kernel, times[kernel]) for kernel in ranked)
    )


def tuned_table(op: str, runs: Sequence[Run], cases: Sequence[TunedCase], before: DispatchTable | None = None) -> DispatchTable:
    """The table of `cases`, and of the entries of `before` that no case replaces. Of equal keys the first case counts.

    Args:
        runs: of one GPU model and one minor version of Triton; the newest first, like `cases`.
    """
    groups: dict[str, dict[str, TableEntry]] = {}
    kinds: dict[str, dict[str, object]] = {}
    known = [(one.key, one.entry) for one in cases]
    known += [(DispatchKey(entry.sizes, group.kinds), entry) for group in (before.groups if before else ()) for entry in group.entries]
    for key, entry in known:
        group = _text(key.kinds)
        kinds.setdefault(group, key.kinds)
        groups.setdefault(group, {}).setdefault(_text(key.sizes), entry)
    entries = {group: sorted(found.values(), key=lambda entry: tuple(entry.sizes.values())) for group, found in groups.items()}
    used = {entry.run for found in entries.values() for entry in found}
    every = (dict(before.runs) if before else {}) | {run.id: _run(run) for run in runs}
    environment = runs[0].environment
    return DispatchTable(
        schema_version=TABLE_VERSION,
        op=op,
        gpu=environment.device_name,
        triton=minor_version(environment.triton),
        runs={name: every[name] for name in sorted(used)},
        groups=tuple(TableGroup(kinds=kinds[group], entries=tuple(entries[group])) for group in sorted(groups)),
    )


def table_ratios(table: DispatchTable, *, left_out: bool) -> list[float]:
    """For each entry, the time of the kernel that `table` chooses there over the fastest time.

    Args:
        left_out: choose for each entry by the other entries alone, which is how the table does for shapes that it lacks. Entries for
            which the others say nothing have no ratio.
    """
    ratios = []
    for place, group in enumerate(table.groups):
        for entry in group.entries:
            asked = table
            if left_out:
                others = tuple(one for one in group.entries if one is not entry)
                groups = [*table.groups]
                groups[place] = TableGroup(kinds=group.kinds, entries=others)
                asked = msgspec.structs.replace(table, groups=tuple(groups))
            times = {time.kernel: time.us for time in entry.times}
            ranked = [name for name in rank(asked, DispatchKey(entry.sizes, group.kinds)).kernels if name in times]
            if ranked:
                ratios.append(times[ranked[0]] / min(times.values()))
    return ratios


def _run(run: Run) -> TableRun:
    environment = run.environment
    return TableRun(
        commit=environment.git_commit,
        created=run.created,
        torch=environment.torch,
        triton=environment.triton,
        driver=environment.driver,
        timer=run.timer,
        joined=tuple(one.id for one in run.joined),
    )


def _text(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
