"""Names that become part of paths: one spelling of the device's folder everywhere."""

from __future__ import annotations

import re


def device_slug(name: str) -> str:
    """`name` as a folder name: `NVIDIA H200` gives `nvidia_h200`; a name without letters or digits gives `unknown_device`.

    The marks (R) and (TM), which some systems report and others leave out, are dropped.
    """
    plain = re.sub(r"\((r|tm)\)", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_") or "unknown_device"
