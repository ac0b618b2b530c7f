"""Files of a store by path: read, write and list, with retries.  A file appears whole or not at all, and is read back after writing."""

from __future__ import annotations

import posixpath
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...errors import UsageError
from ..seal import digest
from .faults import LASTING, StoreDamageError, StorePackageError, StoreUnreachableError, store_fault

ATTEMPTS = 6
FIRST_PAUSE_S = 0.5
"""Pause before the second attempt; each further one is twice as long, so that six attempts outlast 15 s without a server."""
FIRST_CONTACT_S = 20.0
"""A store that has never answered is not asked again after so long: one whose address nobody answers costs 10 s at every attempt."""
SILENT_S = 3.0
"""An attempt that takes longer is told."""
_RENAMES = frozenset({"file", "local", "sftp", "ssh"})
"""Stores with folders and a rename. The others are object stores: a file appears there when its upload is complete."""
_CREATES = frozenset({"s3", "gs", "gcs", "az", "abfs"})
"""Stores that can refuse by themselves to replace a file."""
_PATIENT = frozenset({"az", "abfs", "gs", "gcs"})
"""Stores whose package tries every request several times itself, for half a minute (gcsfs) or more than one (adlfs), and cannot be told
otherwise: without a server, six times as long would be 200 and 500 s."""
_PROBE = ".fusebench-probe"

T = TypeVar("T")


def _options(url: str) -> dict[str, Any]:
    """Options of the backend: no listing is kept, and S3's own retries, of two libraries, would multiply with those here."""
    from fsspec.config import conf

    if url.startswith(("ssh://", "sftp://")):
        return {}  # it keeps no listings, and hands every option on to SSH, which refuses those that it does not know
    if not url.startswith(("s3://", "s3a://")):
        return {"use_listings_cache": False}
    own = conf.get("s3", {}).get("config_kwargs", {})
    config = {"connect_timeout": 10, "read_timeout": 60, **own, "retries": {"total_max_attempts": 1}}
    return {"use_listings_cache": False, "config_kwargs": config}


def is_url(text: str) -> bool:
    """Whether `text` names a store by URL, and not a folder by path."""
    return "://" in text


