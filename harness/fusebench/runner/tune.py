"""`fusebench tune`: dispatch tables from measured runs, written beside their ops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from ..config import Project
from ..errors import UsageError
from ..registry.dispatching.ranking import Ranker
from ..registry.dispatching.tables import (
    FOLDER,
    TableRefusedError,
    default_order,
    encode_table,
    find_table,
    minor_version,
    read_table,
    table_name,
)
from ..schema import Role, Run
from ..schema.dispatch import DispatchKey, DispatchTable
from ..store.files import write_file
from ..verdict.baseline.kept_cases import measured_parts
from ..verdict.tuned_tables import TunedCase, refused_run, table_ratios, tuned_cases, tuned_table
from .case_kernels import AnyKernel, AnyOp, Kernels
from .measured_code import MeasuredCode


class TunedOp(msgspec.Struct, frozen=True, kw_only=True):
    """The table of one op, and how good its choices are. Ratios are time over the fastest kernel's, one per case."""

    op: str
    file: Path
    table: DispatchTable
    measured: int
    """Entries that the given runs measured; the others were in the table before."""
    now: list[float]
    """The choices that dispatch makes today, on the measured entries."""
    tuned: list[float]
    """The table's choices."""
    left_out: list[float]
    """The table's choices for each entry by the other entries alone."""
    remarks: tuple[str, ...] = ()


def tune(
    runs: Mapping[str, Run],
    collection: Kernels,
    project: Project,
    ops: Collection[str] = (),
    records: Mapping[str, str] | None = None,
    *,
    measured_here: Collection[str] = (),
) -> list[TunedOp]:
    """The tables that `runs` give, for each op with a measured fused kernel; nothing is written.

    Args:
        runs: by the name that the user gave; cases of equal keys make one entry (see docs/dispatch.md).
        collection: with its kernels loaded.
        records: by run id, the folder of its record within the project, where the project keeps it.
        ops: the ops wanted; all if empty.
        measured_here: ids of the runs that were just measured, with the kernels of `collection`.

    Raises:
        UsageError: a run is not of a GPU or not cold, the runs are of several GPU models or versions of Triton, none has a fused kernel's
            time, or a table has no folder to stand in.
    """
    for name, run in runs.items():
        if why := refused_run(run):
            raise UsageError(f"{name}: run {run.id} makes no dispatch table: {why}; name a run of a GPU with a cold cache")
    measured = {run.id: measured_parts(run) for run in runs.values()}
    newest = sorted((part for parts in measured.values() for part in parts), key=lambda run: run.created, reverse=True)
    records = {part.id: records[name] for name, parts in measured.items() if records and name in records for part in parts}
    places = {(run.environment.device_name, minor_version(run.environment.triton)) for run in newest}
    if len(places) != 1:
        found = ", ".join(f"{gpu} with Triton {triton or 'none'}" for gpu, triton in sorted(places))
        raise UsageError(f"the runs are of several machines: {found}; a table is of one GPU model and one minor version of Triton")
    names = [name for name in collection.ops if not ops or name in ops]
    with MeasuredCode(project, measured_here) as code:
        tuned = [
            one for name in names if (one := _tune_op(collection.op(name), newest, collection, project, code, records=records)) is not None
        ]
    if not tuned:
        raise UsageError(f"no cold time of a fused kernel of {', '.join(names)} in {', '.join(runs)}; name a run that measured some")
    return tuned


def write_tables(tuned: Sequence[TunedOp]) -> None:
    """Write each table in its place."""
    for one in tuned:
        one.file.parent.mkdir(parents=True, exist_ok=True)
        write_file(one.file, encode_table(one.table))


