"""Digests of the machine code that a call launches, so that two versions of a kernel can be found equal without timing them.

This module reads cubins and listens to launches; `verdict.identical_code` says what follows from equality. Launches are noted where a
replay notes them (`launchable`, `nvrtc.launch`), but independently of it: a repeated call launches the code that the first call launched.
"""

from __future__ import annotations

import functools
import hashlib
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from ...errors import FusebenchError

KEPT_SECTIONS = (".text.", ".nv.info", ".nv.constant", ".nv.shared.", ".nv.global", ".rodata")
"""Name prefixes of the sections that determine execution: instructions, register counts and launch bounds (`.nv.info`), constants, sizes of
shared memory. Other sections hold names, source paths and line numbers, which differ between two folders of the same source."""


class Listener:
    """Collects one digest per launch, and per torch operator, in order."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.launches = 0

    def note(self, name: str, cubin: bytes | None, geometry: Sequence[Any], arguments: Iterable[Any]) -> None:
        """Note a launch of the function `name`. Without a cubin (another backend, an interpreter) its digest is empty: unknown."""
        self.launches += 1
        self._add(name, digest(cubin, [*geometry, *described(arguments)]) if cubin else "")

    def note_operator(self, name: str, arguments: Iterable[Any], library: str) -> None:
        """Note an operator of `library` (torch with its version). Equal operators on equal layouts run equal code on one device model."""
        self._add(name, hashlib.sha256(repr([library, name, *described(arguments)]).encode()).hexdigest())

    def _add(self, name: str, value: str) -> None:
        self.digests[f"{len(self.digests)}:{name}"] = value


def described(arguments: Iterable[Any]) -> list[Any]:
    """Arguments as text: tensors by layout, devices by kind. A launch depends on its scalars, not on addresses."""
    shown: list[Any] = []
    for value in arguments:
        if isinstance(value, list | tuple):
            shown.append(described(value))
        elif hasattr(value, "stride"):
            shown.append((str(value.dtype), tuple(value.shape), tuple(value.stride())))
        elif hasattr(value, "data_ptr"):  # a storage, whose text would be all of its bytes
            shown.append((type(value).__name__, value.nbytes()))
        elif type(value).__name__ == "device":
            shown.append(value.type)
        else:
            shown.append(repr(value))
    return shown


_listener: ContextVar[Listener | None] = ContextVar("fusebench_machine_code_listener", default=None)


def current_listener() -> Listener | None:
    """The listener of the current call; None outside `listening`."""
    return _listener.get()


@contextmanager
def listening(listener: Listener | None = None) -> Iterator[Listener]:
    """Note every launch that the block makes through `launchable` or `nvrtc.launch`, and every torch operator, in `listener`."""
    listener = listener or Listener()
    token = _listener.set(listener)
    try:
        with _operator_mode(listener):
            yield listener
    finally:
        _listener.reset(token)


def combined(digests: Mapping[str, str]) -> str | None:
    """One digest of all launches of a call, in order; None when any of them is unknown.

    Equal digests mean equal machine code, also between processes and runs, on one device model.
    """
    if not digests or not all(digests.values()):
        return None
    return hashlib.sha256(repr(list(digests.items())).encode()).hexdigest()


def outside_dynamo(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """`dispatch`, which torch.compile does not trace.

    torch wraps a mode's function to that end, and then imports all of torch.compile at the first call: 3 s of every process that checks or
    measures.
    Where nothing has imported it, nothing can trace.
    """

    @functools.cache
    def untraced() -> Callable[..., Any]:
        disabled: Callable[..., Any] = sys.modules["torch._dynamo"].disable(dispatch, wrapping=False)
        return disabled

    @functools.wraps(dispatch)
    def either(*args: Any, **kwargs: Any) -> Any:
        return untraced()(*args, **kwargs) if hasattr(sys.modules.get("torch._dynamo"), "disable") else dispatch(*args, **kwargs)

    return either


def _operator_mode(listener: Listener) -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # `outside_dynamo` does it

        @outside_dynamo
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            listener.note_operator(str(func), [*args, *(kwargs or {}).items()], f"torch {torch.__version__}")
            return func(*args, **(kwargs or {}))

    return Mode()  # type: ignore[no-untyped-call]


def digest(cubin: bytes, geometry: Sequence[Any] = ()) -> str:
    """SHA-256 of a cubin's executable content and the launch geometry, without names, paths and line numbers.

    Raises:
        CubinError: `cubin` is not a 64-bit little-endian ELF file.
    """
    found = hashlib.sha256(repr(tuple(geometry)).encode())
    for kind, content in _sections(cubin):
        found.update(f"{kind} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Kind and content of the sections that determine execution, in file order."""
    for section in sections(cubin):
        label = section.name
        prefix = next((one for one in KEPT_SECTIONS if label.startswith(one)), None)
        if prefix is None:
            continue
        # A file holds only the size of shared memory.
        content = section.content if len(section.content) == section.size else section.size.to_bytes(8, "little")
        # The function's own name follows the prefix, and for constants the number of the bank comes first.
        bank = label.removeprefix(prefix).partition(".")[0] if prefix == ".nv.constant" else ""
        yield prefix + bank, content


class CubinError(FusebenchError, ValueError):
    """A compiler returned something other than a readable cubin."""


class Section(msgspec.Struct, frozen=True):
    """A section of the file. `size` is in bytes, also for shared memory, whose bytes the file does not hold."""

    name: str
    size: int
    content: bytes
    """Empty if the file holds none."""


_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8


def sections(cubin: bytes) -> list[Section]:
    """The named sections of a 64-bit little-endian ELF file, in file order.

    Raises:
        CubinError: `cubin` is not such a file, or it is truncated.
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
