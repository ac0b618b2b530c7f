"""A dispatch table: the measured times of an op's fused kernels on one GPU model, by the parameters that decide which is fastest."""

from __future__ import annotations

from typing import Any

import msgspec

TABLE_VERSION = 1
"""Version of the table's format (see docs/dispatch.md)."""


class DispatchKey(msgspec.Struct, frozen=True):
    """The parameters of a call or a case that decide which kernel is fastest."""

    sizes: dict[str, int]
    """Compared by their ratio: rows, width, heads."""
    kinds: dict[str, Any]
    """Compared for equality: dtype, layout, form of the modulation. Values are JSON scalars."""


class KernelTime(msgspec.Struct, frozen=True, array_like=True):
    """The time of one kernel, in microseconds, with its 95 % interval."""

    kernel: str
    """`name@version`."""
    us: float
    low: float
    high: float


class TableEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured case."""

    sizes: dict[str, int]
    case: str
    """`suite:case` that was measured."""
    run: str
    """Id of the run that measured it; a key of `DispatchTable.runs`."""
    times: tuple[KernelTime, ...]
    """The kernel to run first, then the runner-up and the others."""


class TableGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The entries of equal kinds."""

    kinds: dict[str, Any]
    entries: tuple[TableEntry, ...]


class TableRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where times come from."""

    commit: str
    created: str
    torch: str
    triton: str
    driver: str
    timer: str
    joined: tuple[str, ...] = ()
    """Ids of the runs that a baseline was joined from."""


class DispatchTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table of one op for one GPU model and one minor version of Triton."""

    schema_version: int
    op: str
    gpu: str
    """Name of the GPU model, as NVML and torch give it."""
    triton: str
    """Major and minor version of Triton: `3.6`."""
    runs: dict[str, TableRun]
    groups: tuple[TableGroup, ...]
    digest: str = ""
    """SHA-256 over all of the above."""
