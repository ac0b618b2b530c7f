"""The gate on kernels that compute a part of their op: judged by the part's reference and by the part's split chain."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fusebench.accuracy import check_kernel
from fusebench.errors import KernelDeclarationError
from fusebench.registry import Collection, kernel, load_collection
from fusebench.schema import Accuracy, Bitwise

TOY_PROJECT = Path(__file__).parents[1] / "toy_project"


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    root = tmp_path_factory.mktemp("kernels")
    shutil.copytree(TOY_PROJECT / "kernels", root, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    shutil.copy(TOY_PROJECT / "part.py", root / "scale" / "part.py")
    loaded = load_collection([root], entry_points=False)
    assert not loaded.problems
    return loaded


def check(collection: Collection, name: str) -> Accuracy:
    op = collection.op("scale")
    return check_kernel(
        collection.kernel(f"scale/{name}@1"), op, op.parse_params({"size": 4096}), split=collection.kernel("scale/split@1"),
        others=collection.kernels, device=torch.device("cpu"), seed=1,
    )  # fmt: skip


def test_a_part_is_judged_by_its_own_reference(collection: Collection) -> None:
    accuracy = check(collection, "part")
    assert (accuracy.passed, accuracy.rms_error, accuracy.equal_to_split) == (True, 0.0, 1.0), "the part's split chain copies too"


def test_a_kernel_that_computes_more_than_its_part_is_wrong(collection: Collection) -> None:
    accuracy = check(collection, "wrong_part")
    assert not accuracy.passed
    assert "RMS error" in accuracy.reason


def test_nothing_may_promise_to_equal_a_part(collection: Collection) -> None:
    op = collection.op("scale")

    @kernel("scale", "bitwise", version=1, role="fused", language="torch", contract=Bitwise("scale/part@1"))
    def bitwise(x: torch.Tensor, *, factor: float = 2.0) -> tuple[torch.Tensor]:
        return (x,)

    with pytest.raises(KernelDeclarationError, match=r"covers only a part of the op \(copy only: no factor\)"):
        check_kernel(
            bitwise, op, op.parse_params({"size": 8}), split=collection.kernel("scale/split@1"), others=collection.kernels,
            device=torch.device("cpu"),
        )  # fmt: skip
