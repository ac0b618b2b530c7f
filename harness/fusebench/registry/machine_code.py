"""Digests of the machine code that a call launches, so that two versions of a kernel can be told equal without timing them.

Owns the reading of a cubin and the listening to launches; what follows from equality is `stats.identical`'s business.  Launches are heard
where a replay hears them (`launchable`, `nvrtc.launch`), but independently of it: a repeated call launches what was heard the first time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .elf import sections

KEPT_SECTIONS = (".text.", ".nv.info", ".nv.constant", ".nv.shared.", ".nv.global", ".rodata")
"""Beginnings of the names of sections that decide what runs: instructions, register counts and launch bounds (`.nv.info`), constants, sizes
of shared memory.  The others hold names, paths of source files and line numbers, which differ between two folders of the same source."""


class Listener:
    """Collects one digest per launch, and per torch operator, in order."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.launches = 0

    def note(self, name: str, cubin: bytes | None, geometry: Sequence[Any], arguments: Iterable[Any]) -> None:
        """A launch of the function `name`; without a cubin (another backend, an interpreter) its digest is empty: unknown."""
        self.launches += 1
        self._add(name, digest(cubin, [*geometry, *described(arguments)]) if cubin else "")

    def note_operator(self, name: str, arguments: Iterable[Any], library: str) -> None:
        """An operator of `library`, which is torch with its version: equal ones on equal layouts run equal code on one model of device."""
        self._add(name, hashlib.sha256(repr([library, name, *described(arguments)]).encode()).hexdigest())

    def _add(self, name: str, value: str) -> None:
        self.digests[f"{len(self.digests)}:{name}"] = value


def described(arguments: Iterable[Any]) -> list[Any]:
    """Arguments as text, tensors by their layouts and devices by their kind: a launch depends on its scalars and not on addresses."""
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
    """Who listens to the call that is being made; None outside `listening`."""
    return _listener.get()


@contextmanager
def listening() -> Iterator[Listener]:
    """Hear every launch that the block makes through `launchable` or `nvrtc.launch`, and every torch operator."""
    listener = Listener()
    token = _listener.set(listener)
    try:
        with _operator_mode(listener):
            yield listener
    finally:
        _listener.reset(token)


def combined(digests: Mapping[str, str]) -> str | None:
    """One digest of all that a call launches, in order; None where any of it is unknown: the code of the whole is not known then.

    Equal ones are equal machine code also between processes and runs, on one model of device.
    """
    if not digests or not all(digests.values()):
        return None
    return hashlib.sha256(repr(list(digests.items())).encode()).hexdigest()


def _operator_mode(listener: Listener) -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            listener.note_operator(str(func), [*args, *(kwargs or {}).items()], f"torch {torch.__version__}")
            return func(*args, **(kwargs or {}))

    return Mode()  # type: ignore[no-untyped-call]


def digest(cubin: bytes, geometry: Sequence[Any] = ()) -> str:
    """SHA-256 of what a cubin makes the GPU do, with the launch geometry; names, paths and line numbers are left out.

    Raises:
        CubinError: `cubin` is not a 64-bit little-endian ELF file.
    """
    found = hashlib.sha256(repr(tuple(geometry)).encode())
    for kind, content in _sections(cubin):
        found.update(f"{kind} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Kind and content of the sections that decide what runs, in the file's order."""
    for section in sections(cubin):
        label = section.name
        prefix = next((one for one in KEPT_SECTIONS if label.startswith(one)), None)
        if prefix is None:
            continue
        # Of shared memory a file holds nothing but the size.
        content = section.content if len(section.content) == section.size else section.size.to_bytes(8, "little")
        # The function's own name follows the prefix, and for constants the number of the bank comes first.
        bank = label.removeprefix(prefix).partition(".")[0] if prefix == ".nv.constant" else ""
        yield prefix + bank, content