class Store:
    """A folder on a store.  All paths are relative to it, with `/`.  Every method raises a `StoreError` after the last attempt."""

    def __init__(self, url: str, *, pause: Callable[[float], None] = time.sleep, tell: Callable[[str], None] = lambda _: None) -> None:
        """Connect to `url`; nothing is read yet.

        Args:
            pause: waits so many seconds.
            tell: takes a sentence for the person who waits: of an attempt that takes long, and of the first one that failed.

        Raises:
            StorePackageError: no installed package reaches such a store.
            UsageError: the URL names no bucket or folder.
        """
        self.url = re.sub(r"://([^/@:]+):[^/@]*@", r"://\1:…@", url.rstrip("/"))
        """The URL for messages: without a password."""
        self._pause, self._tell = pause, tell
        self._reached = False
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            raise StorePackageError(
                f"{self.url}: the package fsspec, which reaches stores, is not installed; `pip install 'fusebench[store]'`"
            ) from error
        if not re.fullmatch(r"[\w+.-]+://.*[^/].*", url):
            raise UsageError(f"{url}: names no bucket or folder; expected a URL such as s3://bucket/fusebench")
        try:
            self._system, self._root = url_to_fs(url, skip_instance_cache=True, **_options(url))
        except Exception as error:
            raise store_fault(error, self.url, writing=False) from error
        if hasattr(self._system, "retries"):
            self._system.retries = 1
        protocol = self._system.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._renames, self._creates = bool(protocols & _RENAMES), bool(protocols & _CREATES)
        self._lasting = (*LASTING, StoreUnreachableError) if protocols & _PATIENT else LASTING

    def where(self, path: str) -> str:
        """The URL of a file, for messages."""
        return f"{self.url}/{path}" if path else self.url

    def read(self, path: str) -> bytes | None:
        """The content of a file; None where there is none."""

        def get() -> bytes | None:
            try:
                content: bytes = self._system.cat_file(self._at(path))
            except FileNotFoundError:
                return None
            return content

        return self._tried(get, path, writing=False)

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders directly in `folder`, sorted; none where it does not exist."""

        def get() -> list[str]:
            try:
                found = self._system.ls(self._at(folder), detail=False)
            except FileNotFoundError:
                if not folder:
                    raise
                return []
            names = {posixpath.basename(str(one).rstrip("/")) for one in found}
            return sorted(name for name in names if name and not name.startswith("."))

        return self._tried(get, folder, writing=False)

    def files_below(self, folder: str) -> dict[str, int]:
        """Paths of all files below `folder` with their sizes in bytes."""

        def get() -> dict[str, int]:
            try:
                found = self._system.find(self._at(folder), detail=True)
            except FileNotFoundError:
                return {}
            start = len(self._root.rstrip("/")) + 1
            sizes = {str(path)[start:]: int(entry["size"] or 0) for path, entry in found.items()}
            return {path: size for path, size in sorted(sizes.items()) if not posixpath.basename(path).startswith(".")}

        return self._tried(get, folder, writing=False)

    def write(self, path: str, content: bytes, *, new: bool = False) -> None:
        """Write a file, and read it back.

        Args:
            new: whether the file must not exist; if it does, and holds the same, nothing happens.

        Raises:
            FileExistsError: `new`, and the file exists with another content.
        """

        damaged = False

        def put() -> None:
            nonlocal damaged
            if new and (there := self._read_back(path)) is not None:
                if there == content:
                    return
                # A part of the content is an upload that was ended, and no record of anybody else.
                if not (damaged or content.startswith(there)):
                    raise FileExistsError(self.where(path))
                self._system.rm_file(self._at(path))
            self._put(path, content, new=new)
            if digest(self._read_back(path) or b"") != digest(content):
                damaged = True
                raise StoreDamageError(
                    f"{self.where(path)}: damaged on its way: {len(content)} bytes were sent, and others arrived; check the connection"
                )

        self._tried(put, path, writing=True)

    def remove(self, path: str) -> None:
        """Remove a file; nothing where there is none."""

        def drop() -> None:
            try:
                self._system.rm_file(self._at(path))
            except FileNotFoundError:
                return

        self._tried(drop, path, writing=True)

    def require_writable(self) -> None:
        """Check before a measurement that the store takes files, so that no result waits for a store that never takes it.

        Leaves one small file, which is always the same: the permission to remove files is not needed.
        """
        self.write(_PROBE, b"fusebench writes this file to find out whether the store takes files\n")

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}" if path else self._root

    def _read_back(self, path: str) -> bytes | None:
        try:
            content: bytes = self._system.cat_file(self._at(path))
        except FileNotFoundError:
            return None
        except Exception as error:
            if isinstance(store_fault(error, path, writing=False), StoreDamageError):
                return b""
            raise
        return content

    def _put(self, path: str, content: bytes, *, new: bool) -> None:
        target = self._at(path)
        if not self._renames:
            self._system.pipe_file(target, content, **({"mode": "create"} if new and self._creates else {}))
            return
        folder, name = posixpath.split(target)
        self._system.makedirs(folder, exist_ok=True)
        making = f"{folder}/.{name}.{uuid.uuid4().hex[:8]}.partial"
        try:
            self._system.pipe_file(making, content)
            self._system.mv(making, target)
        except BaseException:
            if self._system.exists(making):
                self._system.rm_file(making)
            raise

    def _tried(self, action: Callable[[], T], path: str, *, writing: bool) -> T:
        began = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._watched(path):
                    found = action()
                self._reached = True
                return found
            except FileExistsError:
                raise
            except Exception as error:
                fault = store_fault(error, self.where(path), writing=writing)
                self._reached |= not isinstance(fault, StoreUnreachableError)
                given_up = not self._reached and time.monotonic() - began > FIRST_CONTACT_S
                if attempt == ATTEMPTS or given_up or isinstance(fault, self._lasting):
                    raise fault from error
                if attempt == 1:
                    self._tell(f"{fault}; trying again for about {FIRST_PAUSE_S * (2 ** (ATTEMPTS - 1) - 1):.0f} s")
            self._pause(FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))
        raise AssertionError("unreachable")

    @contextmanager
    def _watched(self, path: str) -> Iterator[None]:
        """Tell if the block takes long."""
        timer = threading.Timer(SILENT_S, self._tell, [f"no answer for {SILENT_S:g} s from {self.where(path)}"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
