"""Names of devices: one spelling of a device's folder everywhere, and the architecture of a GPU model."""

from __future__ import annotations

import re

_PRODUCTS = {
    "sm_80": r"A100|A800|A30",
    "sm_90": r"GH200|H100|H200|H800|H20",
    "sm_100": r"G?B200|B100",
    "sm_120": r"RTX 50[5-9]0|RTX PRO [2-6][05]00 Blackwell",
}
"""By architecture, the product names of drivers for GPUs of its capability (NVIDIA's list "CUDA GPU Compute Capability")."""


def device_slug(name: str) -> str:
    """`name` as a folder name: `NVIDIA H200` gives `nvidia_h200`; a name without letters or digits gives `unknown_device`.

    The marks (R) and (TM), which some systems report and others leave out, are dropped.
    """
    plain = re.sub(r"\((r|tm)\)", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_") or "unknown_device"


def architecture_of(gpu: str) -> str:
    """The architecture of a GPU by its name, as the driver reports it: `sm_90` for `NVIDIA H200`; empty where the name tells none."""
    return next((name for name, products in _PRODUCTS.items() if re.search(rf"\b({products})\b", gpu)), "")
