"""What a recorded launch depends on, as one digest: kernels' sources, fusebench's own, and the versions of what runs them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from ..device.packages import distribution_version
from ..schema import Case
from .records import EVIDENCE_VERSION, Toolchain

PACKAGES = ("torch", "triton", "numpy", "cuda-core", "cuda-bindings", "msgspec")
"""Distributions whose code runs between a case and its launch."""
_HARNESS = Path(__file__).parents[1]
_NOT_IN_THE_WAY = ("cli", "report", "store", "stats", "runner", "e2e")
"""Parts of fusebench that no launch passes through."""


def fingerprint(roots: Sequence[Path], toolchain: Toolchain) -> str:
    """A digest of the files below `roots` and of the harness, by content and place, and of versions; no path of this machine is in it."""
    parts: list[object] = [EVIDENCE_VERSION, sys.version_info[:2], toolchain, [distribution_version(name) for name in PACKAGES]]
    parts += [list(_digests(root, _files(root))) for root in roots]
    parts.append(list(_digests(_HARNESS, _harness_files())))
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def case_key(fingerprint: str, target: str, case: Case) -> str:
    """A digest of all that decides what the op's kernels launch for `case` on `target`."""
    parts = [fingerprint, target, case.op, sorted(case.params.items())]
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
