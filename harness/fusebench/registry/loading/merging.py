"""Roots that share ops: a relative import searches the file's own root first, and then the one other root that holds the module.

A user's `kernels/qknorm_rope/mine.py` that says `from .op import Params` gets the Params of the op that another root defines. It is the
same module object, so nothing is executed, compiled or declared twice.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple


class Root(NamedTuple):
    """A loaded root: the private package prefix of its modules, and its folder."""

    prefix: str
    path: Path

    def holds(self, module: str) -> bool:
        """Whether the root has a file or folder for `module`, named below the prefix: `qknorm_rope.op`."""
        place = self.path.joinpath(*module.split("."))
        return self.has_folder(module) or place.with_name(f"{place.name}.py").is_file()

    def has_folder(self, module: str) -> bool:
        """Whether `module` is a folder of the root."""
        return self.path.joinpath(*module.split(".")).is_dir()

    def adds_to(self, op: str) -> bool:
        """Whether the root has a folder of that name without a definition."""
        return (self.path / op).is_dir() and not (self.path / op / "op.py").is_file()


def let_roots_meet(roots: Sequence[Root]) -> None:
    """Let files of each of `roots` import, relatively, modules that only another of them holds."""
    if len(roots) > 1:
        _finder.others.update({root.prefix: (root, [one for one in roots if one is not root]) for root in roots})
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)


class _Finder(MetaPathFinder):
    """First in `sys.meta_path`, so that it finds a module of another root before any other search."""

    def __init__(self) -> None:
        self.others: dict[str, tuple[Root, list[Root]]] = {}

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The other root's module under this root's name; None if the own root holds it, or no root does.

        Raises:
            ImportError: several other roots hold it.
        """
        prefix, _, module = fullname.partition(".")
        if prefix not in self.others or not module:
            return None
        root, others = self.others[prefix]
        holding = [] if root.holds(module) else [one for one in others if one.holds(module)]
        if any(one.has_folder(module) for one in holding):
            # Not the other root's package: its search path would lead past this finder to second copies of its modules.
            return ModuleSpec(fullname, None, is_package=True)
        if len(holding) > 1:
            places = " and ".join(str(one.path) for one in holding)
            raise ImportError(f"{module!r} is in several other folders of kernels: {places}; rename all but one")
        return ModuleSpec(fullname, _Same(f"{holding[0].prefix}.{module}")) if holding else None


class _Same(Loader):
    """Loads a module by handing out the one that already exists under another name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed again; the import system has overwritten the module's own spec."""
        module.__spec__ = self._spec


_finder = _Finder()
