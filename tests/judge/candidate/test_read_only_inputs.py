"""A kernel that uses a read-only input as its workspace is wrong, although it restores every byte."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.judge.failures import CandidateError
from fusebench.judge.judging import CaseJudge
from fusebench.judge.patience import Limits
from fusebench.registry import Kernel, load_collection
from fusebench.schema import Close, KernelId, Language, Role
from judge.bench import CPU, SameProcess

KERNELS = Path(__file__).parents[3] / "kernels"
OP = "norm_scale_shift"


def judge_of(borrowed: str) -> CaseJudge:
    """The judge of the split chain, which first overwrites the argument `borrowed` and restores it."""
    collection = load_collection([KERNELS], entry_points=False, operators=False, only={OP}, kernel=KernelId(OP, "split_torch", 1))
    op, split = collection.op(OP), collection.kernel(f"{OP}/split_torch@1")

    def function(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        named = dict(zip(("x", "weight", "bias", "scale", "shift"), tensors, strict=True))
        if borrowed:
            kept = named[borrowed].clone()
            named[borrowed].zero_().copy_(kept)
        return split(*tensors, **options)  # type: ignore[no-any-return]

    kernel = Kernel(function, KernelId(OP, "mine", 1), role=Role.FUSED, language=Language.TORCH, contract=Close(), requires=(), note="")
    return CaseJudge(
        SameProcess(kernel, op),  # type: ignore[arg-type]
        op, op.parse_params({"tokens": 4, "hidden": 64, "affine": True}),
        kernel=f"{OP}/mine@1", language="torch", contract=Close(), split=split, target=None, device=CPU,
        limits=Limits(time.monotonic() + 600),
    )  # fmt: skip


@pytest.mark.parametrize("borrowed", ["x", "weight", "shift"])
def test_a_borrowed_input_is_named(borrowed: str) -> None:
    with pytest.raises(CandidateError, match=f"written during the call: {borrowed}; inputs are no workspace"):
        judge_of(borrowed).compare(2)


def test_a_kernel_that_only_reads_passes() -> None:
    judge = judge_of("")
    judge.compare(6)
    assert judge.found.compared == 6
