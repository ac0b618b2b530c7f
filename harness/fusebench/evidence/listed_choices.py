"""Which tunable choices of kernels static evidence lists for a case: those that dispatch takes there, and those that are asked for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..naming import architecture_of
from ..registry.dispatching.ranking import Ranker
from ..registry.dispatching.tables import tables_of
from ..schema import Case
from ..schema.kernels import CHOICE_MARK
from .records import matches_id

if TYPE_CHECKING:
    from ..registry import Kernel


def asked_choices(kernel: str | Sequence[str] | None) -> tuple[str, ...]:
    """The globs or ids in `kernel` that may match choices; without any, only what dispatch takes is listed."""
    globs = [] if kernel is None else [kernel] if isinstance(kernel, str) else kernel
    return tuple(sorted({one for glob in globs for one in glob.split(",") if CHOICE_MARK in one}))


class ListedChoices:
    """The choices to list for cases on one target."""

    def __init__(self, target: str, roots: Sequence[Path], asked: Sequence[str]) -> None:
        """
        Args:
            target: name of the target; tables of GPU models of this architecture count, whatever their Triton.
            roots: the kernels' folders, which hold the dispatch tables.
            asked: as `asked_choices` gives it.
        """
        self._target, self._roots, self._asked = target, roots, asked
        self._rankers = functools.cache(self._rankers_of)

    def lists(self, kernel: Kernel, case: Case) -> bool:
        """Whether to list `kernel` for `case`; a kernel that is no choice always."""
        if not kernel.id.choice or matches_id(str(kernel.id), self._asked):
            return True
        op = kernel.op
        assert op is not None, "the loader binds the op"
        try:
            key = op.dispatch_key(op.parse_params(case.params))
        except Exception:  # noqa: BLE001 - dispatch takes the default order then, in which no choice is
            return False
        entries = [ranker.measured(key) for ranker in self._rankers(op.name)] if key is not None else []
        return f"{kernel.id.name}@{kernel.id.version}" in {entry.times[0].kernel for entry in entries if entry is not None and entry.times}

    def _rankers_of(self, op: str) -> list[Ranker]:
        return [Ranker(table) for table in tables_of(op, self._roots) if architecture_of(table.gpu) == self._target]
