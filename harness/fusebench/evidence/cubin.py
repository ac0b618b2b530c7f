"""Reading a cubin: an ELF file whose `.text.*` sections are machine code.

Only these bytes are hashed.  The file around them names source files, compiler options and build identifiers, which differ between
machines where the code does not.
"""

from __future__ import annotations

import hashlib
import struct

import msgspec

from ..errors import FusebenchError


class CubinError(FusebenchError):
    """What a compiler returned is not a cubin that can be read."""


class Section(msgspec.Struct, frozen=True):
    """A section of the file; `size` is in bytes also where, as for shared memory, the file holds none of them."""

    name: str
    size: int
    content: bytes


_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8


def sections(cubin: bytes) -> list[Section]:
    """The named sections of a 64-bit little-endian ELF file, in file order.

    Raises:
        CubinError: it is none, or it is truncated.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise CubinError(f"expected a cubin (a 64-bit ELF file), found {len(cubin)} bytes that begin with {cubin[:6]!r}")
    try:
        header = _HEADER.unpack_from(cubin)
        offset, entry_size, count, names_index = header[6], header[11], header[12], header[13]
        headers = [_SECTION.unpack_from(cubin, offset + index * entry_size) for index in range(count)]
        names = headers[names_index]
    except (struct.error, IndexError) as error:
        raise CubinError(f"a truncated cubin of {len(cubin)} bytes: {error}") from error
    table = cubin[names[4] : names[4] + names[5]]
    found = []
    for name_at, kind, _, _, start, size, *_ in headers:
        content = b"" if kind == _NO_BITS else cubin[start : start + size]
        if kind != _NO_BITS and len(content) != size:
            raise CubinError(f"a truncated cubin of {len(cubin)} bytes: a section of {size} bytes starts at byte {start}")
        found.append(Section(table[name_at : table.index(b"\0", name_at)].decode("ascii", "replace"), size, content))
    return found


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
