"""Arguments that no kernel may take are refused by name, with what came and what is accepted, before anything is launched."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from fusebench.errors import KernelArgumentError
from fusebench.registry.op import argument_names

KERNELS = ("fused_triton@1", "fused_triton@2", "fused_cuda@1", "split_triton@1")
B, L, C = 2, 6, 64
BF16 = torch.bfloat16
ROWS = ("scale0", "shift0", "gate0", "scale1", "shift1", "gate1")


def arguments(op: Any, **changes: Any) -> dict[str, Any]:
    """A call that every kernel accepts, on the CPU, with these changes as far as the op has such arguments."""
    rows = {name: torch.ones(B, C, dtype=BF16) for name in ROWS}
    base = {
        "residual": torch.ones(B, L, C, dtype=BF16),
        "x": torch.ones(B, L, C, dtype=BF16),
        "residual_gate": torch.ones(B, L, C, dtype=BF16),
        "weight": torch.ones(C, dtype=BF16),
        "bias": torch.ones(C, dtype=BF16),
        **rows,
        "index": torch.zeros(B, L, dtype=torch.int32),
        "eps": 1e-6,
    }
    like_x = {name: changes["x"] for name in ("residual", "residual_gate") if "x" in changes}
    return {name: value for name, value in (base | like_x | changes).items() if name in argument_names(op.schema)}


# What is wrong: (changed arguments, the argument that is named, what the message says came, what it says is accepted).
BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "x of two dimensions": ({"x": torch.ones(L, C, dtype=BF16)}, "x", "[6, 64] in torch.bfloat16", "[B, S, D] in bfloat16"),
    "x in float64": ({"x": torch.ones(B, L, C).double()}, "x", "torch.float64", "bfloat16, float16 or float32"),
    "x of rows that are no whole vectors": ({"x": torch.ones(B, L, 60)}, "x", "[2, 6, 60]", "D a multiple of 8 from 8 to 8192"),
    "x of rows beyond registers": ({"x": torch.ones(1, 1, 8200)}, "x", "[1, 1, 8200]", "from 8 to 8192"),
    "x with gaps between channels": ({"x": torch.ones(B, L, 2 * C)[..., ::2]}, "x", "strides (768, 128, 2)", "a last stride of 1"),
    "more rows than 32 bits count": ({"x": torch.ones(1, 1, 8).expand(2**16, 2**15, 8)}, "x", "2147483648 rows", "at most 2147483647"),
    "weight in another 16-bit dtype": ({"weight": torch.ones(C).half()}, "weight", "torch.float16", "in bfloat16 or float32"),
    "weight of another length": ({"weight": torch.ones(32)}, "weight", "[32]", "contiguous [64]"),
    "weight elsewhere": ({"weight": torch.ones(C, device="meta")}, "weight", "device meta", "cpu, like x"),
    "bias alone": ({"weight": None}, "bias", "a tensor with no weight", "None, unless a layer norm has a weight"),
    "a negative eps": ({"eps": -1e-6}, "eps", "-1e-06", "a positive finite number"),
    "a row for all samples": ({"shift0": torch.ones(1, C, dtype=BF16)}, "shift0", "[1, 64]", "[2, 64] in bfloat16 or float32"),
    "a row per token": ({"scale1": torch.ones(B, L, C, dtype=BF16)}, "scale1", "[2, 6, 64]", "[2, 64]"),
    "a row of another length": ({"gate1": torch.ones(B, 32, dtype=BF16)}, "gate1", "[2, 32]", "[2, 64]"),
    "a row in another 16-bit dtype": ({"scale0": torch.ones(B, C).half()}, "scale0", "torch.float16", "bfloat16 or float32"),
    "one row alone in float32": (
        {"gate0": torch.ones(B, C)},
        "gate0",
        "torch.float32",
        "torch.bfloat16, like scale0: the six rows share one",
    ),
    "a row with gaps": ({"shift1": torch.ones(B, 2 * C, dtype=BF16)[:, ::2]}, "shift1", "strides (128, 2)", "a last stride of 1"),
    "a row elsewhere": ({"gate1": torch.ones(B, C, dtype=BF16, device="meta")}, "gate1", "device meta", "cpu, like x"),
    "an index of one dimension": ({"index": torch.zeros(L, dtype=torch.int32)}, "index", "[6] in torch.int32", "[2, 6] in int32"),
    "an index per channel": ({"index": torch.zeros(B, L, 1, dtype=torch.int32)}, "index", "[2, 6, 1]", "[2, 6] in int32"),
    "an index of floats": ({"index": torch.zeros(B, L)}, "index", "torch.float32", "int32, int64 or bool"),
    "an index of bytes": (
        {"index": torch.zeros(B, L, dtype=torch.uint8)},
        "index",
        "torch.uint8",
        "int32, int64 or bool",
    ),
    "an index elsewhere": ({"index": torch.zeros(B, L, dtype=torch.int32, device="meta")}, "index", "device meta", "cpu, like x"),
}
BAD_RESIDUAL: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "residual of another shape": ({"residual": torch.ones(B, 5, C)}, "residual", "[2, 5, 64]", "[2, 6, 64] in torch.bfloat16, like x"),
    "residual in another dtype": ({"residual": torch.ones(B, L, C)}, "residual", "torch.float32", "in torch.bfloat16, like x"),
    "residual elsewhere": ({"residual": torch.ones(B, L, C, dtype=BF16, device="meta")}, "residual", "device meta", "cpu, like x"),
    "residual_gate per sample": ({"residual_gate": torch.ones(B, 1, C, dtype=BF16)}, "residual_gate", "[2, 1, 64]", "[2, 6, 64]"),
    "residual_gate in float32": ({"residual_gate": torch.ones(B, L, C)}, "residual_gate", "torch.float32", "in torch.bfloat16, like x"),
    "residual_gate with gaps": (
        {"residual_gate": torch.ones(B, L, 2 * C, dtype=BF16)[..., ::2]}, "residual_gate", "strides (768, 128, 2)", "a last stride of 1",
    ),
}  # fmt: skip


def check_refusal(collection: Any, op: Any, kernel: str, case: tuple[dict[str, Any], str, str, str]) -> None:
    changes, argument, found, accepted = case
    call = op.params_of if kernel == "dispatch" else collection.kernel(f"{op.name}/{kernel}")
    expected = rf"{op.name}: argument {argument}: found .*{re.escape(found)}.*; accepted is .*{re.escape(accepted)}"
    for _ in range(2):  # the second time from what is remembered
        with pytest.raises(KernelArgumentError, match=expected):
            call(**arguments(op, **changes))


@pytest.mark.parametrize("kernel", [*KERNELS, "dispatch"])
@pytest.mark.parametrize("defect", BAD)
def test_a_bad_argument_is_refused_by_name(collection: Any, op: Any, kernel: str, defect: str) -> None:
    check_refusal(collection, op, kernel, BAD[defect])


@pytest.mark.parametrize("kernel", [*KERNELS, "dispatch"])
@pytest.mark.parametrize("defect", BAD_RESIDUAL)
def test_a_bad_residual_is_refused_by_name(collection: Any, kernel: str, defect: str) -> None:
    check_refusal(collection, collection.op("residual_norm_scale_shift_gate_select01"), kernel, BAD_RESIDUAL[defect])


ACCEPTED: dict[str, dict[str, Any]] = {
    "x in wider rows": {"x": torch.ones(B, L, 3 * C, dtype=BF16)[..., C : 2 * C]},
    "x token by token": {"x": torch.ones(L, B, C, dtype=BF16).transpose(0, 1)},
    "x of one row for all": {"x": torch.ones(1, 1, C, dtype=BF16).expand(B, L, C)},
    "no parameters": {"weight": None, "bias": None},
    "a weight without a bias": {"bias": None},
    "float32 parameters": {"weight": torch.ones(C), "bias": torch.ones(C)},
    "chunk views": dict(zip(ROWS, torch.ones(B, 6 * C, dtype=BF16).chunk(6, dim=-1), strict=True)),
    "float32 rows": dict.fromkeys(ROWS, torch.ones(B, C)),
    "one row shared by stride": {"scale0": torch.ones(1, C, dtype=BF16).expand(B, C)},
    "an index of one sample for all": {"index": torch.zeros(1, L, dtype=torch.int64).expand(B, L)},
    "an index by token": {"index": torch.zeros(L, B, dtype=torch.bool).t()},
}


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_whatever_the_operator_defines_is_accepted(op: Any, accepted: str) -> None:
    assert op.params_of(**arguments(op, **ACCEPTED[accepted])).hidden == C


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_given_host_memory_refuses_it_instead_of_faulting(
    collection: Any, op: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(KernelArgumentError, match="argument x: found device cpu; accepted is a CUDA device"):
        collection.kernel(f"{op.name}/{name}")(**arguments(op))
