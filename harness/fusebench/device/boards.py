"""Several boards of one host: which ones `--device all` or `cuda:0,2-3` names, and the cores beside each.

`cpu:0,1` names the CPU as that many boards.  They share caches and memory, so that their times mean little; it is for trying a fleet out,
and for its tests.
"""

from __future__ import annotations

import os
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from ..errors import UsageError
from . import nvml as nvml_backend
from .readings import GpuMonitor, GpuUnavailableError
from .select import Device, resolve_device

ALL = "all"
MOST_BOARDS = 64
"""Boards of one host that a list may name: no host has more."""
FEWEST_CORES = 2
"""Cores of a board that are worth pinning: one launches, another one watches."""
ENOUGH_CORES = 16
"""Cores with which a board checks ahead as quickly as one alone does: two for each of `workers.checking.MOST_PROCESSES`."""
_LIST = re.compile(r"(?P<kind>cuda|cpu):(?P<items>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")


def names_boards(spec: str) -> bool:
    """Whether `spec` is `all` or a list, which may be of one board."""
    return spec == ALL or (":" in spec and ("," in spec or "-" in spec)) or spec.startswith("cpu:")


def resolve_boards(spec: str, nvml: GpuMonitor | None = None, *, environ: Mapping[str, str] | None = None) -> tuple[Device, ...]:
    """The devices of `all`, `cuda:0,2-3` or `cpu:0,1`, in their order.

    Raises:
        UsageError: `spec` has none of these forms, names a device twice, or names GPUs of several models or instances of one GPU.
        GpuUnavailableError: it names a GPU that is not there, or there is none.
    """
    if spec == ALL:
        found = [resolve_device("cuda", nvml, environ=environ)]
        while len(found) < MOST_BOARDS:
            try:
                found.append(resolve_device(f"cuda:{len(found)}", nvml, environ=environ))
            except GpuUnavailableError:
                break
    else:
        kind, numbers = _listed(spec)
        found = [_part_of_cpu(one) if kind == "cpu" else resolve_device(f"cuda:{one}", nvml, environ=environ) for one in numbers]
    models = list(dict.fromkeys(device.name for device in found))
    if len(models) > 1:
        listed = ", ".join(f"{device.torch_name} {device.name}" for device in found)
        raise UsageError(f"--device {spec}: found GPUs of {len(models)} models ({listed}), expected one; name those of one model")
    by_lock: dict[str, list[Device]] = defaultdict(list)
    for device in found:
        by_lock[device.lock_key].append(device)
    if shared := [same for same in by_lock.values() if len(same) > 1]:
        named = ", ".join(device.torch_name for device in shared[0])
        raise UsageError(f"--device {spec}: {named} are instances of one GPU, which share clocks and power; name one of them")
    return tuple(found)


def _listed(spec: str) -> tuple[str, list[int]]:
    match = _LIST.fullmatch(spec)
    if match is None:
        raise UsageError(f"--device {spec!r}: expected auto, cpu, cuda, cuda:N, all, or a list such as cuda:0,2-3")
    numbers: list[int] = []
    for item in match["items"].split(","):
        first, _, last = item.partition("-")
        ends = int(first), int(last or first)
        if ends[1] < ends[0] or ends[1] - ends[0] >= MOST_BOARDS:
            raise UsageError(f"--device {spec}: {item} is no range of devices; expected one such as 2-3")
        numbers += range(ends[0], ends[1] + 1)
    if twice := sorted({one for one in numbers if numbers.count(one) > 1}):
        raise UsageError(f"--device {spec}: {match['kind']}:{twice[0]} is named twice; name each device once")
    return match["kind"], numbers


def _part_of_cpu(number: int) -> Device:
    return msgspec.structs.replace(resolve_device("cpu"), index=number, uuid=f"cpu-{platform.node() or 'host'}-{number}")


def label_of(device: Device) -> str:
    """`cuda:1`, or `cpu:1` for the CPU as several boards."""
    return f"cpu:{device.index}" if device.kind == "cpu" else device.torch_name


def cores_beside(devices: Sequence[Device], near: Callable[[str], frozenset[int] | None] | None = None) -> list[frozenset[int] | None]:
    """Cores for each device's processes, of the NUMA node beside it where NVML tells; no two devices share one.

    All devices share all cores alike where the nodes would leave one with few: a container may have most of its cores on the other node.
    None for every device where there are fewer than `FEWEST_CORES` for each.

    Args:
        near: by UUID, the numbers of the cores of the GPU's node; the driver's own answer where None.
    """
    usable = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
    if near is None:
        near = nvml_backend.open_monitor().near_cores if devices[0].kind == "cuda" else lambda _: None
    beside = [((near(device.uuid) or usable) & usable) or usable for device in devices]
    found = _divided(beside)
    # Where the node of one is not known, it may be any, and all share all too.
    unknown = any(one != other and one & other for one in beside for other in beside)
    if unknown or min(map(len, found)) < min(ENOUGH_CORES, len(usable) // len(devices)):
        found = _divided([usable] * len(devices))
    return [*found] if min(map(len, found)) >= FEWEST_CORES else [None] * len(devices)


def _divided(beside: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Cores for each of several devices, of its own set; those with equal sets share them alike."""
    found = []
    for place, cores in enumerate(beside):
        ordered = sorted(cores, key=_physical)
        share = len(ordered) // beside.count(cores)
        begin = beside[:place].count(cores) * share
        found.append(frozenset(ordered[begin : begin + share]))
    return found


def _physical(core: int) -> tuple[int, int]:
    """Sorts the threads of one physical core beside each other."""
    try:
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        return int(re.split("[,-]", siblings.strip())[0]), core
    except (OSError, ValueError):
        return core, core
