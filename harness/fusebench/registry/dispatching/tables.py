"""Dispatch tables as files: where they stand, how they are read and refused, and which kernel they put first for a call.

A table stands beside its op: `kernels/<op>/dispatch/<GPU model>.triton-<minor version>.json`. `fusebench tune` writes it. Whatever is
wrong with a table, dispatch takes the op's default order and says why; nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from ...naming import device_slug
from ...schema import Role
from ...schema.dispatch import TABLE_VERSION, DispatchKey, DispatchTable, KernelTime, TableEntry
from ..declared import DeclaredKernel
from ..kernel import Kernel

FOLDER = "dispatch"
"""Folder of the tables within an op's folder."""
FURTHEST = 4.0
"""Distance beyond which an entry says nothing about a call: four doublings, of rows and other sizes together. Of the 128 entries of the
H200, 106 have another entry within it. Each chosen by the others, 83 % of them come within 1.02 of the best kernel; the default order comes
to 66 % of the 128. From 8 doublings on the worst choice is 2.2 instead of 1.31."""

log = logging.getLogger("fusebench.dispatch")
_logged: set[str] = set()

AnyKernel = TypeVar("AnyKernel", bound=Kernel | DeclaredKernel)


class Found(NamedTuple):
    """The table for a GPU model, or why there is none."""

    table: DispatchTable | None
    why: str = ""
    """Why the default order is taken; empty with a table."""
    refused: bool = False
    """Whether a table of this GPU model exists and cannot be used."""


class Ranking(NamedTuple):
    """The kernels that a table puts first for a call."""

    kernels: tuple[str, ...]
    """`name@version`, the one to try first in front; empty for the default order."""
    why: str
    """The measurements that decide, or why the default order is taken."""


class TableRefusedError(ValueError):
    """A table that cannot be used; the message says why."""


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


def find_table(op: str, roots: Iterable[Path], gpu: str, triton: str, kernels: Collection[str]) -> Found:
    """The table of `op` for the GPU model, from the first of `roots` that has one.

    A table that exists for this GPU model and cannot be used is logged once per process.

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
    return Found(None, f"op {op} has no dispatch table for {gpu}" + (f", only {', '.join(there)}" if there else ""))


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
        table = msgspec.json.decode(content, type=DispatchTable)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TableRefusedError(f"cannot be read as a dispatch table: {error}") from error
    if table.digest != digest_of(table):
        raise TableRefusedError("its content does not fit its digest: it was edited by hand, or merged")
    return table


def digest_of(table: DispatchTable) -> str:
    """SHA-256 over everything in the table but its digest."""
    plain = msgspec.json.encode(msgspec.structs.replace(table, digest=""), order="deterministic")
    return f"sha256:{hashlib.sha256(plain).hexdigest()}"


def encode_table(table: DispatchTable) -> bytes:
    """The file of `table`, with its digest: JSON with one line per entry, which `git diff` shows well."""
    table = msgspec.structs.replace(table, digest=digest_of(table))

    def text(value: Any) -> str:
        return msgspec.json.encode(value).decode()

    lines = ["{"]
    for name in ("schema_version", "op", "gpu", "triton"):
        lines.append(f' "{name}": {text(getattr(table, name))},')
    lines += [' "runs": {', ",\n".join(f"  {text(name)}: {text(run)}" for name, run in table.runs.items()), " },", ' "groups": [']
    groups = []
    for group in table.groups:
        entries = ",\n".join(f"   {text(entry)}" for entry in group.entries)
        groups.append(f'  {{"kinds": {text(group.kinds)},\n   "entries": [\n{entries}]}}')
    lines += [",\n".join(groups), " ],", f' "digest": {text(table.digest)}', "}"]
    return "\n".join(lines).encode() + b"\n"


def _require_fit(table: DispatchTable, op: str, gpu: str, triton: str, kernels: Collection[str]) -> None:
    for what, found, expected in (
        ("op", table.op, op),
        ("GPU model", device_slug(table.gpu), device_slug(gpu)),
        ("Triton", table.triton, minor_version(triton)),
    ):
        if found != expected:
            raise TableRefusedError(f"it is of another {what}: found {found}, expected {expected}")
    entries = [entry for group in table.groups for entry in group.entries]
    named = {time.kernel for entry in entries for time in entry.times}
    if gone := sorted(name for name in named if f"{op}/{name}" not in kernels):
        raise TableRefusedError(f"it names kernels that are not declared: {', '.join(gone)}")
    if any(not entry.times or entry.run not in table.runs for entry in entries):
        raise TableRefusedError("it has an entry without times or without its run")
    if any(not (0 < time.us < math.inf) for entry in entries for time in entry.times):
        raise TableRefusedError("it has a time that is not positive and finite")


def rank(table: DispatchTable, key: DispatchKey) -> Ranking:
    """The kernels in the order that `table` gives a call of `key`.

    An entry of the same sizes decides alone. Else the two nearest entries of equal kinds decide, weighted by the inverse of their
    distance: a kernel's loss is its time over the time of the entry's first kernel, and at least 1. The distance is the sum of
    |log2 ratio| over the sizes; entries beyond `FURTHEST` do not count.
    """
    group = next((one for one in table.groups if one.kinds == key.kinds), None)
    if group is None:
        return Ranking((), f"no measured case has {_nearest_kinds(table, key)}")
    near = sorted(((distance(entry.sizes, key.sizes), place) for place, entry in enumerate(group.entries)))
    if not near or math.isinf(near[0][0]):
        return Ranking((), f"no measured case has such sizes: {_sizes(key.sizes)}")
    if near[0][0] > FURTHEST:
        away = f"{2 ** near[0][0]:.0f}x away, and {2**FURTHEST:.0f}x is the limit"
        return Ranking((), f"the nearest measured case ({_sizes(group.entries[near[0][1]].sizes)}) is {away}")
    first = group.entries[near[0][1]]
    used = [(apart, group.entries[place]) for apart, place in near[: 1 if near[0][0] == 0 else 2] if apart <= FURTHEST]
    if len(used) == 1:
        order = [time.kernel for time in first.times]
    else:
        losses = [_losses(entry) for _, entry in used]
        weights = [1 / apart for apart, _ in used]
        order = [time.kernel for time in first.times]
        both = [name for name in order if all(name in loss for loss in losses)]
        mean = {name: sum(loss[name] * weight for loss, weight in zip(losses, weights, strict=True)) for name in both}
        order = [*sorted(both, key=mean.__getitem__), *(name for name in order if name not in mean)]
    return Ranking(tuple(order), _measured(table, used))


def distance(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The doublings between two sets of sizes; infinite if they have other names, or where one size alone is 0."""
    if one.keys() != other.keys():
        return math.inf
    total = 0.0
    for name, size in one.items():
        if size != other[name]:
            total += abs(math.log2(size / other[name])) if size > 0 and other[name] > 0 else math.inf
    return total


