"""The seal of a run's record: digests of its files, and one over `run.json` itself, written into `run.json` by whoever writes the record.

A seal finds accidents: an edited figure, a table of another copy, a damaged disk. It is no signature: whoever edits a record on purpose can
compute the seal anew, or remove it. docs/schema.md describes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .record_files import encode_json

SEAL = "seal"
"""The key of `run.json` with the SHA-256 of the rest of it, as JSON with sorted keys and without spaces."""
FILES = "files"
"""The key of `run.json` with the SHA-256 of each other file of the record."""


class SealState(msgspec.Struct, frozen=True, kw_only=True):
    """What the seal of a record says."""

    sealed: bool
    """False for the records of an older fusebench."""
    altered: str = ""
    """What does not fit the seal; empty where everything does, and without a seal."""


def sealed_json(head: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """`head`, the content of a `run.json`, as JSON with the digests of `files`, the record's other files by name, and the seal."""
    whole = {**head, FILES: {name: _digest(content) for name, content in files.items()}}
    return encode_json({**whole, SEAL: _of(msgspec.json.decode(encode_json(whole)))})


def check_seal(record: Path, known: Iterable[str], *, left_out: Iterable[str] = ()) -> SealState:
    """What the seal in the `run.json` at `record` says about that file and those beside it.

    Args:
        known: names of all files that a record may have.
        left_out: names of files that are not looked at, to save time.
    """
    try:
        head = msgspec.json.decode(record.read_bytes())
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        return SealState(sealed=False, altered=f"{record.name} cannot be read: {error}")
    if not isinstance(head, dict) or SEAL not in head:
        return SealState(sealed=False)
    files = head.get(FILES)
    if head[SEAL] != _of(head) or not isinstance(files, dict) or not files.keys() <= set(known):
        return SealState(sealed=True, altered=f"{record.name} does not fit its seal")
    wrong = []
    for name in sorted(set(known) - set(left_out)):
        try:
            found = _digest(record.with_name(name).read_bytes())
        except FileNotFoundError:  # a reader of the file says so; samples may be left out to save space
            continue
        except OSError:
            found = ""
        if found != files.get(name):
            wrong.append(f"{name} {'does not fit its seal' if name in files else 'was added'}")
    return SealState(sealed=True, altered=", ".join(wrong))


def _of(head: Mapping[str, Any]) -> str:
    """The seal of a decoded `run.json`."""
    return _digest(msgspec.json.encode({key: value for key, value in head.items() if key != SEAL}, order="sorted"))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
