"""Files that a user's option names: written at once, and never over a part of a stored record."""

from __future__ import annotations

import errno
from pathlib import Path

from ...errors import UsageError


def write_asked(file: Path, content: bytes, option: str) -> None:
    """Write `content` to `file`, which `option` with its value asks for.

    Raises:
        UsageError: `file` is a folder, cannot be written, or is part of a record.
    """
    from ...store.files import write_file

    require_no_record(file, option)
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file in it")
        write_file(file, content)
    except OSError as error:
        raise UsageError(f"{option}: {file} cannot be written: {error.strerror or error}") from error


def require_no_record(file: Path, option: str) -> None:
    """Check that `file` is no part of a stored record.

    Raises:
        UsageError: it is the JSON file of a record, or one that this JSON file seals.
    """
    from ...store.finding import OTHER_RECORDS
    from ...store.run_folder import RUN_FILE
    from ...store.seal import digests_in

    for name in (RUN_FILE, *OTHER_RECORDS):
        record = file.with_name(name) if file.name else file
        if record.is_file() and (file.name == name or file.name in digests_in(record)):
            raise UsageError(f"{option}: {file} belongs to the record in {file.parent}, and records are never changed; name another file")
