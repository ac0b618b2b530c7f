"""The folder of a record that is kept while it is measured: its JSON file, sealed, and the files beside it.

A kill at any moment leaves a readable record that fits its seal: a file that is replaced waits under another name until the record that
seals it is written (`seal.next_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..errors import RunRecordError
from .files import not_written, write_file
from .record_files import new_folder
from .seal import digest, digests_in, next_of, sealed_json


def keep(
    record: Path, content: msgspec.Struct, *, what: str, resume: str, replaced: Mapping[str, bytes], copied: Mapping[str, Path]
) -> Path:
    """Write the JSON file `record` and the files beside it into a new folder, or replace what was written of it before; return the folder.

    Args:
        what: the kind of record in words, for messages.
        resume: the command line that made the record, for messages.
        replaced: files that grow with the record, by name.
        copied: files that never change, by name, with the file to copy.

    Raises:
        RecordNotWrittenError: the disk is full, or the folder takes no file.
        RunRecordError: a file cannot be copied, or the folder cannot be moved into place.
    """
    folder = record.parent
    try:
        if folder.exists():
            _fill(record, content, replaced, copied)
        else:
            with new_folder(folder, what) as making:
                _fill(making / record.name, content, replaced, copied)
    except OSError as error:
        raise not_written(folder, error, resume) from error
    return folder


def _fill(record: Path, content: msgspec.Struct, replaced: Mapping[str, bytes], copied: Mapping[str, Path]) -> None:
    digests = {name: digest(each) for name, each in replaced.items()}
    known = digests_in(record)
    for name, source in copied.items():
        if name in known:
            digests[name] = known[name]
            continue
        try:
            each = source.read_bytes()
        except OSError as error:
            raise RunRecordError(f"{source}: cannot be copied into the run's folder: {error.strerror or error}") from error
        write_file(record.with_name(name), each)
        digests[name] = digest(each)
    for name, each in replaced.items():
        write_file(next_of(record.with_name(name)), each)
    write_file(record, sealed_json(msgspec.to_builtins(content), digests))
    for name in replaced:
        rename(next_of(record.with_name(name)), record.with_name(name))


def rename(old: Path, new: Path) -> None:
    """Put `old` in the place of `new` at once."""
    old.replace(new)
