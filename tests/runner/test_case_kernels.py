"""Which kernels take part in a case; every one that does not is listed with its reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.errors import UsageError
from fusebench.registry import Collection, load_collection
from fusebench.runner.case_kernels import CaseKernels, case_kernels, interpreted, split_reference, timeable
from fusebench.schema import Case, Status

EXTRA = """
from fusebench import kernel


@kernel("scale", "plain", version=1, role="fused", language="torch")
def plain(x, *, factor=2.0):
    x.mul_(factor)


@kernel("scale", "picky", version=1, role="fused", language="torch")
def picky(x, *, factor=2.0):
    x.mul_(factor)


@picky.supports
def _(params):
    return "size is odd" if params.size % 2 else True


@kernel("scale", "tritonic", version=1, role="fused", language="triton")
def tritonic(x, *, factor=2.0):
    x.mul_(factor)


@kernel("scale", "needy", version=1, role="peer", language="torch", requires=("no_such_module_here",))
def needy(x, *, factor=2.0):
    return (x * factor,)
"""
ALL = {f"scale/{name}" for name in ("split@1", "fast@2", "plain@1", "picky@1", "tritonic@1", "needy@1")}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("case_kernels")
    toy = Path(__file__).parents[1] / "toy_project" / "kernels"
    shutil.copytree(toy, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    (folder / "scale" / "extra.py").write_text(EXTRA)
    return folder


@pytest.fixture(scope="module")
def varied(kernels: Path) -> Collection:
    return load_collection([kernels], entry_points=False)


@pytest.fixture
def sort(varied: Collection) -> Callable[..., CaseKernels]:
    """`sort(size, device, pattern)`: the case_kernels of a case of that size."""

    def run(size: int = 8, device: str = "cpu", pattern: str | None = None, **options: Any) -> CaseKernels:
        return case_kernels(varied, Case(suite="s", name="c", op="scale", params={"size": size}), device, pattern, **options)

    return run


def listed(entry: CaseKernels) -> set[str]:
    return {str(kernel.id) for kernel in entry.runnable} | {result.kernel for result in entry.declined}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("size", [7, 8])
def test_every_kernel_is_listed_whatever_the_device_and_the_case(sort: Callable[..., CaseKernels], size: int, device: str) -> None:
    assert listed(sort(size, device)) == ALL


def test_who_does_not_take_part_has_a_reason(sort: Callable[..., CaseKernels]) -> None:
    declined = {result.kernel: (result.status, result.reason) for result in sort(7).declined}
    assert declined == {
        "scale/fast@2": (Status.NOT_RUNNABLE, "CUDA C++ needs a GPU"),
        "scale/picky@1": (Status.UNSUPPORTED, "size is odd"),
        "scale/needy@1": (Status.NOT_RUNNABLE, "not installed: no_such_module_here"),
    }
    on_gpu = {result.kernel: result.status for result in sort(7, "cuda").declined}
    assert on_gpu["scale/fast@2"] is Status.UNSUPPORTED, "a GPU rules it out no longer, its own `supports` does"


def test_on_a_cpu_a_triton_kernel_is_checked_in_the_interpreter_and_not_timed(sort: Callable[..., CaseKernels], varied: Collection) -> None:
    tritonic, plain = varied.kernels["scale/tritonic@1"], varied.kernels["scale/plain@1"]
    assert tritonic in sort().runnable
    assert (interpreted(tritonic, "cpu"), interpreted(tritonic, "cuda"), interpreted(plain, "cpu")) == (True, False, False)
    assert "needs a GPU to be timed" in (timeable(tritonic, "cpu") or "")
    assert timeable(tritonic, "cuda") is timeable(plain, "cpu") is None


def test_a_pattern_keeps_the_baseline(sort: Callable[..., CaseKernels]) -> None:
    entry = sort(pattern="plain")
    assert [str(kernel.id) for kernel in entry.runnable] == ["scale/plain@1", "scale/split@1"]
    assert entry.declined == ()
    assert entry.baseline_id == "scale/split@1"
    declining = sort(7, pattern="picky@*")
    assert listed(declining) == {"scale/picky@1", "scale/split@1"}
    assert listed(sort(pattern="plain", with_baseline=False)) == {"scale/plain@1"}, "what is only checked needs no baseline"


def test_the_baseline_is_the_first_that_can_be_timed_on_the_device(
    sort: Callable[..., CaseKernels], varied: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = varied.ops["scale"]
    monkeypatch.setattr(op, "baselines", ("gone@1", "tritonic@1", "picky@1", "split@1"), raising=False)
    assert sort(8, "cuda").baseline_id == "scale/tritonic@1"
    assert sort(8, "cpu").baseline_id == "scale/picky@1", "the interpreter is no yardstick"
    assert sort(7, "cpu").baseline_id == "scale/split@1"
    monkeypatch.setattr(op, "baselines", ("tritonic@1",), raising=False)
    assert sort(8, "cpu").baseline is None


def test_a_split_reference_that_did_not_load_is_an_error_that_says_why(kernels: Path, tmp_path: Path) -> None:
    shutil.copytree(kernels, tmp_path / "broken", ignore=shutil.ignore_patterns("__pycache__"))
    assert str(split_reference(load_collection([kernels], entry_points=False), _op(kernels)).id) == "scale/split@1"
    (tmp_path / "broken" / "scale" / "split.py").write_text("import no_such_module_here\n")
    broken = load_collection([tmp_path / "broken"], entry_points=False)
    with pytest.raises(UsageError, match=r"op scale: its split reference scale/split@1 is not loaded.*split\.py.*no_such_module_here"):
        split_reference(broken, broken.ops["scale"])


def _op(kernels: Path) -> object:
    return load_collection([kernels], kernels=False, entry_points=False).ops["scale"]
