"""Load `kernels/` folders by path, under a private package prefix. A broken file does not stop the others.

Each load gets its own prefix, so one process can hold two versions of the same folder (this checkout's and the merge
base's).  Nothing is put on `sys.path`; files of a root import one another relatively (`from .op import Params`).

Roots merge by op: one of them defines it in `op.py`, and any root may add kernels in a folder of the op's name.  A relative import that
finds nothing in the file's own root finds the file of another one (see `loading.merging`).
"""

from __future__ import annotations

import importlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from ..schema import Case, KernelId, Role
from .declared import CaseSupport
from .kernel import Kernel
from .loading.installed import KERNELS_GROUP, SUITES_GROUP, installed_folders
from .loading.roots import Wanted, load_roots, op_folders, operator_refused
from .loading.watching import Watch
from .lookup import Lookup, Problem
from .op import Op
from .recording import recording


@dataclass
class Collection(Lookup[Op, Kernel]):
    """The ops and kernels of one or more roots, loaded into this process."""

    roots: tuple[Path, ...]
    ops: dict[str, Op] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)
    """Told which file's code is about to run."""
    without_operators: list[tuple[Kernel, str]] = field(default_factory=list)
    """Kernels that were loaded without their torch operators, each with the namespace for it."""

    @property
    def excluded(self) -> Mapping[str, str]:
        """Files that no process may import, each with the reason."""
        return self.watch.excluded

    def prepared(self, kernel_id: str) -> Kernel:
        """The kernel `op/name@version`, ready to be called.

        A torch.compile kernel must see calls of other kernels as operators, so this first makes the torch operators that loading left out.
        A kernel whose operator torch refuses becomes a problem on record and works without one.

        Raises:
            UnknownNameError: no such kernel; the message offers the nearest.
        """
        kernel = self.kernel(kernel_id)
        while kernel.role is Role.COMPILED and self.without_operators:
            other, namespace = self.without_operators.pop()
            if reason := operator_refused(other, namespace):
                self.problems.append(Problem(Path(other.file), reason, op=other.id.op))
        return kernel

    def support(self, case: Case) -> CaseSupport:
        """What the kernels of the case's op say of the case.

        Raises:
            ValueError: the op refuses the case's parameters.
        """
        params = self.op(case.op).parse_params(case.params)
        declined: dict[str, str] = {}
        part_bytes: dict[str, int] = {}
        for kernel in self.kernels_of(case.op, choices=True):
            try:
                with self.watch.on(kernel.file):
                    reason = kernel.reason_unsupported(params)
                    if reason is None and kernel.part is not None:
                        part_bytes[str(kernel.id)] = int(kernel.part.minimum_bytes(params))
            except Exception as error:  # noqa: BLE001 - whatever a kernel's declaration raises concerns that kernel alone
                reason = f"the declaration of {kernel.id} failed on this case: {type(error).__name__}: {error}"
            if reason is not None:
                declined[str(kernel.id)] = reason
        return CaseSupport(declined=declined, part_bytes=part_bytes)


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


def _entry_point_roots() -> tuple[list[Path], list[Problem]]:
    """Folders of the packages that installed distributions name, and a problem for each name that leads to none, also of suites."""
    folders, broken = installed_folders(KERNELS_GROUP)
    broken += installed_folders(SUITES_GROUP)[1]
    return [folder.path for folder in folders], [Problem(Path(one.value), one.message) for one in broken]
