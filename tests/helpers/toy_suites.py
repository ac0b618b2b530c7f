"""A toy op, and an empty project to write suites of it into, for the tests of suites."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from fusebench.config import Project
from fusebench.registry import Op


class ToyParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tokens: int
    head_dim: int = 128
    rope_dim: int | None = None
    layout: Literal["interleaved", "neox"] = "neox"
    packed: bool = False
    axes: list[int] = []

    def __post_init__(self) -> None:
        if self.tokens <= 0:
            raise ValueError(f"tokens is {self.tokens}; it must be positive")
        if self.rope_dim is not None and self.rope_dim > self.head_dim:
            raise ValueError(f"rope_dim is {self.rope_dim}; it must be at most head_dim ({self.head_dim})")


class ToyOp(Op):
    name = "toy"
    Params = ToyParams

    def _unused(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("reading a suite must not compute")

    buffers = arguments = reference = params_of = flops = shape = shrink = _unused

    def minimum_bytes(self, params: ToyParams) -> int:
        return 2 * params.tokens * params.head_dim


OPS: dict[str, Op] = {"toy": ToyOp()}

GOOD = """\
# A comment before everything.

[suite]
name = "good"
description = "two cases"

[[case]]
name = "first"
op = "toy"
params = { tokens = 4, rope_dim = 64 }
weight = 38
source = "made up"

[[case]]
name = "second"
op = "toy"
params = { tokens = 8 }
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project in the current folder, with one suites folder."""
    (tmp_path / "suites").mkdir()
    monkeypatch.chdir(tmp_path)
    return Project(root=tmp_path, kernels=(), suites=(tmp_path / "suites",), results=tmp_path / "results")


def write(project: Project, text: str, name: str = "good") -> Path:
    file = project.suites[0] / f"{name}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return file
