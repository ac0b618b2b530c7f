"""Arguments that no kernel may take are refused by name, with what came and what is accepted, before anything is launched."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from fusebench.errors import KernelArgumentError

KERNELS = ("fused_triton@1", "fused_triton@2", "fused_cuda@1", "split_triton@1")
B, S, D = 2, 6, 64


@pytest.fixture
def arguments(activations: Any, modulations: Any) -> dict[str, Any]:
    """A call that every kernel accepts, on the CPU."""
    return {
        **dict.fromkeys(activations, torch.ones(B, S, D, dtype=torch.bfloat16)),
        "weight": torch.ones(D, dtype=torch.bfloat16),
        "bias": torch.ones(D, dtype=torch.bfloat16),
        **dict.fromkeys(modulations, torch.ones(B, 1, D, dtype=torch.bfloat16)),
    }


# What is wrong: (changed arguments, the argument that is named, what the message says came, what it says is accepted).
BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "x of two dimensions": ({"x": torch.ones(S, D, dtype=torch.bfloat16)}, "x", "[6, 64] in torch.bfloat16", "[B, S, D] in bfloat16"),
    "x in float64": ({"x": torch.ones(B, S, D).double()}, "x", "torch.float64", "bfloat16, float16 or float32"),
    "x of rows that are no whole vectors": ({"x": torch.ones(B, S, 60)}, "x", "[2, 6, 60]", "D a multiple of 8 from 8 to 8192"),
    "x of rows beyond registers": ({"x": torch.ones(1, 1, 8200)}, "x", "[1, 1, 8200]", "from 8 to 8192"),
    "x of empty rows": ({"x": torch.ones(1, 1, 0)}, "x", "[1, 1, 0]", "from 8 to 8192"),
    "x with gaps between channels": ({"x": torch.ones(B, S, 2 * D)[..., ::2]}, "x", "strides (768, 128, 2)", "a last stride of 1"),
    "more rows than 32 bits count": ({"x": torch.ones(1, 1, 8).expand(2**16, 2**15, 8)}, "x", "2147483648 rows", "at most 2147483647"),
    "weight in another 16-bit dtype": ({"weight": torch.ones(D).half()}, "weight", "torch.float16", "in bfloat16 or float32"),
    "weight of another length": ({"weight": torch.ones(32)}, "weight", "[32]", "contiguous [64]"),
    "weight per sample": ({"weight": torch.ones(B, D)}, "weight", "[2, 64]", "contiguous [64]"),
    "weight elsewhere": ({"weight": torch.ones(D, device="meta")}, "weight", "device meta", "cpu, like x"),
    "bias with gaps": ({"bias": torch.ones(2 * D)[::2]}, "bias", "with strides (2,)", "contiguous [64]"),
    "bias alone": ({"weight": None}, "bias", "a tensor with no weight", "None, unless a layer norm has a weight"),
    "bias of an RMS norm": ({"norm": "rms"}, "bias", "a tensor with norm rms", "None, unless a layer norm has a weight"),
    "scale of another batch": ({"scale": torch.ones(3, 1, D)}, "scale", "[3, 1, 64]", "B, S, D = 2, 6, 64"),
    "scale of frames that do not divide": ({"scale": torch.ones(B, 4, 1, D)}, "scale", "[2, 4, 1, 64]", "F dividing S"),
    "scale in another 16-bit dtype": ({"scale": torch.ones(D).half()}, "scale", "torch.float16", "bfloat16 or float32"),
    "shift with gaps between channels": ({"shift": torch.ones(2 * D)[::2]}, "shift", "strides (2,)", "a last stride of 1"),
    "shift elsewhere": ({"shift": torch.ones(D, device="meta")}, "shift", "device meta", "cpu, like x"),
    "an unknown norm": ({"norm": "group"}, "norm", "'group'", "'layer' or 'rms'"),
    "a negative eps": ({"eps": -1e-6}, "eps", "-1e-06", "a positive finite number"),
}
RESIDUAL_BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "residual of another shape": ({"residual": torch.ones(B, 5, D)}, "residual", "[2, 5, 64]", "[2, 6, 64] in torch.bfloat16, like x"),
    "residual in another dtype": ({"residual": torch.ones(B, S, D)}, "residual", "torch.float32", "in torch.bfloat16, like x"),
    "residual with gaps": (
        {"residual": torch.ones(B, S, 2 * D, dtype=torch.bfloat16)[..., ::2]},
        "residual",
        "strides (768, 128, 2)",
        "a last stride of 1",
    ),
    "residual elsewhere": (
        {"residual": torch.ones(B, S, D, dtype=torch.bfloat16, device="meta")},
        "residual",
        "device meta",
        "cpu, like x",
    ),
    "gate of another token count": ({"gate": torch.ones(B, 5, D)}, "gate", "[2, 5, 64]", "[1|B, 1|S, D]"),
}


@pytest.mark.parametrize("kernel", [*KERNELS, "dispatch"])
@pytest.mark.parametrize("defect", [*BAD, *RESIDUAL_BAD])
def test_a_bad_argument_is_refused_by_name(bench: Any, arguments: Any, gated: bool, kernel: str, defect: str) -> None:
    if defect in RESIDUAL_BAD and not gated:
        pytest.skip("the op has neither residual nor gate")
    changes, argument, found, accepted = (BAD | RESIDUAL_BAD)[defect]
    alike = {"residual": changes["x"]} if gated and "x" in changes else {}
    call = bench.op.params_of if kernel == "dispatch" else bench.kernel(kernel)
    expected = rf"{bench.op.name}: argument {argument}: found .*{re.escape(found)}.*; accepted is .*{re.escape(accepted)}"
    for _ in range(2):  # the second time from what is remembered
        with pytest.raises(KernelArgumentError, match=expected):
            call(**(arguments | changes | alike))


ACCEPTED: dict[str, dict[str, Any]] = {
    "x in wider rows": {"x": torch.ones(B, S, 3 * D, dtype=torch.bfloat16)[..., D : 2 * D]},
    "x token by token": {"x": torch.ones(S, B, D, dtype=torch.bfloat16).transpose(0, 1)},
    "x of one row for all": {"x": torch.ones(1, 1, D, dtype=torch.bfloat16).expand(B, S, D)},
    "no parameters": {"weight": None, "bias": None},
    "a weight without a bias": {"bias": None},
    "float32 parameters and modulation": {name: torch.ones(D) for name in ("weight", "bias", "scale", "shift")},
    "chunk views": {"scale": torch.ones(B, 6 * D).chunk(6, dim=-1)[1], "shift": torch.ones(B, 6 * D).chunk(6, dim=-1)[0]},
    "forms that differ": {"scale": torch.ones(B, 3, 1, D), "shift": torch.ones(1)},
}


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_whatever_the_operator_defines_is_accepted(op: Any, arguments: Any, accepted: str) -> None:
    assert op.params_of(**(arguments | ACCEPTED[accepted])).hidden == D


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_given_host_memory_refuses_it_instead_of_faulting(
    bench: Any, arguments: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(KernelArgumentError, match="argument x: found device cpu; accepted is a CUDA device"):
        bench.kernel(name)(**arguments)
