"""One colour and marker per kernel, the same in every picture and page: they follow from the kernel's name and role alone.

Colours are Okabe and Ito's, which colour-blind readers tell apart, with lighter and darker shades for further versions.  Markers differ
by role, so that no reader depends on colour.
"""

from __future__ import annotations

import re
import zlib

from ...schema import Role

_FAMILIES = {
    "cuda": ("#009e73", "#66c2a4", "#00593f"),
    "triton": ("#56b4e9", "#0072b2", "#00415f"),
    "": ("#8c6bb1", "#4d2d82", "#b79ad6"),
}
"""Fused kernels by what their name holds, then by version."""
_SPLIT = {"torch": "#b5b5b5", "": "#6e6e6e"}
_COMPILED = ("#e69f00", "#b37b00", "#f0c04d")
_PEERS = ("#cc79a7", "#d55e00", "#a04a7d", "#8f3f00", "#e3a9c8", "#f0935a")
_MARKERS = {Role.SPLIT: "s", Role.COMPILED: "D", Role.FUSED: "o", Role.PEER: "^"}
ROLE_ORDER = (Role.SPLIT, Role.COMPILED, Role.PEER, Role.FUSED)


def colour_of(kernel: str, role: Role) -> str:
    """`#0072b2` for `op/fused_triton@2` or `fused_triton@2`."""
    name, _, version = kernel.rpartition("/")[2].partition("@")
    number = int(version) - 1 if re.fullmatch("[1-9][0-9]*", version) else 0
    if role is Role.SPLIT:
        return _SPLIT["torch" if "torch" in name else ""]
    if role is Role.COMPILED:
        return _COMPILED[number % len(_COMPILED)]
    if role is Role.PEER:
        return _PEERS[zlib.crc32(name.encode(errors="replace")) % len(_PEERS)]
    shades = next(colours for part, colours in _FAMILIES.items() if part in name)
    return shades[number % len(shades)]


def marker_of(role: Role) -> str:
    """matplotlib's marker of a role: square, diamond, triangle or circle."""
    return _MARKERS[role]
