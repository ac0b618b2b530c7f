"""The files of kernels folders, imported one by one: a file that fails is a problem on record, and the others are loaded."""

from __future__ import annotations

import importlib
import itertools
import sys
import traceback
import types
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import describe_unknown, nearest
from ...schema import KernelId
from ..compiled import declared_as, default_compiled
from ..kernel import Kernel, refused_contract
from ..lookup import Collection, Problem, operator_refused
from ..op import Op
from ..op_parts import refused_part
from ..plain import load_plain
from ..signature import refused_signature
from .merging import Root, let_roots_meet
from .watching import KernelFileError, watch_imports

_load_numbers = itertools.count()


class Wanted(NamedTuple):
    """Which part of a root to load: the arguments of `load_collection`."""

    kernels: bool
    only: Container[str] | None
    kernel: KernelId | None
    operators: bool

    def kernels_of(self, op: str) -> bool:
        return self.kernels and (self.only is None or op in self.only) and (self.kernel is None or op == self.kernel.op)


def load_roots(collection: Collection, declared: list[Any], wanted: Wanted, *, watched: bool) -> None:
    """Load the ops of every root, then the kernels of each op: first its own root's, then the kernels that other roots add.

    Args:
        declared: what the files declare, in order, filled in while they run (`recording`).
        watched: whether every import of the roots is watched, also by one file of another.
    """
    for file in (path for path in collection.roots if path.is_file()):
        _load_plain_file(collection, file, declared)
    roots = [_prepare(path) for path in collection.roots if path.is_dir()]
    if watched:
        for root in roots:
            watch_imports(root.prefix, collection.watch)
    let_roots_meet(roots)
    homes: dict[str, Root] = {}
    for root in roots:
        for folder in op_folders(root.path):
            if (folder / "op.py").is_file() and _load_op(collection, folder, f"{root.prefix}.{folder.name}", declared) is not None:
                homes[folder.name] = root
    for name, home in homes.items():
        adding = [root for root in roots if root is not home and root.adds_to(name)]
        if wanted.kernels_of(name):
            _load_kernels(collection, collection.ops[name], (home, *adding), declared, wanted)
    for root in roots:
        for folder in op_folders(root.path):
            if root.adds_to(folder.name) and folder.name not in homes and any(folder.glob("*.py")):
                collection.problems.append(Problem(folder, _why_no_op(collection, folder.name), op=folder.name))


def _load_plain_file(collection: Collection, file: Path, declared: list[Any]) -> None:
    """Load a file of functions that `@benchmark` marks as one op and its kernels."""
    try:
        with collection.watch.importing(str(file)):
            op, kernels = load_plain(file, f"_fusebench_root_{next(_load_numbers)}", declared)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the file raises concerns that file alone
        collection.problems.append(Problem(file, f"{_line_in(error, file)}{type(error).__name__}: {error}", op=file.stem))
        return
    collection.ops[op.name] = op
    for kernel in kernels:
        if problem := _bind(collection, op, kernel, "", operators=False):
            collection.problems.append(Problem(file, problem, op=op.name))


def _prepare(path: Path) -> Root:
    """A private prefix for the root, and a package for each of its folders.

    All packages come first, so that files may import from other ops' folders in any order.
    """
    root = Root(f"_fusebench_root_{next(_load_numbers)}", path)
    sys.modules[root.prefix] = _package(root.prefix, path)
    for folder in op_folders(path):
        sys.modules[f"{root.prefix}.{folder.name}"] = _package(f"{root.prefix}.{folder.name}", folder)
    return root


def op_folders(root: Path) -> list[Path]:
    """The folders of ops in `root`, by name."""
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(("_", ".")))


def _why_no_op(collection: Collection, name: str) -> str:
    for problem in collection.problems:
        if problem.op == name:
            return f"its kernels are not loaded, because op {name!r} failed to load: see {problem.file}"
    close = nearest(name, collection.ops)
    remedy = f"rename the folder to {close!r}, or add op.py" if close else f"add op.py (known ops: {', '.join(collection.ops) or 'none'})"
    return f"unknown op {name!r}: the folder has no op.py that defines it, and no other folder of kernels does; {remedy}"


def _load_kernels(collection: Collection, op: Op, roots: Sequence[Root], declared: list[Any], wanted: Wanted) -> None:
    """Load the kernels of one op from `roots`; for one wanted kernel, load as few files as possible."""
    places = {f"{root.prefix}.{op.name}": root.path / op.name for root in roots}
    for root in roots[1:]:
        if (hiding := root.path / op.name / "op").is_dir():
            collection.problems.append(
                Problem(hiding, f"this folder hides the definition of op {op.name!r} from the files beside it; rename it", op=op.name)
            )
            del places[f"{root.prefix}.{op.name}"]

    def own() -> list[Kernel]:
        found = [one for one in declared if isinstance(one, Kernel) and one.__module__.rpartition(".")[0] in places]
        again = {key for key, count in Counter(one.id for one in found).items() if count > 1}
        unique = [one for one in found if one.id not in again]
        return [*default_compiled(op, unique, declared={*again}), *found]

    for batch in _batches(places, declared_as(op, wanted.kernel)):
        for package, file in batch:
            _execute(collection, file, f"{package}.{file.stem}", op.name, declared)
        if any(kernel.id == wanted.kernel for kernel in own()):
            break
    files: dict[KernelId, list[str]] = {}
    for kernel in own():
        files.setdefault(kernel.id, []).append(kernel.file)
    for kernel in own():
        problem = _declared_again(kernel, files[kernel.id]) or _bind(
            collection, op, kernel, kernel.__module__.partition(".")[0].removeprefix("_"), operators=wanted.operators
        )
        found_problem = Problem(Path(kernel.file), problem, op=op.name)
        if problem and found_problem not in collection.problems:
            collection.problems.append(found_problem)


