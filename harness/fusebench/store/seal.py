"""The seal of a record: digests of its files, and one over its JSON file itself, written into that file by whoever writes the record.

A seal finds accidents: an edited figure, a table of another copy, a damaged disk. It is no signature: whoever edits a record on purpose can
compute the seal anew, or remove it. docs/schema.md describes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .record_files import encode_json

SEAL = "seal"
"""The key of the JSON file with the SHA-256 of the rest of it, as JSON with sorted keys and without spaces."""
FILES = "files"
"""The key of the JSON file with the SHA-256 of each other file of the record."""


ALTERED = "was altered after it was written"
REMEDY = "restore it from a copy, or measure again"


def altered_words(what: str, altered: str, where: Path) -> str:
    """The warning of `what`, the record at `where`, of which `altered` does not fit its seal."""
    return f"{what} {ALTERED}: {altered} ({where}); {REMEDY}"


class SealState(msgspec.Struct, frozen=True, kw_only=True):
    """What the seal of a record says."""

    sealed: bool
    """False for the records of an older fusebench."""
    altered: str = ""
    """What does not fit the seal; empty where everything does, and without a seal."""


def sealed_json(head: Mapping[str, Any], digests: Mapping[str, str]) -> bytes:
    """`head`, the content of a record's JSON file, as JSON with `digests` of the record's other files by name, and the seal."""
    whole = {**head, FILES: dict(digests)}
    return encode_json({**whole, SEAL: _of(msgspec.json.decode(encode_json(whole)))})


def next_of(file: Path) -> Path:
    """Where the next content of `file` lies until the record that names it is written; a kill between the two loses neither."""
    return file.with_name(f".{file.name}.next")


def file_as_sealed(record: Path, name: str) -> Path:
    """The file `name` of the JSON file at `record`: its next content where the record names that one already."""
    file = record.with_name(name)
    return next_of(file) if _digest_of(next_of(file)) == digests_in(record).get(name) else file


def digests_in(record: Path) -> dict[str, str]:
    """The digests of a record's other files, by name; empty where the JSON file is missing, garbled or not sealed."""
    try:
        return msgspec.convert(msgspec.json.decode(record.read_bytes())[FILES], dict[str, str])
    except (OSError, ValueError, OverflowError, RecursionError, KeyError, TypeError):
        return {}


def check_seal(record: Path, known: Iterable[str] | None, *, left_out: Iterable[str] = ()) -> SealState:
    """What the seal in the JSON file at `record` says about that file and those beside it.

    Args:
        known: names of all files that such a record may have; None for those that it names.
        left_out: names of files that are not looked at, to save time.
    """
    while True:
        try:
            content = record.read_bytes()
            head = msgspec.json.decode(content)
        except (OSError, ValueError, OverflowError, RecursionError) as error:
            return SealState(sealed=False, altered=f"{record.name} cannot be read: {error}")
        found = _checked(head, record, known, frozenset(left_out))
        # A command that is still measuring may have replaced both since.
        if not found.altered or _digest_of(record) in ("", digest(content)):
            return found


def _checked(head: Any, record: Path, known: Iterable[str] | None, left_out: Collection[str]) -> SealState:
    if not isinstance(head, dict) or SEAL not in head:
        return SealState(sealed=False)
    files = head.get(FILES)
    if head[SEAL] != _of(head) or not isinstance(files, dict) or not all(Path(name).name == name for name in files):
        return SealState(sealed=True, altered=f"{record.name} does not fit its seal")
    known = set(files if known is None else known)
    if not files.keys() <= known:
        return SealState(sealed=True, altered=f"{record.name} does not fit its seal")
    wrong = []
    for name in sorted(known - set(left_out)):
        file = record.with_name(name)
        # A reader of a missing file says so; samples may be left out to save space.
        if not file.exists() or files.get(name) in (_digest_of(file), _digest_of(next_of(file))):
            continue
        wrong.append(f"{name} {'does not fit its seal' if name in files else 'was added'}")
    return SealState(sealed=True, altered=", ".join(wrong))


def _of(head: Mapping[str, Any]) -> str:
    """The seal of a decoded JSON file."""
    return digest(msgspec.json.encode({key: value for key, value in head.items() if key != SEAL}, order="sorted"))


def digest(content: bytes) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _digest_of(file: Path) -> str:
    """The same of a file; empty where it is missing or cannot be read."""
    try:
        return digest(file.read_bytes())
    except OSError:
        return ""
