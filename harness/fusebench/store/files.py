"""Write files and folders so that a reader never sees half of one: build beside the target, then rename."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import RecordNotWrittenError, UsageError

_TRIES = 20
"""A new folder is tried for so often, where its parent vanishes meanwhile."""


@contextmanager
def folder_in_making(target: Path) -> Iterator[Path]:
    """An empty hidden sibling of `target` to fill.  It is removed with its content when the body raises.

    The caller renames it to `target` as the last statement of the body.  Only siblings are renamed into place: a rename is atomic
    within one file system.
    """
    making = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    make_folder(making)
    try:
        yield making
    finally:
        shutil.rmtree(making, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make a new folder and its parents, also where another process removes a parent again, which it had made for its `require_writable`.

    Raises:
        OSError: `folder` is there, or cannot be made.
    """
    for left in reversed(range(_TRIES)):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            break
        except FileNotFoundError:
            if not left:
                raise


@contextmanager
def held_alone(path: Path) -> Iterator[None]:
    """Let one process at a time replace the record at `path`, a file or a folder, for the body.

    The lock lies beside the devices' locks, because the record itself lies in a checkout.
    """
    import filelock

    from ..device.lock import lock_folder

    path = path.resolve()
    lock = lock_folder() / f"{path.parent.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(lock):
        yield


def require_writable(folder: Path, *, instead: str = "") -> None:
    """Check before a measurement that a folder can be made in `folder`, so that no result is lost. Leaves nothing behind.

    `instead` names an alternative to mending the folder, if there is one (`name another with --out DIR`).

    Raises:
        UsageError: `folder` cannot be made, is a file, or cannot hold a new folder.
    """
    absent = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        with folder_in_making(folder / "probe"):
            pass
    except OSError as error:
        raise UsageError(
            f"{folder}: nothing can be written there: {error.strerror or error}; expected a folder that takes a new one; "
            f"mend it{', or ' if instead else ''}{instead}"
        ) from error
    finally:
        for one in absent:
            with suppress(OSError):  # it was not made, or somebody else has put something into it
                one.rmdir()


def write_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` at once: temporary sibling, flushed to the disk, renamed over."""
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        with making.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        making.replace(path)
    finally:
        making.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to the disk, so that a file renamed into it is there after a power failure too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def option_values(command: str, option: str) -> list[str]:
    """What a record's command line gave to `option`, each time that it stands there (`--suite A`, `--suite=A`), in order."""
    words = iter(shlex.split(command))
    return [value if equals else next(words, "") for name, equals, value in (word.partition("=") for word in words) if name == option]


def resume_command(command: str, folder: Path) -> str:
    """The command line that goes on with the stopped record in `folder`.

    Args:
        command: the one that made the record.  Its options are repeated, since a record does not hold all of them, such as `--results`.
    """
    words = iter(shlex.split(command) or ["fusebench", "run"])
    kept = []
    for word in words:
        if word == "--resume":
            next(words, None)
        elif not word.startswith("--resume="):
            kept.append(word)
    return shlex.join([*kept, "--resume", str(folder)])


def not_written(folder: Path, error: OSError, resume: str = "") -> RecordNotWrittenError:
    """The error of a record whose folder takes no file.

    Args:
        resume: the command line whose repetition goes on with the record in `folder`; empty where there is none to go on with.
    """
    onward = f"go on with `{resume_command(resume, folder)}`" if resume and folder.exists() else "run again"
    return RecordNotWrittenError(
        f"{folder}: cannot be written: {error.strerror or error}; what was written there before stays; make space there, and {onward}"
    )
