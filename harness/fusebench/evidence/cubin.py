"""Reading a cubin: an ELF file whose `.text.*` sections are machine code.

Only these bytes are hashed.  The file around them names source files, compiler options and build identifiers, which differ between
machines where the code does not.
"""

from __future__ import annotations

import hashlib

import msgspec

from ..registry.elf import CubinError, sections


class MachineCode(msgspec.Struct, frozen=True):
    """The machine code of one entry function and of the functions that it calls."""

    entry: str
    text: bytes
    """The entry's instructions first, then those of other functions by name."""
    static_shared_bytes: int

    @property
    def sha256(self) -> str:
        """Of the instructions alone."""
        return hashlib.sha256(self.text).hexdigest()


def code_of(cubin: bytes, entry: str) -> MachineCode:
    """The code of the function `entry`.

    Raises:
        CubinError: not a cubin, or one without that function.
    """
    found = {section.name: section for section in sections(cubin)}
    wanted = f".text.{entry}"
    texts = sorted(name for name in found if name.startswith(".text."))
    if wanted not in found:
        there = ", ".join(name.removeprefix(".text.") for name in texts) or "none"
        raise CubinError(f"the cubin holds no function {entry!r}; it holds {there}")
    others = [name for name in texts if name != wanted]
    shared = found.get(f".nv.shared.{entry}")
    return MachineCode(entry, b"".join(found[name].content for name in (wanted, *others)), shared.size if shared is not None else 0)
