"""Versions of the compilers, found without importing torch or triton."""

from __future__ import annotations

import functools

from ..device.packages import distribution_version
from ..device.triton_programs import program_version, tool
from .records import Toolchain


@functools.cache
def toolchain() -> Toolchain:
    """Versions of the installed toolchain.

    Raises:
        ToolError: as `device.triton_programs`.
    """
    return Toolchain(
        triton=distribution_version("triton"),
        ptxas=program_version(tool("ptxas")),
        ptxas_blackwell=program_version(tool("ptxas-blackwell")),
        nvrtc=nvrtc_version(),
        nvdisasm=program_version(tool("nvdisasm")),
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
