"""The sections of a cubin, which is an ELF file; what of them counts is for the readers to say."""

from __future__ import annotations

import struct

import msgspec

from ..errors import FusebenchError


class CubinError(FusebenchError, ValueError):
    """What a compiler returned is not a cubin that can be read."""


class Section(msgspec.Struct, frozen=True):
    """A section of the file; `size` is in bytes also where, as for shared memory, the file holds none of them."""

    name: str
    size: int
    content: bytes
    """Empty where the file holds none."""


_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8


def sections(cubin: bytes) -> list[Section]:
    """The named sections of a 64-bit little-endian ELF file, in file order.

    Raises:
        CubinError: it is none, or it is truncated.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise CubinError(
            f"expected a 64-bit little-endian ELF file, which a cubin is; found {len(cubin)} bytes that begin with {cubin[:6]!r}"
        )
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
