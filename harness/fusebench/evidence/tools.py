"""The compilers' programs and versions, found without importing torch or triton."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
from pathlib import Path

from ..device.packages import distribution_version
from ..errors import FusebenchError
from .records import Toolchain


class ToolError(FusebenchError):
    """A program that Triton's package should hold is missing or does not run."""


def tool(name: str) -> Path:
    """Path of `ptxas`, `ptxas-blackwell` or `nvdisasm` in the installed Triton's package.

    Raises:
        ToolError: Triton is not installed, or its package lacks the program.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        raise ToolError("triton is not installed, and its package holds the assembler and the disassembler; pip install triton")
    path = Path(spec.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / name
    if not path.is_file():
        raise ToolError(f"{path} does not exist; expected in every Triton package for NVIDIA GPUs: install triton from a wheel")
    return path


@functools.cache
def toolchain() -> Toolchain:
    """Versions of the installed toolchain.

    Raises:
        ToolError: as `tool`, or a program does not tell its version.
    """
    return Toolchain(
        triton=distribution_version("triton"),
        ptxas=_version(tool("ptxas")),
        ptxas_blackwell=_version(tool("ptxas-blackwell")),
        nvrtc=nvrtc_version(),
        nvdisasm=_version(tool("nvdisasm")),
    )


def nvrtc_version() -> str:
    """Version of the NVRTC that cuda-core loads; empty without either.

    cuda-bindings loads the library of its own CUDA major version, which a distribution of its own holds.
    """
    bindings = distribution_version("cuda-bindings")
    if not bindings or not distribution_version("cuda-core"):
        return ""
    major = bindings.partition(".")[0]
    distribution = f"nvidia-cuda-nvrtc-cu{major}" if int(major) < 13 else "nvidia-cuda-nvrtc"
    return distribution_version(distribution) or _loaded_nvrtc_version()


def _loaded_nvrtc_version() -> str:
    """For an NVRTC of the system's CUDA installation: what the library itself says, which leaves out the patch level."""
    try:
        from cuda.bindings import nvrtc

        error, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return ""
    return f"{major}.{minor}" if int(error) == 0 else ""


def _version(program: Path) -> str:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolError(f"{program} --version failed: {error}; install triton again") from error
    match = re.search(r"\bV(\d[\d.]*)", said)
    if match is None:
        raise ToolError(f"{program} --version: expected a version such as V12.9.86, found {' '.join(said.split())!r}")
    return match[1]
