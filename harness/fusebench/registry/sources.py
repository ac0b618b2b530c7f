"""The source files that a kernel depends on, and the machine code that its calls launch.

`ab` compares two versions of a kernels folder by both, before it times anything: the whole folders first, then kernel by kernel.
"""

from __future__ import annotations

import ast
import filecmp
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from ..schema import Language, Role
from .declared import DeclaredKernel
from .dispatching.tables import is_table
from .kernel import Kernel
from .launches.machine_code import listening

CODE_SUFFIXES = frozenset({".py", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".inl", ".ptx"})
"""Files that are run or compiled: a change in them shows in the machine code and the operators of a call.  What a kernel reads from any
other file at run time need not."""

_ELSEWHERE = " (of another folder of kernels)"
_IMPORTS_BY_NAME = frozenset({"__import__", "import_module", "spec_from_file_location", "run_path", "run_module", "exec"})
"""Functions that run Python by a name, a path or a text made at run time."""


class RootDifferences(NamedTuple):
    """The differences between the kernels folders of two revisions, over every file."""

    files: tuple[tuple[int, str], ...]
    """Files that are not the same byte for byte: place of head's folder, and path within it."""
    unpaired: bool
    """Whether one revision has a kernels folder more than the other; the files of such a folder are not listed."""

    @property
    def none(self) -> bool:
        """Whether both revisions hold the same files."""
        return not self.files and not self.unpaired


def root_differences(head: Sequence[Path], base: Sequence[Path]) -> RootDifferences:
    """Compare every file of `head`'s kernels folders with `base`'s, byte for byte.

    A folder that both revisions use as it is stands for itself; the others are compared in their order.  Compiled Python, files that
    editors leave behind, and hidden folders do not count.
    """
    places = [(place, root.resolve()) for place, root in enumerate(head)]
    others = [root.resolve() for root in base]
    own = [(place, root) for place, root in places if root not in others]
    theirs = [root for root in others if root not in {root for _, root in places}]
    found = [
        (place, name)
        for (place, root), other in zip(own, theirs, strict=False)
        for name, ends in _both(dict(files_of(root)), dict(files_of(other))).items()
        if not (ends[0] and ends[1] and filecmp.cmp(ends[0], ends[1], shallow=False))
    ]
    return RootDifferences(tuple(sorted(found)), len(own) != len(theirs))


def roots_digest(roots: Sequence[Path]) -> str:
    """SHA-256 over every file of these kernels folders, in their order."""
    return hashlib.sha256("\n".join(map(root_digest, roots)).encode()).hexdigest()


def root_digest(root: Path) -> str:
    """SHA-256 over every file of a kernels folder, by path and content."""
    found = hashlib.sha256()
    for name, file in sorted(files_of(root)):
        content = file.read_bytes()
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _both(head: dict[str, Path], base: dict[str, Path]) -> dict[str, tuple[Path | None, Path | None]]:
    return {name: (head.get(name), base.get(name)) for name in {*head, *base}}


def files_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Path within `root`, and file, of every file that a kernel may read."""
    if root.is_file():
        yield root.name, root
    for path in root.iterdir() if root.is_dir() else ():
        if path.is_dir():
            around = path.is_symlink() and root.resolve().is_relative_to(path.resolve())
            if not around and path.name != "__pycache__" and not path.name.startswith("."):
                yield from ((f"{path.name}/{name}", file) for name, file in files_of(path))
        elif path.is_file() and path.name != ".DS_Store" and not path.name.endswith((".pyc", ".swp", "~")):
            yield path.name, path


def files_it_may_read(kernel: Kernel | DeclaredKernel, roots: Sequence[Path], differences: RootDifferences) -> tuple[tuple[int, str], ...]:
    """The differing files that no import leads to and that `kernel` may read all the same.

    Every file but Python and dispatch tables counts, since kernels open files by path.  Python counts too where the kernel, or a module
    that it imports, runs Python by a name made at run time; a peer imports another library that way.

    Args:
        roots: the kernel's own root first.
    """
    by_name = kernel.role is not Role.PEER and any(_imports_by_name(module) for module in _modules(kernel, roots))
    return tuple(one for one in differences.files if not is_table(one[1]) and (by_name or not one[1].endswith(".py")))


def _imports_by_name(module: Path) -> bool:
    for node in ast.walk(ast.parse(module.read_bytes())):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if called in _IMPORTS_BY_NAME and not (isinstance(name, str) and not name.startswith(".")):
                return True
    return False


def source_digests(kernel: Kernel | DeclaredKernel, roots: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of every file of `roots` that `kernel` may depend on, by its path within the root.

    These are its own file, its op's definition, and every relative import of these, also inside functions. Kernels open other files (CUDA
    C++, tables) by path at run time, so every such file beside a counted module counts. The result may hold unused files. Files elsewhere
    are missed (`files_it_may_read`), and so is an import by a name made at run time.

    Args:
        roots: the kernel's own root first; a relative import that finds nothing there is looked up in the others.
    """
    roots = [root.resolve() for root in roots]
    modules = _modules(kernel, roots)
    others = {
        file
        for folder in {module.parent for module in modules}
        for file in folder.iterdir()
        if file.is_file() and file.suffix not in (".py", ".pyc") and not file.name.startswith(".")
    }
    return {_named(file, roots): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(modules | others)}