def _declared_again(kernel: Kernel, files: Sequence[str]) -> str:
    """Why none of the declarations of the kernel's id in `files` is used; empty if there is one alone."""
    if len(files) == 1:
        return ""
    others = [file for file in dict.fromkeys(files) if file != kernel.file] or ["the same file"]
    return f"duplicate kernel id {kernel.id}: also declared in {', '.join(others)}, and none of them is used; a new idea is a new version"


def _batches(places: Mapping[str, Path], name: str | None) -> list[list[tuple[str, Path]]]:
    """The kernel files of the folders `places`, each with its package: first the files that mention the kernel `name`, then the others.

    The others may be slow to execute: an adapter to another library imports that library.
    """
    files = [(package, file) for package, folder in places.items() for file in sorted(folder.glob("[!_]*.py")) if file.name != "op.py"]
    if name is None:
        return [files]
    likely = [one for one in files if name.encode() in one[1].read_bytes()]
    return [likely, [one for one in files if one not in likely]]


def _package(name: str, folder: Path) -> types.ModuleType:
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    return package


def _execute(collection: Collection, file: Path, module: str, op: str, declared: list[Any]) -> bool:
    """Import `module`; on failure record a problem and return False.

    Files may import one another, so declarations are told apart by module, not by time. A failed file's declarations are removed.
    """
    try:
        _require_seen(file, module)
        importlib.import_module(module)
    except KernelFileError as error:
        collection.problems.append(Problem(file, collection.excluded.get(str(file), str(error)), op=op))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a kernel file raises concerns that file alone
        collection.problems.append(Problem(file, f"{_line_in(error, file)}{type(error).__name__}: {error}", op=op))
    else:
        return True
    declared[:] = [declaration for declaration in declared if declaration.__module__ in sys.modules]
    return False


def _require_seen(file: Path, module: str) -> None:
    """Raise KernelFileError if Python imports something else than `file` as `module`."""
    found = PathFinder.find_spec(module, [str(file.parent)])
    if found is not None and found.origin is not None and Path(found.origin) != file:
        other = Path(found.origin)
        what = f"the package {other.parent.name}/" if other.name.startswith("__init__.") else other.name
        raise KernelFileError(f"hidden by {what} beside it, which Python imports in its place; rename or remove one of them")


def _line_in(error: BaseException, file: Path) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return f"line {lines[-1]}: " if lines else ""


def _load_op(collection: Collection, folder: Path, package: str, declared: list[Any]) -> Op | None:
    file = folder / "op.py"
    if not _execute(collection, file, f"{package}.op", folder.name, declared):
        return None
    ops = [declaration for declaration in declared if isinstance(declaration, Op) and declaration.__module__ == f"{package}.op"]
    problem = ""
    if len(ops) != 1:
        problem = f"defines {len(ops)} ops; exactly one class must be marked with @define_op"
    elif ops[0].name != folder.name:
        problem = f"defines op {ops[0].name!r}, but its folder is called {folder.name!r}"
    elif folder.name in collection.ops:
        other = sys.modules[type(collection.ops[folder.name]).__module__].__file__
        problem = f"op {folder.name!r} is already defined by {other}; rename one, or delete this op.py to add kernels to the other"
    if problem:
        collection.problems.append(Problem(file, problem, op=folder.name))
        return None
    collection.ops[folder.name] = ops[0]
    return ops[0]


def _bind(collection: Collection, op: Op, kernel: Kernel, namespace: str, *, operators: bool) -> str:
    """Attach `kernel` to `op` and to the collection, with its torch operator now or later. Return the reason of a refusal, if any."""
    key = str(kernel.id)
    if kernel.id.op != op.name:
        return describe_unknown("op", kernel.id.op, (op.name,), f"kernel {key}") + " A folder holds the kernels of its own op only."
    kernel.op = op
    refused = refused_contract(kernel.id, kernel.contract, op) or refused_part(op, kernel)
    if refused := refused or refused_signature(key, kernel.function, op.schema):
        return refused
    if not operators:
        collection.without_operators.append((kernel, namespace))
    elif reason := operator_refused(kernel, namespace):
        return reason
    collection.kernels[key] = kernel
    return ""
