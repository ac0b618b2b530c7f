"""What the process that records and compiles is asked, and what it answers: one JSON document a line."""

from __future__ import annotations

import msgspec

from ..schema import Case
from .records import CapturedCase, Code


class Request(msgspec.Struct, frozen=True, kw_only=True):
    roots: tuple[str, ...]
    target: str
    cases: tuple[Case, ...]
    compilers: dict[str, str]
    """Compiler versions by language."""
    kernel: str | tuple[str, ...] | None
    """Globs of the kernels whose code is wanted; every kernel's launches are recorded."""
    cache: str | None
    """Folder of the cache, where code that is known already is looked up."""
    jobs: int


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """The launches of `cases[index]`."""

    index: int
    case: CapturedCase


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    text: str
    done: int
    total: int


class Assembled(msgspec.Struct, frozen=True, tag="assembled"):
    """The code of one specialisation."""

    key: str
    code: Code


class NotCompiled(msgspec.Struct, frozen=True, tag="not_compiled"):
    key: str
    reason: str


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The whole request failed, for a reason that fusebench has words for."""

    reason: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The last message: without it the process was lost."""


Message = Recorded | Progress | Assembled | NotCompiled | Broken | Done
