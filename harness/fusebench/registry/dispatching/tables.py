"""Dispatch tables as files: where they stand, and how they are read and refused.

A table stands beside its op: `kernels/<op>/dispatch/<GPU model>.triton-<minor version>.json`. `fusebench tune` writes it. Whatever is
wrong with a table, dispatch takes the op's default order and says why; nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from ...naming import architecture_of, device_slug
from ...schema import Role
from ...schema.dispatch import TABLE_VERSION, DispatchTable, PackedEntry, PackedGroup, PackedTable, TableEntry, TableGroup
from ..declared import DeclaredKernel
from ..kernel import Kernel

FOLDER = "dispatch"
"""Folder of the tables within an op's folder."""

log = logging.getLogger("fusebench.dispatch")
_logged: set[str] = set()

AnyKernel = TypeVar("AnyKernel", bound=Kernel | DeclaredKernel)


class Found(NamedTuple):
    """The table for a GPU model, or why there is none."""

    table: DispatchTable | None
    why: str = ""
    """Why the default order is taken, or another GPU model's table; empty with a table of its own."""
    refused: bool = False
    """Whether a table of this GPU model exists and cannot be used."""


class Ranking(NamedTuple):
    """The kernels that a table puts first for a call."""

    kernels: tuple[str, ...]
    """`name@version`, the one to try first in front; empty for the default order."""
    why: str
    """The measurements that decide, or why the default order is taken."""
    entries: tuple[TableEntry, ...] = ()
    """The measurements: the call's own entry, or all from which it was predicted."""


class TableRefusedError(ValueError):
    """A table that cannot be used; the message says why."""


class _UnevenError(ValueError):
    """A line of a table's file that does not fit its head."""


def minor_version(triton: str) -> str:
    """`3.6` for `3.6.0`: code generation changes between minor versions of Triton."""
    return ".".join(triton.split(".")[:2])


def table_name(gpu: str, triton: str) -> str:
    """File name of the table for a GPU model and a version of Triton."""
    return f"{device_slug(gpu)}.triton-{minor_version(triton) or 'none'}.json"


def is_table(path: str) -> bool:
    """Whether `path`, within a folder of kernels, is a dispatch table's: `qknorm_rope/dispatch/nvidia_h200.triton-3.6.json`."""
    folders = path.split("/")
    return len(folders) == 3 and folders[1] == FOLDER and path.endswith(".json")


def find_table(op: str, roots: Sequence[Path], gpu: str, triton: str, kernels: Collection[str]) -> Found:
    """The table of `op` for the GPU model, from the first of `roots` that has one; else that of another model of its architecture.

    Of several such models the one with the most entries is taken.  A table that exists for this GPU model and cannot be used is logged once
    per process; then the default order is taken, and no other model's table.

    Args:
        gpu: the GPU model's name; empty for a CPU.
        triton: the installed version; empty without Triton.
        kernels: ids of the op's declared kernels.
    """
    if not gpu:
        return Found(None, "a CPU has no dispatch table")
    there: list[str] = []
    for root in roots:
        folder = root / op / FOLDER
        file = folder / table_name(gpu, triton)
        if file.is_file():
            try:
                table = read_table(file)
                _require_fit(table, op, gpu, triton, kernels)
            except TableRefusedError as error:
                return _refused(f"{file}: {error}")
            return Found(table)
        there += sorted(one.name for one in folder.glob("*.json"))
    same_gpu = [name for name in there if name.startswith(f"{device_slug(gpu)}.triton-")]
    if same_gpu:
        return _refused(f"op {op}: the tables of {gpu} are for another Triton than {triton or 'none'}: {', '.join(same_gpu)}")
    why = f"op {op} has no dispatch table for {gpu}"
    if (kin := _of_its_architecture(op, roots, gpu, triton, kernels)) is not None:
        return Found(kin, f"{why}: by that of {kin.gpu}, which has its architecture ({architecture_of(gpu)})")
    return Found(None, why + (f", only {', '.join(there)}" if there else ""))


