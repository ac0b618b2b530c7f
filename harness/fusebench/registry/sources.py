"""What a kernel is made of: the source files of its root, and the machine code that its calls launch.

Two versions of a kernels folder are told apart by these, kernel by kernel, without timing them.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable
from pathlib import Path

from ..schema import Language, Role
from .kernel import Kernel
from .machine_code import listening


def source_digests(kernel: Kernel, root: Path) -> dict[str, str]:
    """SHA-256 of every file of `root` that `kernel` may depend on, by its path within the root.

    Its own file, its op's definition, and what these import relatively, wherever the import stands.  Files that are no Python (CUDA C++,
    tables) are found by their path at run time, so all of those beside a counted module count.  More may be counted than is used; what a
    kernel imports by a name made at run time is not seen.
    """
    root = root.resolve()
    file = Path(kernel.file).resolve()
    waiting, modules = [file, file.with_name("op.py")], set[Path]()
    while waiting:
        file = waiting.pop()
        if file not in modules and file.is_file() and file.is_relative_to(root):
            modules.add(file)
            waiting += _imported(file, root)
    others = {
        file
        for folder in {module.parent for module in modules}
        for file in folder.iterdir()
        if file.is_file() and file.suffix not in (".py", ".pyc") and not file.name.startswith(".")
    }
    return {file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(modules | others)}


def changed_files(new: dict[str, str], old: dict[str, str]) -> tuple[str, ...]:
    """Files that only one side has or that differ, by path."""
    return tuple(sorted(name for name in {*new, *old} if new.get(name) != old.get(name)))


def root_of(kernel: Kernel, roots: tuple[Path, ...]) -> Path | None:
    """The root that the kernel's file lies in; None for a file outside of all of them."""
    file = Path(kernel.file).resolve()
    return next((root for root in roots if file.is_relative_to(root.resolve())), None)


def call_digests(kernel: Kernel, call: Callable[[], object]) -> dict[str, str]:
    """Digests of what `call`, which calls `kernel` on a device, launches.

    Empty, which is unknown, where launches may go unheard: torch.compile's and another library's, and those of a Triton or CUDA kernel
    of which none was heard.
    """
    if kernel.role in (Role.COMPILED, Role.PEER):
        return {}
    with kernel.without_replay(), listening() as listener:
        call()
    if kernel.language is not Language.TORCH and not listener.launches:
        return {}
    return listener.digests


def _imported(file: Path, root: Path) -> list[Path]:
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
    return [path for path in found if path.is_file() and path.is_relative_to(root)]
