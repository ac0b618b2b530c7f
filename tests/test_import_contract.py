"""The layers of the design hold, and the contract that says so notices when they do not."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter")
REPOSITORY = Path(__file__).parents[1]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

PLANTED = (
    ("schema/cases.py", "from .. import suites"),
    ("suites/files.py", "def lazy(): import torch"),
    ("stats/__init__.py", "import os"),
    ("stats/fdr.py", "from ..errors import UsageError"),
    ("stats/paired.py", "def lazy(): from ..verdict.margins.rule import MarginRule"),
    ("store/baselines.py", "from ..verdict.margins.rule import MarginRule"),
    ("verdict/margins/rule.py", "from ... import runner"),
)
NOT_ALLOWED = (("schema", "suites"), ("stats", "errors"), ("stats", "verdict"), ("store", "verdict"), ("verdict", "runner"))
"""What the contract must say of the planted lines: `stats` knows the schema alone, and `verdict` lies between `store` and `runner`."""

IMPORTED_BY_KERNELS = {
    "fusebench", "fusebench.accuracy.inputs", "fusebench.errors", "fusebench.registry", "fusebench.registry.argument_rules",
    "fusebench.registry.launching", "fusebench.registry.layouts", "fusebench.registry.op", "fusebench.schema",
}  # fmt: skip
"""What kernels import keeps its name: `ab` and `bisect` load the kernels of older commits with today's harness."""

IMPORTED_ONCE = {"fusebench.registry.arguments": ("Laid",), "fusebench.registry.torch_operator": ("interpreting", "launchable", "tracing")}
"""Names that kernels of older commits import from places where no kernel of today looks for them."""


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT, "--config", "pyproject.toml", "--no-cache"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "harness"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_layers_hold() -> None:
    done = lint(REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


def test_planted_violations_are_noticed(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "harness", tmp_path / "harness", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    package = tmp_path / "harness" / "fusebench"
    for file, line in PLANTED:
        with (package / file).open("a") as stream:
            stream.write(f"\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode != 0
    assert "0 kept, 3 broken" in done.stdout, done.stdout
    for importer, imported in NOT_ALLOWED:
        assert f"fusebench.{importer} is not allowed to import fusebench.{imported}" in done.stdout, done.stdout


def test_kernels_import_what_older_kernels_import() -> None:
    trees = [ast.parse(file.read_text()) for file in (REPOSITORY / "kernels").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    found = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None}
    found |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in found if name.split(".")[0] == "fusebench"} == IMPORTED_BY_KERNELS


def test_names_that_only_older_kernels_import_are_still_there() -> None:
    for module, names in IMPORTED_ONCE.items():
        assert set(names) <= set(vars(importlib.import_module(module)))
