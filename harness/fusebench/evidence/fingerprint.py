"""The inputs of a recorded launch: the toolchain's versions, and one digest of these, the kernels' sources and fusebench's own."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from ..device.toolchain import distribution_version
from ..device.triton_programs import program_version, tool
from ..schema import Case
from .listed_choices import asked_choices
from .records import EVIDENCE_VERSION, Toolchain

PACKAGES = ("torch", "triton", "numpy", "cuda-core", "cuda-bindings", "msgspec")
"""Distributions whose code runs between a case and its launch."""
_HARNESS = Path(__file__).parents[1]
_NOT_IN_THE_WAY = ("cli", "report", "store", "stats", "runner", "e2e")
"""Parts of fusebench that take no part in a launch."""


def fingerprint(roots: Sequence[Path], toolchain: Toolchain) -> str:
    """A digest of the files below `roots` and of the harness, by content and relative path, and of versions; no absolute path is in it."""
    parts: list[object] = [EVIDENCE_VERSION, sys.version_info[:2], toolchain, [distribution_version(name) for name in PACKAGES]]
    parts += [list(_digests(root, _files(root))) for root in roots]
    parts.append(list(_digests(_HARNESS, _harness_files())))
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def case_key(fingerprint: str, target: str, case: Case, kernel: str | Sequence[str] | None) -> str:
    """A digest of all inputs of the op's launches for `case` on `target`.

    Args:
        kernel: globs or ids of the selected kernels; the tunable choices that they ask for are recorded, too.
    """
    parts = [fingerprint, target, case.op, sorted(case.params.items()), asked_choices(kernel)]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _files(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        inside = path.relative_to(root).parts
        if path.is_file() and "__pycache__" not in inside and not any(part.startswith(".") for part in inside):
            yield path


def _harness_files() -> Iterator[Path]:
    for path in _HARNESS.rglob("*.py"):
        if path.relative_to(_HARNESS).parts[0] not in _NOT_IN_THE_WAY:
            yield path


def _digests(root: Path, files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for path in sorted(files):
        yield path.relative_to(root).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()


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

    cuda-bindings loads the library of its own CUDA major version, which another distribution holds.
    """
    bindings = distribution_version("cuda-bindings")
    if not bindings or not distribution_version("cuda-core"):
        return ""
    major = bindings.partition(".")[0]
    distribution = f"nvidia-cuda-nvrtc-cu{major}" if int(major) < 13 else "nvidia-cuda-nvrtc"
    return distribution_version(distribution) or _loaded_nvrtc_version()


def _loaded_nvrtc_version() -> str:
    """The version that an NVRTC of the system's CUDA installation reports, without the patch level."""
    try:
        from cuda.bindings import nvrtc

        error, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return ""
    return f"{major}.{minor}" if int(error) == 0 else ""
