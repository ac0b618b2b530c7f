"""Kernel globs on ids alone, where no kernel is loaded."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from ..schema import KernelId


def matches_id(kernel: str, pattern: str | Sequence[str] | None) -> bool:
    """Whether the glob `pattern`, or one of several, means the kernel `op/name@version`, in any of its spellings; None means all."""
    if pattern is None:
        return True
    patterns = [pattern] if isinstance(pattern, str) else pattern
    return any(fnmatch.fnmatchcase(spelling, one) for spelling in id_spellings(kernel) for one in patterns)


def id_spellings(kernel: str) -> tuple[str, str, str]:
    """`op/name@2`, `name@2`, `name`."""
    identity = KernelId.parse(kernel)
    return kernel, f"{identity.name}@{identity.version}", identity.name
