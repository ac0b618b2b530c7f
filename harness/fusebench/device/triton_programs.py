"""The programs in Triton's package, found without importing it, and the assemblers that all kernels of a run are made with.

torch's Inductor sets `TRITON_PTXAS_PATH` to the ptxas in torch's own package, where that has one, as soon as it compiles something.  From
then on every Triton kernel of the process is assembled by another ptxas.  That is other machine code, whose times on an H200 differed by
up to 2 % (torch 2.11, Triton 3.6), depending on whether a torch.compile kernel had been called before.  A process that is started with the
variable keeps it, and finds in its folder of compiled kernels only what processes like it have put there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
from pathlib import Path

from ..errors import RemediedError, UsageError
from .user_cache import own_cache

ASSEMBLER_VARIABLE = "TRITON_PTXAS_PATH"
"""Names Triton's `ptxas`; Inductor leaves a value alone that is there already."""
ASSEMBLER_VARIABLES = {"ptxas": ASSEMBLER_VARIABLE, "ptxas-blackwell": "TRITON_PTXAS_BLACKWELL_PATH"}
"""The assemblers that Triton has, with what names others in their place.  Which one makes a GPU's code depends on Triton's version: from
compute capability 10.0 on `ptxas-blackwell` in 3.6 and 3.7, from 9.0 on in 3.9 (`get_ptxas` in its NVIDIA backend).  Inductor leaves the
second variable alone."""


CACHE_VARIABLE = "TRITON_CACHE_DIR"
"""Names the folder in which Triton keeps what it compiled; Inductor, too, leaves a value alone that is there already."""


_AGAIN = "install triton again"


class ToolError(RemediedError):
    """A program that Triton's package should hold is missing or does not run."""


class NamedAssemblerError(RemediedError, UsageError):
    """A variable names an assembler that does not run, in whose place Triton would take its own without a word."""


def tool(name: str) -> Path:
    """Path of `ptxas`, `ptxas-blackwell` or `nvdisasm` in the installed Triton's package.

    Raises:
        ToolError: Triton is not installed, or its package lacks the program.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        raise ToolError("triton is not installed, and its package holds the assembler and the disassembler", "pip install triton")
    path = Path(spec.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / name
    if not path.is_file():
        raise ToolError(f"{path} does not exist, expected in every Triton package for NVIDIA GPUs", "install triton from a wheel")
    return path


def program_version(program: Path) -> str:
    """What `program --version` calls its version: `12.9.86`.

    Raises:
        ToolError: it does not run, or tells none.
    """
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolError(f"{program} --version failed: {error}", _AGAIN) from error
    match = re.search(r"\bV(\d[\d.]*)", said)
    if match is None:
        raise ToolError(f"{program} --version: expected a version such as V12.9.86, found {' '.join(said.split())!r}", _AGAIN)
    return match[1]


def assembler(name: str = "ptxas") -> Path | None:
    """That assembler of every process that runs kernels: what its variable names, else that of Triton's package; None without either."""
    if chosen := os.environ.get(ASSEMBLER_VARIABLES[name]):
        return Path(chosen)
    try:
        return tool(name)
    except ToolError:
        return None


def assembler_version(name: str) -> str:
    """The version of that assembler; empty without one.

    Raises:
        NamedAssemblerError: its variable names something that does not run.
        ToolError: that of Triton's package does not run.
    """
    path, variable = assembler(name), ASSEMBLER_VARIABLES[name]
    try:
        return program_version(path) if path is not None else ""
    except ToolError as error:
        if not os.environ.get(variable):
            raise
        cause = f"{variable} names no assembler that runs: {error.cause}"
        raise NamedAssemblerError(cause, "name a ptxas that does, or unset it for Triton's own") from error


def assembler_environment() -> dict[str, str]:
    """The variables with which such a process is started: its assembler, and a folder for what that one made.  Empty without one.

    Triton keeps compiled kernels on disk and finds them again by the version that it asked an assembler for once, in whatever process: the
    code of another one, to which torch.compile had directed Triton, came back from there to processes that were started with Triton's own
    (50 of 730 kernels of a nightly on an H200, run after the tests).  So what these processes compile lies apart, in a folder for each set
    of assemblers.
    """
    path = assembler()
    return {ASSEMBLER_VARIABLE: str(path), CACHE_VARIABLE: str(_code_folder())} if path is not None else {}


def _code_folder() -> Path:
    """Within the folder that the user names for compiled kernels, else within fusebench's own cache."""
    name = f"fusebench-{_assemblers_key()}"
    chosen = os.environ.get(CACHE_VARIABLE)
    if not chosen:
        return own_cache() / "triton" / name
    folder = Path(chosen)
    return folder if folder.name == name else folder / name


def _assemblers_key() -> str:
    """Told by the files: to ask both for their versions takes two processes, for every process that is started."""
    known = []
    for name in ASSEMBLER_VARIABLES:
        path = assembler(name)
        stat = path.stat() if path is not None and path.is_file() else None
        known.append((name, str(path), (stat.st_size, stat.st_mtime_ns) if stat is not None else None))
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]
