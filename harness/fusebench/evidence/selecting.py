"""Kernel globs on ids alone, where no kernel is loaded."""

from __future__ import annotations

import fnmatch

from ..schema import KernelId


def matches_id(kernel: str, pattern: str | None) -> bool:
    """Whether the glob `pattern` means the kernel `op/name@version`, in any of the spellings that it answers to; None means all."""
    return pattern is None or any(fnmatch.fnmatchcase(spelling, pattern) for spelling in id_spellings(kernel))


def id_spellings(kernel: str) -> tuple[str, str, str]:
    """`op/name@2`, `name@2`, `name`."""
    identity = KernelId.parse(kernel)
    return kernel, f"{identity.name}@{identity.version}", identity.name
