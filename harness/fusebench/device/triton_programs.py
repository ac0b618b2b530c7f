"""The programs in Triton's package, found without importing it, and the assemblers of all kernels of a run.

As soon as torch's Inductor compiles something, it sets `TRITON_PTXAS_PATH` to the ptxas in torch's own package, if there is one.  From
then on another ptxas assembles every Triton kernel of the process.  The machine code differs, and its times on an H200 differed by up to
2 % (torch 2.11, Triton 3.6), depending on whether a torch.compile kernel had been called before.  A process that starts with the variable
set keeps it, and its folder of compiled kernels holds only code of processes like it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
from pathlib import Path

from ..errors import RemediedError, UsageError
from ..user_cache import own_cache

ASSEMBLER_VARIABLE = "TRITON_PTXAS_PATH"
"""Names Triton's `ptxas`; Inductor leaves an existing value alone."""
ASSEMBLER_VARIABLES = {"ptxas": ASSEMBLER_VARIABLE, "ptxas-blackwell": "TRITON_PTXAS_BLACKWELL_PATH"}
"""Triton's assemblers, and the variables that name others in their place.  Triton's version sets which one makes a GPU's code: from
compute capability 10.0 on `ptxas-blackwell` in 3.6 and 3.7, from 9.0 on in 3.9 (`get_ptxas` in its NVIDIA backend).  Inductor leaves the
second variable alone."""


CACHE_VARIABLE = "TRITON_CACHE_DIR"
"""Names the folder of Triton's compiled kernels; Inductor leaves an existing value alone here too."""


_AGAIN = "install triton again"


class ToolError(RemediedError):
    """A program that Triton's package should hold is missing or does not run."""


class NamedAssemblerError(RemediedError, UsageError):
    """A variable names an assembler that does not run.  Triton would silently take its own."""


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
    """The version in the output of `program --version`: `12.9.86`.

    Raises:
        ToolError: the program does not run, or prints no version.
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
    """The assembler of every process that runs kernels: the one that its variable names, or Triton's; None without either."""
    if chosen := os.environ.get(ASSEMBLER_VARIABLES[name]):
        return Path(chosen)
    try:
        return tool(name)
    except ToolError:
        return None


def assembler_version(name: str) -> str:
    """The version of that assembler; empty without one.

    Raises:
        NamedAssemblerError: its variable names a program that does not run.
        ToolError: the assembler of Triton's package does not run.
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
    """The variables for a process that runs kernels: its assembler, and a folder for that assembler's code.  Empty without one.

    Triton keeps compiled kernels on disk, under an assembler's version that it asks for once per process.  So a process with Triton's own
    assembler got back code of processes in which torch.compile had redirected Triton: 50 of 730 kernels of a nightly on an H200, run after
    the tests.  Therefore each set of assemblers has a folder of its own.
    """
    path = assembler()
    return {ASSEMBLER_VARIABLE: str(path), CACHE_VARIABLE: str(_code_folder())} if path is not None else {}


def _code_folder() -> Path:
    """The folder for compiled code: within the user's `TRITON_CACHE_DIR`, else within fusebench's own cache."""
    name = f"fusebench-{_assemblers_key()}"
    chosen = os.environ.get(CACHE_VARIABLE)
    if not chosen:
        return own_cache() / "triton" / name
    folder = Path(chosen)
    return folder if folder.name == name else folder / name


def _assemblers_key() -> str:
    """A key made from the files: asking for versions would take two processes for every started process."""
    known = []
    for name in ASSEMBLER_VARIABLES:
        path = assembler(name)
        stat = path.stat() if path is not None and path.is_file() else None
        known.append((name, str(path), (stat.st_size, stat.st_mtime_ns) if stat is not None else None))
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]