def _modules(kernel: Kernel | DeclaredKernel, roots: Sequence[Path]) -> set[Path]:
    """The kernel's own file, its op's definition, and every relative import of these."""
    roots = [root.resolve() for root in roots]
    own = Path(kernel.file).resolve()
    return _imports_of([own, *_in_any(own.with_name("op.py"), roots)], roots)


def _imports_of(files: Sequence[Path], roots: Sequence[Path]) -> set[Path]:
    """`files` and every relative import of them, within `roots`."""
    waiting, modules = [*files], set[Path]()
    while waiting:
        file = waiting.pop()
        if file not in modules and file.is_file() and any(file.is_relative_to(root) for root in roots):
            modules.add(file)
            waiting += _imported(file, roots)
    return modules


def definition_digests(op: str, roots: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of the files that define `op`, by path within their root: its op.py and every relative import of it."""
    roots = [root.resolve() for root in roots]
    files = _imports_of([root / op / "op.py" for root in roots], roots)
    return {_named(file, roots): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def _named(file: Path, roots: Sequence[Path]) -> str:
    place = next(place for place, root in enumerate(roots) if file.is_relative_to(root))
    return name_in_root(file.relative_to(roots[place]).as_posix(), first=place == 0)


def name_in_root(path: str, *, first: bool) -> str:
    """`path`, marked when it does not lie in the kernel's own root, the first: several roots may hold the same path."""
    return path if first else path + _ELSEWHERE


def is_data(name: str) -> bool:
    """Whether the file `name`, as `name_in_root` gives it, is neither run nor compiled."""
    return PurePath(name.removesuffix(_ELSEWHERE)).suffix not in CODE_SUFFIXES


def _in_any(file: Path, roots: Sequence[Path]) -> list[Path]:
    """`file`, or the same path in the other roots when its own root lacks it."""
    home = next((root for root in roots if file.is_relative_to(root)), None)
    if home is None or file.is_file():
        return [file]
    return [root / file.relative_to(home) for root in roots if root != home and (root / file.relative_to(home)).is_file()]


def changed_files(head: dict[str, str], base: dict[str, str]) -> tuple[str, ...]:
    """Paths of files that differ or that only one revision has, sorted; both arguments map paths to digests."""
    return tuple(sorted(name for name in {*head, *base} if head.get(name) != base.get(name)))


def roots_from(kernel: Kernel | DeclaredKernel, roots: Sequence[Path]) -> tuple[Path, ...]:
    """`roots` with the kernel's own root first; empty when no root contains the kernel's file."""
    file = Path(kernel.file).resolve()
    home = next((root for root in roots if file.is_relative_to(root.resolve())), None)
    return () if home is None else (home, *(root for root in roots if root != home))


def call_digests(kernel: Kernel, call: Callable[[], object]) -> dict[str, str]:
    """Digests of the launches of `call`, which calls `kernel` on a device.

    Empty, which means unknown, when launches can be missed: for torch.compile, for another library, and for a Triton or CUDA kernel
    without any observed launch.
    """
    if kernel.role in (Role.COMPILED, Role.PEER):
        return {}
    with kernel.without_replay(), listening() as listener:
        call()
    if kernel.language is not Language.TORCH and not listener.launches:
        return {}
    return listener.digests


def _imported(file: Path, roots: Sequence[Path]) -> list[Path]:
    found = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            folder = file.parent
            for _ in range(node.level - 1):
                folder = folder.parent
            base = folder.joinpath(*(node.module or "").split(".")) if node.module else folder
            # `from .a import b`: `a.py`, or `b` in the folder `a`.
            found.append(base.with_name(f"{base.name}.py"))
            found += [base / f"{name.name}.py" for name in node.names]
            found += [base / "__init__.py", *(base / name.name / "__init__.py" for name in node.names)]
    return [there for path in found for there in _in_any(path, roots)]
