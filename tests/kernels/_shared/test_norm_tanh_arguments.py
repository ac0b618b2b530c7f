"""Arguments that no kernel of a norm_tanh op may take are refused by name, with what came and what is accepted, before any launch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusebench.errors import KernelArgumentError

KERNELS = ("fused_triton@1", "fused_triton@2", "fused_triton@3", "fused_cuda@1", "split_triton@1")
B, S, D = 2, 6, 64


def arguments(op: Any) -> dict[str, Any]:
    """A call that every kernel accepts, on the CPU."""
    row, channel = torch.ones(B, 1, D, dtype=torch.bfloat16), torch.ones(D, dtype=torch.bfloat16)
    x = torch.ones(B, S, D, dtype=torch.bfloat16)
    first = {"residual": x, "x": x, "gate": row, "weight": channel, "bias": channel, "norm": "layer"}
    return first | ({"weight2": channel, "bias2": channel, "scale2": row} if len(op.outputs) == 2 else {})


# What is wrong: (changed arguments, the argument that is named, what the message says came, what it says is accepted).
BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "x of two dimensions": ({"x": torch.ones(S, D, dtype=torch.bfloat16)}, "x", "[6, 64] in torch.bfloat16", "[B, S, D] in bfloat16"),
    "x in float64": ({"x": torch.ones(B, S, D).double()}, "x", "torch.float64", "bfloat16, float16 or float32"),
    "x of rows that are no whole vectors": ({"x": torch.ones(B, S, 60)}, "x", "[2, 6, 60]", "D a multiple of 8 from 8 to 8192"),
    "x of rows beyond registers": ({"x": torch.ones(1, 1, 8200)}, "x", "[1, 1, 8200]", "from 8 to 8192"),
    "x with gaps between channels": ({"x": torch.ones(B, S, 2 * D)[..., ::2]}, "x", "strides (768, 128, 2)", "a last stride of 1"),
    "more rows than 32 bits count": ({"x": torch.ones(1, 1, 8).expand(2**16, 2**15, 8)}, "x", "2147483648 rows", "at most 2147483647"),
    "weight in another 16-bit dtype": ({"weight": torch.ones(D).half()}, "weight", "torch.float16", "in bfloat16 or float32"),
    "weight of another length": ({"weight": torch.ones(32)}, "weight", "[32]", "contiguous [64]"),
    "weight elsewhere": ({"weight": torch.ones(D, device="meta")}, "weight", "device meta", "cpu, like x"),
    "bias alone": ({"weight": None}, "bias", "a tensor with no weight", "None, unless a layer norm has a weight"),
    "bias of an RMS norm": ({"norm": "rms"}, "bias", "a tensor with norm rms", "None, unless a layer norm has a weight"),
    "gate of another batch": ({"gate": torch.ones(3, 1, D)}, "gate", "[3, 1, 64]", "B, S, D = 2, 6, 64"),
    "gate of frames that do not divide": ({"gate": torch.ones(B, 4, 1, D)}, "gate", "[2, 4, 1, 64]", "F dividing S"),
    "gate in another 16-bit dtype": ({"gate": torch.ones(D).half()}, "gate", "torch.float16", "bfloat16 or float32"),
    "gate elsewhere": ({"gate": torch.ones(D, device="meta")}, "gate", "device meta", "cpu, like x"),
    "residual of another token count": ({"residual": torch.ones(B, 5, D)}, "residual", "[2, 5, 64]", "[1|B, 1|S, D]"),
    "residual in another 16-bit dtype": ({"residual": torch.ones(B, S, D).half()}, "residual", "torch.float16", "bfloat16 or float32"),
    "residual with gaps": ({"residual": torch.ones(B, S, 2 * D)[..., ::2]}, "residual", "strides (768, 128, 2)", "a last stride of 1"),
    "residual elsewhere": ({"residual": torch.ones(B, S, D, device="meta")}, "residual", "device meta", "cpu, like x"),
    "an unknown norm": ({"norm": "group"}, "norm", "'group'", "'layer' or 'rms'"),
    "a negative eps": ({"eps": -1e-6}, "eps", "-1e-06", "a positive finite number"),
    "an eps that is no number": ({"eps": float("nan")}, "eps", "nan", "a positive finite number"),
}
BAD_SECOND: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "weight2 of another length": ({"weight2": torch.ones(32)}, "weight2", "[32]", "contiguous [64]"),
    "weight2 in another 16-bit dtype": ({"weight2": torch.ones(D).half()}, "weight2", "torch.float16", "in bfloat16 or float32"),
    "bias2 alone": ({"weight2": None}, "bias2", "a tensor with no weight2", "None, unless a layer norm has a weight2"),
    "bias2 of an RMS norm": ({"norm": "rms", "bias": None}, "bias2", "a tensor with norm rms", "None, unless a layer norm has a weight2"),
    "bias2 with gaps": ({"bias2": torch.ones(2 * D)[::2]}, "bias2", "with strides (2,)", "contiguous [64]"),
    "scale2 of another token count": ({"scale2": torch.ones(B, 5, D)}, "scale2", "[2, 5, 64]", "[1|B, 1|S, D]"),
    "scale2 elsewhere": ({"scale2": torch.ones(D, device="meta")}, "scale2", "device meta", "cpu, like x"),
}


@pytest.mark.parametrize("kernel", [*KERNELS, "dispatch"])
@pytest.mark.parametrize("defect", BAD)
def test_a_bad_argument_is_refused_by_name(tanh_bench: Any, kernel: str, defect: str) -> None:
    expect_refusal(tanh_bench, kernel, BAD[defect])


@pytest.mark.parametrize("kernel", [*KERNELS, "dispatch"])
@pytest.mark.parametrize("defect", BAD_SECOND)
def test_a_bad_argument_of_the_second_norm_is_refused_by_name(bench_of: Callable[[str], Any], kernel: str, defect: str) -> None:
    expect_refusal(bench_of("norm_tanh_mul_add_norm_scale"), kernel, BAD_SECOND[defect])


def expect_refusal(bench: Any, kernel: str, defect: tuple[dict[str, Any], str, str, str]) -> None:
    changes, argument, found, accepted = defect
    call = bench.op.params_of if kernel == "dispatch" else bench.kernel(kernel)
    expected = rf"{bench.op.name}: argument {argument}: found .*{re.escape(found)}.*; accepted is .*{re.escape(accepted)}"
    for _ in range(2):  # the second time from what is remembered
        with pytest.raises(KernelArgumentError, match=expected):
            call(**(arguments(bench.op) | changes))


ACCEPTED: dict[str, dict[str, Any]] = {
    "x in wider rows": {"x": torch.ones(B, S, 3 * D, dtype=torch.bfloat16)[..., D : 2 * D]},
    "x token by token": {"x": torch.ones(S, B, D, dtype=torch.bfloat16).transpose(0, 1)},
    "x of one row for all": {"x": torch.ones(1, 1, D, dtype=torch.bfloat16).expand(B, S, D)},
    "no parameters": {"weight": None, "bias": None},
    "a weight without a bias": {"bias": None},
    "float32 parameters and gate": {name: torch.ones(D) for name in ("weight", "bias", "gate")},
    "a chunk view": {"gate": torch.ones(B, 4 * D).chunk(4, dim=-1)[1]},
    "a residual of one value": {"residual": torch.ones(1)},
    "a float32 residual of frames": {"residual": torch.ones(B, 3, 1, D)},
    "a residual of one sample": {"residual": torch.ones(1, S, D, dtype=torch.bfloat16)},
}


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_whatever_the_operator_defines_is_accepted(tanh_bench: Any, accepted: str) -> None:
    op = tanh_bench.op
    assert op.params_of(**(arguments(op) | ACCEPTED[accepted])).hidden == D


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_given_host_memory_refuses_it_instead_of_faulting(tanh_bench: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(KernelArgumentError, match="argument x: found device cpu; accepted is a CUDA device"):
        tanh_bench.kernel(name)(**arguments(tanh_bench.op))
