"""A project of Triton and CUDA C++ kernels, and its static evidence, collected once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.config import find_project
from fusebench.evidence.collecting import collect
from fusebench.evidence.evidence_cache import EvidenceCache
from fusebench.evidence.records import StaticReport
from fusebench.evidence.targets import target as target_named
from fusebench.registry import load_collection
from fusebench.suites import load_suite
from helpers.forked_workers import forking_compilers

STATIC_PROJECT = Path(__file__).parents[1] / "static_project"
SPOILED = {
    "SPILLING": '{"num_warps": 1, "maxnreg": 24}',
    "NARROWER": '{"start": 1}',
    "FEWER_WARPS": '{"num_warps": 1}',
    "LONGER": '{"times": 3}',
}
"""A planted defect for each kernel that is named after it."""

SPILLS = '''
import triton
import triton.language as tl

from fusebench import kernel


@triton.jit
def _many(x_ptr, BLOCK: tl.constexpr):
    at = x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(at)
    tl.store(at, x / tl.sum(x, 0))


@kernel("unit_sum", "spills", version=1, role="fused", language="triton")
def spills(x):
    """64 values a thread, and no more than 64 registers."""
    _many[(x.numel() // 16384,)](x, BLOCK=16384, num_warps=4, waves_per_eu=8)
'''


def copy_project(target: Path, options: dict[str, str] | None = None) -> Path:
    """The project at `target`, with other options for some kernels."""
    shutil.copytree(STATIC_PROJECT, target, ignore=shutil.ignore_patterns("__pycache__"))
    file = target / "kernels" / "unit_sum" / "in_triton.py"
    text = file.read_text()
    for name, value in (options or {}).items():
        assert f"{name} = {{}}" in text
        text = text.replace(f"{name} = {{}}", f"{name} = {value}")
    file.write_text(text)
    return target


def collect_project(root: Path, target: str = "sm_90", **options: Any) -> StaticReport:
    """Evidence for the project at `root`, without a cache unless one is given."""
    project = find_project(root)
    collection = load_collection(project.kernels, kernels=False, entry_points=False)
    suite = load_suite("unit_sum", project, collection.ops)
    with forking_compilers():
        return collect(suite.cases, target_named(target), ops=collection.ops, roots=collection.roots, jobs=2, **options)


@pytest.fixture
def make_project() -> Callable[..., Path]:
    """`make_project(folder, {"LONGER": "{…}"})`."""
    return copy_project


@pytest.fixture
def evidence() -> Callable[..., StaticReport]:
    """`evidence(root, "sm_90", kernel=…, cache=…)`."""
    return collect_project


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> StaticReport:
    """Evidence for the project as it is."""
    return collect_project(copy_project(tmp_path_factory.mktemp("sound") / "project"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> EvidenceCache:
    return EvidenceCache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def spoiled(tmp_path_factory: pytest.TempPathFactory, cache: EvidenceCache) -> StaticReport:
    """Evidence for the project with every planted defect, through `cache`."""
    return collect_project(copy_project(tmp_path_factory.mktemp("spoiled") / "project", SPOILED), cache=cache)


@pytest.fixture
def spoiled_project(tmp_path: Path) -> Path:
    """A copy of the project that `spoiled` is the evidence of."""
    return copy_project(tmp_path / "spoiled", SPOILED)


@pytest.fixture(scope="session")
def on_amd(tmp_path_factory: pytest.TempPathFactory) -> StaticReport:
    """Evidence for gfx942 of the project, with a kernel that spills, one that passes an option of NVIDIA's and one a mistyped option."""
    options = {"NARROWER": '{"maxnreg": 24}', "LONGER": '{"no_such_option": 1}'}
    root = copy_project(tmp_path_factory.mktemp("amd") / "project", options)
    (root / "kernels" / "unit_sum" / "spills.py").write_text(SPILLS)
    return collect_project(root, "gfx942")
