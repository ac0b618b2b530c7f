"""Kernel globs on ids alone, where no kernel is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from ..schema import KernelId


def matches_id(kernel: str, pattern: str | Sequence[str] | None) -> bool:
    """Whether the glob `pattern`, or one of several, means the kernel `op/name@version`, in any of its spellings; None means all."""
    if pattern is None:
        return True
    identity = KernelId.parse(kernel)
    return any(identity.matches(one) for one in ([pattern] if isinstance(pattern, str) else pattern))
