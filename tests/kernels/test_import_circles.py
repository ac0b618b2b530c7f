"""No file of kernels/ or of the registry imports itself through others, wherever in a file the import stands."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imported(file: Path) -> set[Path]:
    """The files beside or below `file`'s root that it imports relatively, also inside functions and for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = file.parents[node.level - 1].joinpath(*(node.module or "").split(".")) if node.module else file.parents[node.level - 1]
            found |= {folder.with_suffix(".py"), *(folder / f"{name.name}.py" for name in node.names)}
    return {path for path in found if path.is_file()}


def circles(files: dict[Path, set[Path]]) -> list[Path]:
    """The files that reach themselves."""

    def reached(start: Path) -> set[Path]:
        seen: set[Path] = set()
        waiting = list(files[start])
        while waiting:
            if (file := waiting.pop()) not in seen:
                seen.add(file)
                waiting += files.get(file, ())
        return seen

    return sorted(file for file in files if file in reached(file))


@pytest.mark.parametrize("folder", ["kernels", "harness/fusebench/registry"])
def test_no_file_imports_itself_through_others(folder: str) -> None:
    files = {file: imported(file) for file in (ROOT / folder).rglob("*.py")}
    assert sum(map(len, files.values())) > 20
    assert circles(files) == []


def test_a_circle_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def late():\n    from .b import x\n")
    (tmp_path / "b.py").write_text("from . import c\n")
    (tmp_path / "c.py").write_text("from .a import late\n")
    (tmp_path / "d.py").write_text("from .a import late\n")
    files = {file: imported(file) for file in tmp_path.glob("*.py")}
    assert [file.name for file in circles(files)] == ["a.py", "b.py", "c.py"]