def tables_of(op: str, roots: Sequence[Path], triton: str = "*") -> Iterator[DispatchTable]:
    """Every table of `op` that can be read, of any GPU model.

    Args:
        triton: as file names have it, `3.6` or `none`; any by default.
    """
    for file in (file for root in roots for file in sorted((root / op / FOLDER).glob(f"*.triton-{triton}.json"))):
        with suppress(TableRefusedError):
            yield read_table(file)


def _of_its_architecture(op: str, roots: Sequence[Path], gpu: str, triton: str, kernels: Collection[str]) -> DispatchTable | None:
    """The largest usable table of a GPU model of the same architecture; None without one, and where the name tells no architecture.

    An instance of a partitioned GPU (MIG) takes none: the shares of its memory and of its multiprocessors differ.
    """
    architecture = architecture_of(gpu)
    if not architecture or " MIG " in gpu:
        return None
    found: list[DispatchTable] = []
    for table in tables_of(op, roots, minor_version(triton) or "none"):
        with suppress(TableRefusedError):
            _require_fit(table, op, table.gpu, triton, kernels)
            if architecture_of(table.gpu) == architecture:
                found.append(table)
    return max(found, key=lambda table: len(table.entries), default=None)


def _refused(why: str) -> Found:
    why = f"{why}; make a new one with `fusebench tune`"
    if why not in _logged:
        _logged.add(why)
        log.warning("default order of kernels: %s", why)
    return Found(None, why, refused=True)


def read_table(file: Path) -> DispatchTable:
    """The table in `file`.

    Raises:
        TableRefusedError: it cannot be read, has another version, or does not fit its digest.
    """
    try:
        content = file.read_bytes()
        version = msgspec.json.decode(content, type=dict[str, Any]).get("schema_version")
        if version != TABLE_VERSION:
            raise TableRefusedError(f"found version {version!r} of the format, expected {TABLE_VERSION}")
        table = _unpacked(msgspec.json.decode(content, type=PackedTable))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, _UnevenError) as error:
        raise TableRefusedError(f"cannot be read as a dispatch table: {error}") from error
    if table.digest != digest_of(table):
        raise TableRefusedError("its content does not fit its digest: it was edited by hand, or merged")
    return table


def digest_of(table: DispatchTable) -> str:
    """SHA-256 over everything in the table but its digest."""
    plain = msgspec.json.encode(msgspec.structs.replace(table, digest=""), order="deterministic")
    return f"sha256:{hashlib.sha256(plain).hexdigest()}"


def encode_table(table: DispatchTable) -> bytes:
    """The file of `table`, with its digest: JSON with one line per entry, which `git diff` shows well.

    Raises:
        ValueError: its entries name different sizes, or its groups different kinds.
    """
    packed = _packed(table)

    def text(value: Any) -> str:
        return msgspec.json.encode(value).decode()

    lines = ["{"]
    for name in ("schema_version", "op", "gpu", "triton"):
        lines.append(f' "{name}": {text(getattr(packed, name))},')
    lines += [' "runs": {', ",\n".join(f"  {text(name)}: {text(run)}" for name, run in packed.runs.items()), " },"]
    lines += [f' "sizes": {text(packed.sizes)},', f' "kinds": {text(packed.kinds)},', ' "groups": [']
    groups = []
    for group in packed.groups:
        entries = ",\n".join(f"   {text(entry if entry.traits else msgspec.to_builtins(entry)[:-1])}" for entry in group.entries)
        groups.append(f'  {{"kinds": {text(group.kinds)}, "entries": [\n{entries}]}}')
    lines += [",\n".join(groups), " ],", f' "digest": {text(digest_of(table))}', "}"]
    return "\n".join(lines).encode() + b"\n"


