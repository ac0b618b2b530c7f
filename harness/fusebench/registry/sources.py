"""The source files that a kernel depends on, and the machine code that its calls launch.

`ab` compares two versions of a kernels folder by both, kernel by kernel, before it times anything.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from ..schema import Language, Role
from .kernel import Kernel
from .machine_code import listening


def source_digests(kernel: Kernel, roots: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of every file of `roots` that `kernel` may depend on, by its path within the root.

    These are its own file, its op's definition, and every relative import of these, also inside functions. Kernels open other files (CUDA
    C++, tables) by path at run time, so every such file beside a counted module counts. The result may hold unused files. An import by a
    name made at run time is missed.

    Args:
        roots: the kernel's own root first; a relative import that finds nothing there is looked up in the others.
    """
    roots = [root.resolve() for root in roots]
    own = Path(kernel.file).resolve()
    waiting, modules = [own, *_in_any(own.with_name("op.py"), roots)], set[Path]()
    while waiting:
        file = waiting.pop()
        if file not in modules and file.is_file() and any(file.is_relative_to(root) for root in roots):
            modules.add(file)
            waiting += _imported(file, roots)
    others = {
        file
        for folder in {module.parent for module in modules}
        for file in folder.iterdir()
        if file.is_file() and file.suffix not in (".py", ".pyc") and not file.name.startswith(".")
    }
    return {_named(file, roots): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(modules | others)}


def _named(file: Path, roots: Sequence[Path]) -> str:
    """The file's path within its root, marked when it is not the first root: several roots may hold the same path."""
    place = next(place for place, root in enumerate(roots) if file.is_relative_to(root))
    path = file.relative_to(roots[place]).as_posix()
    return path if place == 0 else f"{path} (of another folder of kernels)"


def _in_any(file: Path, roots: Sequence[Path]) -> list[Path]:
    """`file`, or the same path in the other roots when its own root lacks it."""
    home = next((root for root in roots if file.is_relative_to(root)), None)
    if home is None or file.is_file():
        return [file]
    return [root / file.relative_to(home) for root in roots if root != home and (root / file.relative_to(home)).is_file()]


def changed_files(head: dict[str, str], base: dict[str, str]) -> tuple[str, ...]:
    """Paths of files that differ or that only one revision has, sorted; both arguments map paths to digests."""
    return tuple(sorted(name for name in {*head, *base} if head.get(name) != base.get(name)))


def roots_from(kernel: Kernel, roots: Sequence[Path]) -> tuple[Path, ...]:
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
