"""Versions of what is installed, from package metadata and files: nothing is imported, least of all torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import msgspec


def distribution_version(name: str) -> str:
    """The installed version from package metadata; empty where the distribution is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


class TorchBuild(msgspec.Struct, frozen=True):
    """What the installed torch was built for."""

    version: str
    """With its local part where there is one: `2.11.0+cu130`."""
    cuda: str
    """CUDA version that it was built with; empty for a CPU build."""


def torch_build() -> TorchBuild | None:
    """Read torch/version.py without executing torch; None when torch is not installed.

    The file has one line per name (`cuda: Optional[str] = '13.0'`).  It goes before the metadata, which may lack the local part
    (a torch that calls itself 2.11.0+cu130 was seen installed as 2.11.0).  Without the file, the local part names the CUDA version.
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
