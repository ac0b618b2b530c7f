"""Which tunable choices of kernels static evidence lists for a case: those that dispatch takes there, and those that are asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..naming import architecture_of
from ..registry.dispatching.ranking import Ranker
from ..registry.dispatching.tables import tables_of
from ..schema import Case
from ..schema.kernels import CHOICE_MARK
from .records import matches_id

if TYPE_CHECKING:
    from ..registry import Kernel, Op


def asked_choices(kernel: str | Sequence[str] | None) -> tuple[str, ...]:
    """The globs or ids in `kernel` that may match choices; without any, only what dispatch takes is listed."""
    globs = [] if kernel is None else [kernel] if isinstance(kernel, str) else kernel
    return tuple(sorted({one for glob in globs for one in glob.split(",") if CHOICE_MARK in one}))


class ListedChoices:
    """The choices to list for cases on one target."""

    def __init__(self, target: str, roots: Sequence[Path], kernel: str | Sequence[str] | None) -> None:
        """
        Args:
            target: name of the target; tables of GPU models of this architecture count, whatever their Triton.
            roots: the kernels' folders, which hold the dispatch tables.
            kernel: globs or ids of the selected kernels; None for all.
        """
        self._target, self._roots, self._asked = target, roots, asked_choices(kernel)
        self._rankers = functools.cache(self._rankers_of)

    def listed(self, kernels: Iterable[Kernel], op: Op | None, case: Case) -> list[Kernel]:
        """Of `kernels`, those of `op`, all that are no choice, and the choices to list for `case`; None for an op that is not declared."""
        taken = self._taken(op, case) if op is not None else ()
        return [
            kernel
            for kernel in kernels
            if not kernel.id.choice or f"{kernel.id.name}@{kernel.id.version}" in taken or matches_id(str(kernel.id), self._asked)
        ]

    def _taken(self, op: Op, case: Case) -> set[str]:
        """`name@version` of the kernels that tables put first for the case."""
        try:
            key = op.facts(case.params).dispatch_key
        except ValueError:  # the record of each kernel says what the op refuses
            return set()
        entries = [ranker.measured(key) for ranker in self._rankers(op.name)] if key is not None else []
        return {entry.times[0].kernel for entry in entries if entry is not None and entry.times}

    def _rankers_of(self, op: str) -> list[Ranker]:
        return [Ranker(table) for table in tables_of(op, self._roots) if architecture_of(table.gpu) == self._target]
