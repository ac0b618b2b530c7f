"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: from the GPUs that NVML lists to the ones that CUDA shows, in CUDA's order.

The rules are those of the CUDA programming guide (environment variables) and of the driver, as torch records it: entries after an invalid
one are ignored; a repeated entry hides everything; a number is read as C's strtoul reads it; a UUID may be shortened as long as it stays
unambiguous; the first entry shows whether the list holds numbers, GPU- or MIG- names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from .readings import GpuIdentity

_NUMBER = re.compile(r"\s*[+]?(\d+)")


class Visible(msgspec.Struct, frozen=True):
    """The GPUs that CUDA shows; index 0 is torch's cuda:0."""

    gpus: tuple[GpuIdentity, ...]
    warnings: tuple[str, ...] = ()


def visible_gpus(gpus: Sequence[GpuIdentity], mig_instances: Sequence[GpuIdentity], environ: Mapping[str, str]) -> Visible:
    """Apply the two variables of `environ` to `gpus` (NVML order)."""
    setting = environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return Visible(tuple(gpus), _order_warnings(gpus, gpus, environ))
    entries = setting.split(",")
    prefix = next((prefix for prefix in ("GPU-", "MIG-") if setting.startswith(prefix)), None)
    chosen: list[GpuIdentity] = []
    ignored = ""
    for position, entry in enumerate(entries):
        match = _by_number(entry, gpus) if prefix is None else _by_uuid(entry, prefix, mig_instances if prefix == "MIG-" else gpus)
        if match is None:
            # An empty value or -1 is the usual way to hide every GPU, not a slip.
            if not (position == 0 and entry.strip() in {"", "-1"}):
                ignored = f"CUDA_VISIBLE_DEVICES={setting!r}: {entry.strip()!r} matches no GPU, or several; it and what follows is ignored"
            break
        if match in chosen:
            return Visible((), (f"CUDA_VISIBLE_DEVICES={setting!r} names a GPU twice, which hides all of them from CUDA",))
        chosen.append(match)
    order = _order_warnings(gpus, chosen, environ) if prefix is None else ()
    return Visible(tuple(chosen), (*([ignored] if ignored else []), *order))


def _by_number(entry: str, gpus: Sequence[GpuIdentity]) -> GpuIdentity | None:
    number = _NUMBER.match(entry)
    return gpus[int(number[1])] if number and int(number[1]) < len(gpus) else None


def _by_uuid(entry: str, prefix: str, candidates: Sequence[GpuIdentity]) -> GpuIdentity | None:
    if not entry.startswith(prefix):
        return None
    matches = [gpu for gpu in candidates if gpu.uuid.startswith(entry.strip())]
    return matches[0] if len(matches) == 1 else None


def _order_warnings(gpus: Sequence[GpuIdentity], chosen: Sequence[GpuIdentity], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Warn about unequal GPUs: CUDA numbers them fastest first by its own estimate, which NVML does not know."""
    models = {(gpu.name, gpu.memory_bytes) for gpu in gpus}
    if environ.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST") == "PCI_BUS_ID" or len(models) < 2 or not chosen:
        return ()
    return (
        f"this machine has {len(models)} GPU models and CUDA numbers them fastest first, NVML by PCI bus: the GPU that is checked and "
        "the one that torch uses may differ; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to a GPU's UUID",
    )
