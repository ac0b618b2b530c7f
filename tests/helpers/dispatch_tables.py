"""Dispatch tables of one op, `scale`, with one size: what their entries and files hold."""

from __future__ import annotations

import msgspec

from fusebench.schema.dispatch import TABLE_VERSION, DispatchTable, KernelTime, TableEntry, TableGroup, TableRun

GPU, TRITON = "NVIDIA H200", "3.6.0"
FIRST, SECOND = (("first@1", 1.0), ("second@1", 1.2)), (("second@1", 1.0), ("first@1", 1.2))
"""Times by which the kernel of that name is the faster."""


def entry(size: int, *times: tuple[str, float]) -> TableEntry:
    return TableEntry(
        sizes={"size": size},
        case=f"s:size_{size}",
        runs=("abc",),
        times=tuple(KernelTime(name, us, 0.02) for name, us in times),
    )


ENTRIES = (
    entry(64, ("second@1", 1.0), ("first@1", 1.5)),
    entry(128, ("second@1", 2.0), ("first@1", 2.2)),
    entry(1024, ("first@1", 4.0), ("second@1", 6.0)),
)


def table(entries: tuple[TableEntry, ...] = ENTRIES, **changes: object) -> DispatchTable:
    runs = {"abc": TableRun(commit="f3d79e900d1659b8", created="2026-11-23", torch="2.11.0", triton=TRITON, driver="580", timer="cupti")}
    made = DispatchTable(
        schema_version=TABLE_VERSION, op="scale", gpu=GPU, triton="3.6", runs=runs, groups=(TableGroup(kinds={}, entries=entries),)
    )
    return msgspec.structs.replace(made, **changes)
