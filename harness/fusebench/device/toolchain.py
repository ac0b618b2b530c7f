"""Installed packages and compilers, from package metadata and files: nothing is imported, above all not torch or triton."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
from pathlib import Path

import msgspec

from ..errors import DeviceUnfitError
from .select import Device

DISTRIBUTION = "fusebench"


def distribution_version(name: str) -> str:
    """The installed version from package metadata; empty if the distribution is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


class TorchBuild(msgspec.Struct, frozen=True):
    """The version and the CUDA version of the installed torch."""

    version: str
    """Includes the local part if there is one: `2.11.0+cu130`."""
    cuda: str
    """CUDA version of the build; empty for a CPU build."""


def torch_build() -> TorchBuild | None:
    """Read torch/version.py without executing torch; None when torch is not installed.

    The file has one line per name (`cuda: Optional[str] = '13.0'`).  It takes precedence over the metadata, which may lack the local part
    (seen: 2.11.0+cu130 installed as 2.11.0).  Without the file, the local part gives the CUDA version.
    """
    installed = distribution_version("torch")
    spec = importlib.util.find_spec("torch")
    if not installed or spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        text = ""
    version = _assigned(text, "__version__") or installed
    if re.search(r"^cuda\b", text, re.MULTILINE):
        return TorchBuild(version, _assigned(text, "cuda"))
    local = re.search(r"\+cu(\d+)(\d)$", version)
    return TorchBuild(version, f"{local[1]}.{local[2]}" if local else "")


def _assigned(text: str, name: str) -> str:
    """The string that a line of `text` assigns to `name`; empty for None or no such line."""
    match = re.search(rf"^{name}(?:\s*:[^=]*)?\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match[1] if match else ""


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One hard dependency and how the installation meets it."""

    name: str
    wanted: str
    """Version range in the distribution's declaration; empty when it allows any."""
    found: str
    """Installed version; empty when there is none."""
    met: bool


def requirements(declared: list[str] | None = None) -> list[Requirement]:
    """The distribution's hard dependencies (extras left out), each compared with what is installed.

    Raises:
        importlib.metadata.PackageNotFoundError: fusebench itself is not installed as a distribution (run from its sources).
    """
    from packaging.requirements import Requirement as Declared

    found = []
    for line in declared if declared is not None else importlib.metadata.requires(DISTRIBUTION) or []:
        entry = Declared(line)
        if entry.marker is not None and not entry.marker.evaluate({"extra": ""}):
            continue
        version = distribution_version(entry.name)
        met = bool(version) and entry.specifier.contains(version, prereleases=True)
        found.append(Requirement(name=entry.name, wanted=str(entry.specifier), found=version, met=met))
    return found


def require_torch_for(device: Device) -> None:
    """Check that the installed torch can use `device`.

    Raises:
        DeviceUnfitError: torch is missing, or is a CPU build and the device a GPU.
    """
    build = torch_build()
    if build is None:
        raise DeviceUnfitError("torch is not installed in this environment; run `make run` once, or pip install torch")
    if device.kind == "cuda" and not build.cuda:
        raise DeviceUnfitError(
            f"torch {build.version} is a build without CUDA and cannot use {device.name}; "
            "install a CUDA build of the same version, or use --device cpu"
        )


def compiler(candidates: tuple[str, ...], variable: str) -> str | None:
    """Path of the first existing compiler; the environment variable (CC, CXX) has precedence."""
    chosen = os.environ.get(variable)
    return next((path for name in ((chosen,) if chosen else ()) + candidates if (path := shutil.which(name))), None)
