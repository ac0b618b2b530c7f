"""Two revisions of a kernel that a search need not measure: the same sources, or the same machine code called alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusebench.device import Device
from fusebench.fleet.same_code import SameCode
from fusebench.registry import load_collection
from fusebench.schema import Case
from fusebench.store.bisection_record import Basis

STATIC_PROJECT = Path(__file__).parents[1] / "static_project" / "kernels"
GPU = Device(kind="cuda", name="NVIDIA H200", compute_capability=(9, 0))
KERNEL = "unit_sum/launched@1"
SOURCE = """import triton
import triton.language as tl

from fusebench import kernel, launchable


@triton.jit
def _scale(x_ptr, rows, times, BLOCK: tl.constexpr):
    at = x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(times):
        tl.store(at, tl.load(at) * 2)


@kernel("unit_sum", "launched", version=1, role="fused", language="triton")
def launched(x):
    HOST
    launchable(_scale)[(x.shape[0],)](x, x.shape[0], TIMES, BLOCK=x.shape[1], num_warps=WARPS)
"""


def source(host: str = "pass", times: str = "3", warps: str = "4") -> str:
    return SOURCE.replace("HOST", host).replace("TIMES", times).replace("WARPS", warps)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled code, so that the revision without a change is compiled once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def basis(tmp_path: Path, cache: Path, forked_compilers: None) -> Iterator[Callable[..., Basis | None]]:
    """`basis(head, data="")`: what shows that the kernel with the source `head` is the one of `source()`."""

    def answer(head: str, *, data: str = "", device: Device = GPU) -> Basis | None:
        found = []
        for name, text in (("base", source()), ("head", head)):
            root = tmp_path / name
            shutil.copytree(STATIC_PROJECT, root, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
            (root / "unit_sum" / "launched.py").write_text(text)
            (root / "table.txt").write_text(data if name == "head" else "")
            found.append(load_collection([root], entry_points=False, operators=False))
        case = Case(suite="unit_sum", name="rows", op="unit_sum", params={"rows": 64, "columns": 1024})
        return SameCode(KERNEL, case, device, cache, told.append).basis(found[1], found[0])

    told: list[str] = []
    yield answer
    assert told == []


def test_sources_and_comments(basis: Callable[..., Basis | None]) -> None:
    assert basis(source()) is Basis.SAME_SOURCE
    assert basis(source() + "# a comment\n") is Basis.SAME_CODE
    assert basis(source() + "# a comment\n", device=Device(kind="cpu", name="CPU")) is None


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(source(host="x = x.clone()"), id="a copy before the launch"),
        pytest.param(source(times="5"), id="a scalar argument", marks=pytest.mark.exhaustive),
        pytest.param(source(warps="8"), id="another launch", marks=pytest.mark.exhaustive),
        pytest.param(source().replace("* 2", "* 3"), id="other code", marks=pytest.mark.exhaustive),
    ],
)
def test_the_same_code_called_otherwise_is_not_the_same(head: str, basis: Callable[..., Basis | None]) -> None:
    assert basis(head) is None


def test_code_that_may_read_a_changed_file_is_not_the_same(basis: Callable[..., Basis | None]) -> None:
    assert basis(source() + "# a comment\n", data="1") is None
