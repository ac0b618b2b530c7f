"""Load `kernels/` folders by path, under a private package prefix. A broken file does not stop the others.

Each load gets its own prefix, so one process can hold two versions of the same folder (this checkout's and the merge
base's).  Nothing is put on `sys.path`; files of a root import one another relatively (`from .op import Params`).

Roots merge by op: one of them defines it in `op.py`, and any root may add kernels in a folder of the op's name.  A relative import that
finds nothing in the file's own root finds the file of another one (see `loading.merging`).
"""

from __future__ import annotations

import importlib
from collections.abc import Container, Sequence
from pathlib import Path

from ..errors import UsageError
from ..schema import KernelId
from .loading.installed import KERNELS_GROUP, SUITES_GROUP, installed_folders
from .loading.roots import Wanted, load_roots, op_folders
from .loading.watching import Watch
from .lookup import Collection, Problem
from .recording import recording


def load_collection(
    roots: Sequence[Path],
    *,
    kernels: bool = True,
    entry_points: bool = True,
    only: Container[str] | None = None,
    kernel: KernelId | None = None,
    operators: bool = True,
    watch: Watch | None = None,
) -> Collection:
    """Load every op under `roots` (and installed entry points). With `kernels`, load every kernel file too.

    A root may also be one Python file. Its functions that `@benchmark` marks become an op and its kernels.

    With `kernels=False` only `op.py` files are executed, which must not import torch.

    Args:
        only: names of the ops whose kernel files to execute; None for all.
        kernel: the one kernel that this process calls; None for all. Executes the op's files that mention the kernel's name, and the
            remaining files only if none of these declares it.
        operators: make fused kernels torch operators, for compiled models. That imports all of torch.compile, which takes longer than
            importing torch. A process that does not compile yet passes False (see `Collection.prepared`).
        watch: the watch over the files, for a process that exists to load them; None in a process that belongs to the user.

    Raises:
        UsageError: a root that is not a folder.
    """
    found, problems = all_roots(roots, entry_points=entry_points)
    collection = Collection(roots=found, problems=problems, watch=watch or Watch())
    importlib.invalidate_caches()  # files written since the last import of the same folder are found
    with recording() as declared:
        load_roots(collection, declared, Wanted(kernels, only, kernel, operators), watched=watch is not None)
    return collection


def all_roots(roots: Sequence[Path], *, entry_points: bool = True) -> tuple[tuple[Path, ...], list[Problem]]:
    """`roots` and those of installed entry points, resolved, each once; and a problem for each entry point that leads to none.

    Raises:
        UsageError: a root that is not a folder.
    """
    paths = [Path(root) for root in roots]
    for path in paths:
        if not (path.is_dir() or (path.is_file() and path.suffix == ".py")):
            raise UsageError(
                f"kernels folder {path} does not exist; pass --kernels DIR or set `kernels` in [tool.fusebench] of pyproject.toml"
            )
    installed, problems = _entry_point_roots() if entry_points else ([], [])
    # A project that is itself installed is named twice, by its pyproject.toml and by its entry point; it is one root.
    return tuple(dict.fromkeys(path.resolve() for path in [*paths, *installed])), problems


def adds_to_ops(root: Path) -> bool:
    """Whether `root` holds kernels of an op that another root has to define."""
    return any(not (folder / "op.py").is_file() and any(folder.glob("[!_]*.py")) for folder in op_folders(root))


def may_define(root: Path, op: str) -> bool:
    """Whether loading `root` may bring an op of that name, by the names of its folders; of a single file that is not known."""
    return root.is_file() or any(folder.name == op and (folder / "op.py").is_file() for folder in op_folders(root))


def _entry_point_roots() -> tuple[list[Path], list[Problem]]:
    """Folders of the packages that installed distributions name, and a problem for each name that leads to none, also of suites."""
    folders, broken = installed_folders(KERNELS_GROUP)
    broken += installed_folders(SUITES_GROUP)[1]
    return [folder.path for folder in folders], [Problem(Path(one.value), one.message) for one in broken]