def _tune_op(
    op: AnyOp, runs: Sequence[Run], collection: Kernels, project: Project, code: MeasuredCode, *, records: Mapping[str, str] | None
) -> TunedOp | None:
    kernels: list[AnyKernel] = [one for one in collection.kernels_of(op.name, choices=True) if not one.covers]
    order = [str(kernel.id) for kernel in default_order(kernels, op.dispatch_order, Role.FUSED)]
    remarks: list[str] = []
    cases: list[TunedCase] = []
    for run in runs:
        keys: dict[str, DispatchKey] = {}
        declined: dict[str, Mapping[str, str]] = {}
        for summary in run.cases:
            if summary.case.op != op.name:
                continue
            try:
                key = op.facts(summary.case.params).dispatch_key
            except ValueError as error:
                remarks.append(f"{summary.case.key} of run {run.id} is left out: op {op.name} refuses its parameters now: {error}")
                continue
            if key is not None:
                keys[summary.case.key], declined[summary.case.key] = key, collection.support(summary.case).declined
        cases += tuned_cases(run, op.name, keys, order, declined)
    if not cases:
        return None
    environment = runs[0].environment
    file = _home(op.name, collection, project) / op.name / FOLDER / table_name(environment.device_name, environment.triton)
    before = None
    if file.is_file():
        try:
            before = _of_known_kernels(read_table(file), order)
        except TableRefusedError as error:
            remarks.append(f"{file}: its entries are not kept: {error}")
    # Dispatch takes the table that came with fusebench until the project has its own.
    current = before or find_table(op.name, collection.roots, environment.device_name, environment.triton, order).table
    codes: dict[str, dict[str, str]] = {}
    for run in runs:
        timed = {time.kernel for one in cases if run.id in one.entry.runs for time in one.entry.times}
        known = dict(before.runs[run.id].code) if before is not None and run.id in before.runs else {}
        if timed - known.keys():
            found, why = code.of(run, op.name, timed - known.keys(), tuple(collection.roots))
            remarks += [f"{op.name}: nothing tells the source that run {run.id} measured: {why}"] if why else []
            known |= found
        codes[run.id] = known
    table = tuned_table(op.name, runs, cases, order=order, before=before, records=records, codes=codes)
    fresh = tuned_table(op.name, runs, cases, order=order, records=records)
    return TunedOp(
        op=op.name,
        file=file,
        table=table,
        measured=sum(len(group.entries) for group in fresh.groups),
        now=ratios_of(fresh, current, order),
        tuned=table_ratios(table, left_out=False),
        left_out=table_ratios(table, left_out=True),
        remarks=tuple(remarks),
    )


def ratios_of(fresh: DispatchTable, current: DispatchTable | None, order: Sequence[str]) -> list[float]:
    """Time of the kernel that the table `current`, or the default order, takes on each entry of `fresh`, over the fastest time."""
    ratios, ranker = [], Ranker(current) if current is not None else None
    for group in fresh.groups:
        for entry in group.entries:
            times = {time.kernel: time.us for time in entry.times}
            ranked = ranker.rank(DispatchKey(entry.sizes, group.kinds, entry.traits)).kernels if ranker is not None else ()
            taken = next(name for name in [*ranked, *(kernel.partition("/")[2] for kernel in order)] if name in times)
            ratios.append(times[taken] / min(times.values()))
    return ratios


def _of_known_kernels(table: DispatchTable, order: Sequence[str]) -> DispatchTable:
    """The table without the times of kernels that are gone."""
    known = {kernel.partition("/")[2] for kernel in order}
    groups = []
    for group in table.groups:
        left = [
            msgspec.structs.replace(entry, times=tuple(time for time in entry.times if time.kernel in known)) for entry in group.entries
        ]
        groups.append(msgspec.structs.replace(group, entries=tuple(entry for entry in left if entry.times)))
    return msgspec.structs.replace(table, groups=tuple(group for group in groups if group.entries))


def _home(op: str, collection: Kernels, project: Project) -> Path:
    """The folder of kernels that the op's table stands in: the op's own, or the project's first one where that comes with fusebench."""
    folders = [root for root in collection.roots if root.is_dir()]
    home = next((root for root in folders if (root / op / "op.py").is_file()), None)
    if home is not None and not project.is_shipped(home):
        return home
    own = next((root for root in folders if not project.is_shipped(root)), None)
    if home is None or own is None:
        raise UsageError(f"op {op} has no folder of kernels of yours to keep its table in; run in a project (`fusebench init` makes one)")
    return own
