"""Messages between the driver and the profiled process: a task in one file, and progress lines in another."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..schema import Case

WARM_UP_CALLS = 3
"""Calls before the profiled one.  The first compiles and tunes; kernels with remembered launches record them by the second."""


class CaptureTask(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on one case."""

    case: Case
    kernel: str
    """`op/name@version`."""
    roots: tuple[str, ...]
    """Kernels folders that define the op, and so the inputs."""
    kernel_roots: tuple[str, ...]
    """Kernels folders that hold the kernel: the same ones, or the base's."""
    device: str
    """torch's name of the one device that the process sees: `cuda:0`."""
    seed: int
    diary: str
    """File that the process writes its messages to, a line each."""
    excluded: dict[str, str] = {}
    """Files that are not imported, each with the reason."""
    warm_up_calls: int = WARM_UP_CALLS


class Doing(msgspec.Struct, frozen=True, tag="doing"):
    """The next step of the process, as the end of "while …"."""

    what: str


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """The end: an exception, and no complete profiled call."""

    reason: str


class Called(msgspec.Struct, frozen=True, tag="called"):
    """The end: the profiled call returned and the device has finished it."""


Message = Doing | Raised | Called


def write_message(diary: Path, message: Message) -> None:
    """Append one line in one write, so that a reader never sees half of it."""
    with diary.open("ab") as stream:
        stream.write(msgspec.json.encode(message) + b"\n")


def read_messages(diary: Path) -> list[Message]:
    """All complete lines so far, up to the first that is no message: code of the kernel's process can write to the file, too."""
    try:
        content = diary.read_bytes()
    except FileNotFoundError:
        return []
    found: list[Message] = []
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            found.append(msgspec.json.decode(line, type=Message))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return [*found, Raised(f"its process wrote {len(line)} bytes that are no message: {error}")]
    return found
