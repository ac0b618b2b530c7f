"""Roots of toy kernels: one in-place op, `scale`, that multiplies a vector by a factor."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

TOY_KERNELS = Path(__file__).parents[1] / "toy_project" / "kernels"


@pytest.fixture
def make_root(tmp_path: Path) -> Callable[..., Path]:
    """`make_root("name", {"fast.py": source, "other/op.py": source})`: a root with the op `scale`, its split kernel and these files.

    Paths without a folder lie in the op's folder.
    """

    def make(name: str = "kernels", files: dict[str, str] | None = None) -> Path:
        root = tmp_path / name
        shutil.copytree(TOY_KERNELS, root, ignore=shutil.ignore_patterns("__pycache__", "fast.py"), dirs_exist_ok=True)
        for path, source in (files or {}).items():
            file = root / path if "/" in path else root / "scale" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(source).lstrip("\n"))
        return root

    return make
