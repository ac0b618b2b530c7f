"""A dispatch table: the measured times of an op's fused kernels on one GPU model, by the parameters that decide which is fastest."""

from __future__ import annotations

from typing import Any

import msgspec

TABLE_VERSION = 2
"""Version of the table's format (see docs/dispatch.md)."""


class DispatchKey(msgspec.Struct, frozen=True):
    """The parameters of a call or a case that decide which kernel is fastest."""

    sizes: dict[str, int]
    """Compared by their ratio: rows, width, heads."""
    kinds: dict[str, Any]
    """Compared for equality: dtype, layout, form of the modulation. Values are JSON scalars."""
    traits: tuple[str, ...] = ()
    """Names of what holds and changes how kernels work: `unaligned`, for rows that do not start on whole vectors. They follow from sizes
    and kinds."""


class KernelTime(msgspec.Struct, frozen=True, array_like=True):
    """The time of one kernel, in microseconds."""

    kernel: str
    """`name@version`."""
    us: float
    spread: float
    """The larger half of its 95 % interval; of several runs' intervals together."""

    @property
    def low(self) -> float:
        return self.us - self.spread

    @property
    def high(self) -> float:
        return self.us + self.spread


class TableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One measured case."""

    sizes: dict[str, int]
    traits: tuple[str, ...] = ()
    case: str
    """`suite:case` that was measured."""
    runs: tuple[str, ...]
    """Ids of the runs that measured it; keys of `DispatchTable.runs`. The times are the geometric means of theirs."""
    times: tuple[KernelTime, ...]
    """The kernel to run first, then the runner-up and the others."""


class TableGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of equal kinds."""

    kinds: dict[str, Any]
    entries: tuple[TableEntry, ...]


class TableRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where times come from."""

    commit: str
    created: str
    torch: str
    triton: str
    driver: str
    timer: str
    joined: tuple[str, ...] = ()
    """Ids of the runs that a baseline was joined from."""
    code: dict[str, str] = {}
    """By kernel (`name@version`) the digest of the source that the run measured (`registry.dispatching.code_digest`).
    Without one it is unknown."""
    record: str = ""
    """Folder of the record within the project; without one the project does not keep it, and the table alone holds its times."""


class DispatchTable(msgspec.Struct, frozen=True, kw_only=True):
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

    @property
    def entries(self) -> list[TableEntry]:
        """Those of all groups."""
        return [entry for group in self.groups for entry in group.entries]


class PackedEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One entry as a line of the file."""

    sizes: tuple[int, ...]
    case: str
    runs: tuple[str, ...]
    times: tuple[KernelTime, ...]
    traits: tuple[str, ...] = ()


class PackedGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entries of equal kinds, in a file."""

    kinds: tuple[Any, ...]
    entries: tuple[PackedEntry, ...]


class PackedTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table as its file holds it: the names of sizes and kinds once."""

    schema_version: int
    op: str
    gpu: str
    triton: str
    runs: dict[str, TableRun]
    sizes: tuple[str, ...]
    kinds: tuple[str, ...]
    groups: tuple[PackedGroup, ...]
    digest: str = ""