def _packed(table: DispatchTable) -> PackedTable:
    sizes = {tuple(entry.sizes) for entry in table.entries}
    kinds = {tuple(group.kinds) for group in table.groups}
    if len(sizes) > 1 or len(kinds) > 1:
        raise ValueError(f"the table of {table.op} has entries of different sizes or kinds: {sorted(sizes)}, {sorted(kinds)}")
    groups = tuple(
        PackedGroup(
            kinds=tuple(group.kinds.values()),
            entries=tuple(PackedEntry(tuple(one.sizes.values()), one.case, one.runs, one.times, one.traits) for one in group.entries),
        )
        for group in table.groups
    )
    return PackedTable(
        schema_version=table.schema_version,
        op=table.op,
        gpu=table.gpu,
        triton=table.triton,
        runs=table.runs,
        sizes=next(iter(sizes), ()),
        kinds=next(iter(kinds), ()),
        groups=groups,
    )


def _unpacked(packed: PackedTable) -> DispatchTable:
    """
    Raises:
        _UnevenError: a line has more or fewer sizes or kinds than the file names.
    """

    def named(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
        if len(names) != len(values):
            raise _UnevenError(f"{len(values)} values for {', '.join(names)}")
        return dict(zip(names, values, strict=True))

    groups = tuple(
        TableGroup(
            kinds=named(packed.kinds, group.kinds),
            entries=tuple(
                TableEntry(sizes=named(packed.sizes, one.sizes), traits=one.traits, case=one.case, runs=one.runs, times=one.times)
                for one in group.entries
            ),
        )
        for group in packed.groups
    )
    return DispatchTable(
        schema_version=packed.schema_version,
        op=packed.op,
        gpu=packed.gpu,
        triton=packed.triton,
        runs=packed.runs,
        groups=groups,
        digest=packed.digest,
    )


def _require_fit(table: DispatchTable, op: str, gpu: str, triton: str, kernels: Collection[str]) -> None:
    for what, found, expected in (
        ("op", table.op, op),
        ("GPU model", device_slug(table.gpu), device_slug(gpu)),
        ("Triton", table.triton, minor_version(triton)),
    ):
        if found != expected:
            raise TableRefusedError(f"it is of another {what}: found {found}, expected {expected}")
    named = {time.kernel for entry in table.entries for time in entry.times}
    if gone := sorted(name for name in named if f"{op}/{name}" not in kernels):
        raise TableRefusedError(f"it names kernels that are not declared: {', '.join(gone)}")
    if any(not entry.times or not entry.runs or not table.runs.keys() >= set(entry.runs) for entry in table.entries):
        raise TableRefusedError("it has an entry without times or without its run")
    if any(not (0 < time.us < math.inf) for entry in table.entries for time in entry.times):
        raise TableRefusedError("it has a time that is not positive and finite")


def default_order(kernels: Iterable[AnyKernel], names: Sequence[str], role: Role) -> list[AnyKernel]:
    """The kernels of `role`: the op's dispatch order `names` first, then by name; the newest version of each name first.

    `name@version` in `names` stands for that version alone.
    """
    order = {name: place for place, name in enumerate(names)}

    def key(kernel: AnyKernel) -> tuple[int, str, int]:
        name, version = kernel.id.name, kernel.id.version
        return order.get(f"{name}@{version}", order.get(name, len(order))), name, -version

    return sorted((kernel for kernel in kernels if kernel.role is role), key=key)


def in_order(kernels: Sequence[AnyKernel], ranking: Ranking) -> list[AnyKernel]:
    """`kernels`, those of `ranking` first. A kernel that the table has not measured comes after all that it has; a choice is left out."""
    places = {name: place for place, name in enumerate(ranking.kernels)}
    kernels = [kernel for kernel in kernels if not kernel.id.choice or f"{kernel.id.name}@{kernel.id.version}" in places]
    return sorted(kernels, key=lambda kernel: places.get(f"{kernel.id.name}@{kernel.id.version}", len(places)))
