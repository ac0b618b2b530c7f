"""Load one op and one kernel into the process that calls it: a candidate's file, or a kernel of the project."""

from __future__ import annotations

import importlib.util
import linecache
import sys
from pathlib import Path
from typing import NamedTuple

from ...errors import FusebenchError, describe_exception
from ...registry import Collection, Kernel, Op, load_collection
from ...registry.recording import recording
from ...registry.signature import refused_signature
from ...schema import KernelId
from ...schema.evaluation import EvaluationStatus
from ..failures import status_of

CANDIDATE = "candidate_"
"""Prefix of the candidate's module name, so that a file called `op.py` or `split_torch.py` shadows nothing."""


class RefusedError(FusebenchError):
    """A candidate that cannot be judged, with the status that says why."""

    def __init__(self, status: EvaluationStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class LoadedKernel(NamedTuple):
    """A kernel and its op."""

    op: Op
    kernel: Kernel


def load_project_kernel(roots: tuple[Path, ...], op: str, kernel: str) -> LoadedKernel:
    """The project's kernel `op/name@version`."""
    wanted = KernelId.parse(kernel)
    collection = load_collection(roots, entry_points=False, only={op}, kernel=wanted, operators=False)
    return LoadedKernel(collection.op(op), collection.prepared(kernel))


def load_op(roots: tuple[Path, ...], op: str) -> Op:
    """The op alone; none of its kernels is imported."""
    return load_collection(roots, kernels=False, entry_points=False).op(op)


def load_candidate(op: Op, file: Path, source: bytes) -> LoadedKernel:
    """Import the candidate as a module of the op's folder, so that `from .op import Params` works, and find its one kernel.

    Args:
        source: the bytes that were digested, which are compiled instead of what the file holds by now.

    Raises:
        RefusedError: the file is not Python, fails to import, or does not declare exactly one kernel of the op.
    """
    package = type(op).__module__.rpartition(".")[0]
    name = f"{package}.{CANDIDATE}{''.join(letter if letter.isalnum() else '_' for letter in file.stem)}"
    try:
        code = compile(source, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        raise RefusedError(EvaluationStatus.INVALID, f"{file.name}: {where}{type(error).__name__}: {error}") from error
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise RefusedError(EvaluationStatus.INVALID, f"{file.name} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    text = source.decode(errors="replace")
    # Triton reads a function's source again; it must be the source that was compiled.
    linecache.cache[str(file)] = (len(source), None, text.splitlines(keepends=True), str(file))
    with recording() as declared:
        try:
            exec(code, module.__dict__)
        except SystemExit as error:
            raise RefusedError(EvaluationStatus.INVALID, f"{file.name} calls sys.exit({error.code!r}) while it is imported") from error
        except Exception as error:
            reason = describe_exception(error, (file.parent,))
            found = status_of(error)
            status = found if found is EvaluationStatus.OUT_OF_MEMORY else EvaluationStatus.INVALID
            raise RefusedError(status, f"{file.name} cannot be imported: {reason}") from error
    return LoadedKernel(op, _only_kernel(declared, name, op, file))


def _only_kernel(declared: list[object], module: str, op: Op, file: Path) -> Kernel:
    kernels = [one for one in declared if type(one) is Kernel and one.__module__ == module and not one.id.choice]
    if len(kernels) != 1:
        names = ", ".join(str(one.id) for one in kernels)
        found = f"{len(kernels)} kernels ({names})" if kernels else "no kernel"
        remedy = "leave one of them in the file" if kernels else f'decorate one function with @kernel("{op.name}", ...)'
        raise RefusedError(EvaluationStatus.INVALID, f"{file.name} declares {found}, expected exactly one; {remedy}")
    kernel = kernels[0]
    if kernel.id.op != op.name:
        raise RefusedError(
            EvaluationStatus.INVALID,
            f"{file.name} declares {kernel.id}, expected a kernel of {op.name!r}; pass --op {kernel.id.op}, or correct the declaration",
        )
    if kernel.part is not None:
        raise RefusedError(EvaluationStatus.INVALID, f"{kernel.id} covers a part of the op; a candidate must compute all of it")
    if refused := refused_signature(str(kernel.id), kernel.function, op.schema):
        raise RefusedError(EvaluationStatus.INVALID, refused)
    kernel.op = op
    return kernel


def trusted_collection(roots: tuple[Path, ...], op: str) -> Collection:
    """The project's op and kernels, for the judge: references, split chain, targets of bitwise contracts."""
    return load_collection(roots, entry_points=False, only={op}, operators=False)
