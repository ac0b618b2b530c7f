"""What is installed to compile and measure with, judged without importing torch or triton: package metadata and files only."""

from __future__ import annotations

import importlib.metadata
import os
import shutil

import msgspec

from ..errors import DeviceUnfitError
from .packages import distribution_version, torch_build
from .select import Device

DISTRIBUTION = "fusebench"


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One hard dependency and how the installation meets it."""

    name: str
    wanted: str
    """Version range as the distribution declares it; empty when any will do."""
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
    """Nothing when the installed torch can use `device`.

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
    """Path of the first compiler there is; the environment variable (CC, CXX) goes first."""
    chosen = os.environ.get(variable)
    return next((path for name in ((chosen,) if chosen else ()) + candidates if (path := shutil.which(name))), None)
