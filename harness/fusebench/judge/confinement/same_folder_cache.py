"""Triton's cache of compiled kernels for kernels before Linux 5.19, whose Landlock lets nobody rename a file into another folder.

Triton's own cache writes each file into a new folder and renames it; where `isolation` finds Landlock ABI 1, it names this one instead.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from triton.runtime.cache import FileCacheManager


class SameFolderCache(FileCacheManager):  # type: ignore[misc]
    """Writes a file beside its final place, and renames it there."""

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        """Store `data` under `filename`; returns its path."""
        target = Path(self._make_path(filename))
        beside = target.with_name(f".{secrets.token_hex(8)}")
        beside.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        os.replace(beside, target)  # noqa: PTH105  atomic, as Triton's
        return str(target)
