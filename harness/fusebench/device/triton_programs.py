"""The programs in Triton's package, found without importing it, and the assemblers that all kernels of a run are made with.

torch's Inductor sets `TRITON_PTXAS_PATH` to the ptxas in torch's own package, where that has one, as soon as it compiles something.  From
then on every Triton kernel of the process is assembled by another ptxas.  That is other machine code, whose times on an H200 differed by
up to 2 % (torch 2.11, Triton 3.6), depending on whether a torch.compile kernel had been called before.  A process that is started with the
variable keeps it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

from ..errors import RemediedError, UsageError

ASSEMBLER_VARIABLE = "TRITON_PTXAS_PATH"
"""Names Triton's `ptxas`; Inductor leaves a value alone that is there already."""
ASSEMBLER_VARIABLES = {"ptxas": ASSEMBLER_VARIABLE, "ptxas-blackwell": "TRITON_PTXAS_BLACKWELL_PATH"}
"""The assemblers that Triton has, with what names others in their place.  Which one makes a GPU's code depends on Triton's version: from
compute capability 10.0 on `ptxas-blackwell` in 3.6 and 3.7, from 9.0 on in 3.9 (`get_ptxas` in its NVIDIA backend).  Inductor leaves the
second variable alone."""


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
    """The variable with which such a process is started; empty where there is no assembler."""
    path = assembler()
    return {ASSEMBLER_VARIABLE: str(path)} if path is not None else {}