def _losses(entry: TableEntry) -> dict[str, float]:
    """At least 1: a kernel that is faster than the entry's first one is so by noise alone."""
    return {time.kernel: max(1.0, time.us / entry.times[0].us) for time in entry.times}


def _measured(table: DispatchTable, used: Sequence[tuple[float, TableEntry]]) -> str:
    """The measurements behind a choice, in words."""
    parts = []
    for apart, entry in used:
        first, *others = entry.times
        run = table.runs[entry.run]
        where = "" if apart == 0 else f" ({_sizes(entry.sizes)}; {2**apart:.2f}x away)"
        then = f", then {_time(others[0])}" if others else ""
        parts.append(f"{entry.case}{where}: {_time(first)}{then}, in run {entry.run} at commit {run.commit[:12] or 'unknown'}")
    return f"measured on {table.gpu} with Triton {table.triton}: {'; '.join(parts)}"


def _time(time: KernelTime) -> str:
    return f"{time.kernel} {time.us:.2f} us [{time.low:.2f}, {time.high:.2f}]"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def _nearest_kinds(table: DispatchTable, key: DispatchKey) -> str:
    """The kinds in which a call differs from the group that differs least."""
    others = [{name: value for name, value in key.kinds.items() if group.kinds.get(name) != value} for group in table.groups]
    fewest = min(others, key=len, default=key.kinds) or key.kinds
    return ", ".join(f"{name} {value}" for name, value in fewest.items())


def default_order(kernels: Iterable[AnyKernel], names: Sequence[str], role: Role) -> list[AnyKernel]:
    """The kernels of `role`: the op's dispatch order `names` first, then by name; the newest version of each first."""
    order = {name: place for place, name in enumerate(names)}
    found = [kernel for kernel in kernels if kernel.role is role]
    return sorted(found, key=lambda kernel: (order.get(kernel.id.name, len(order)), kernel.id.name, -kernel.id.version))


def in_order(kernels: Sequence[AnyKernel], ranking: Ranking) -> list[AnyKernel]:
    """`kernels`, those of `ranking` first. A kernel that the table has not measured comes after all that it has; a choice is left out."""
    places = {name: place for place, name in enumerate(ranking.kernels)}
    kernels = [kernel for kernel in kernels if not kernel.id.choice or f"{kernel.id.name}@{kernel.id.version}" in places]
    return sorted(kernels, key=lambda kernel: places.get(f"{kernel.id.name}@{kernel.id.version}", len(places)))
