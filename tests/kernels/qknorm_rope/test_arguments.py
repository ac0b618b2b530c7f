"""Arguments that no kernel may take are refused by name, with what came and what is accepted, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusebench.errors import KernelArgumentError

KERNELS = ("fused_triton@1", "fused_triton@2", "fused_triton@3", "fused_cuda@1", "split_triton@1")

TOKENS, HEADS, DIM = 4, 3, 64
Q = (TOKENS, HEADS, DIM)


def arguments() -> dict[str, Any]:
    """A call that every kernel accepts, on the CPU."""
    return {
        "q": torch.ones(Q, dtype=torch.bfloat16),
        "k": torch.ones(Q, dtype=torch.bfloat16),
        "q_weight": torch.ones(DIM, dtype=torch.bfloat16),
        "k_weight": torch.ones(DIM, dtype=torch.bfloat16),
        "cos_sin_cache": torch.ones(TOKENS, DIM),
        "positions": torch.arange(TOKENS),
    }


def every(tensor: torch.Tensor, step: int = 2) -> torch.Tensor:
    """`tensor`'s values in every `step`-th element of memory."""
    spread = tensor.new_zeros((*tensor.shape, step))
    spread[..., 0] = tensor
    return spread[..., 0]


def cast(name: str, dtype: torch.dtype) -> Callable[[dict[str, Any]], Any]:
    return lambda made: made[name].to(dtype)


# What is wrong: (argument, its value, what the message says came, what it says is accepted).
BAD: dict[str, tuple[str, Any, str, str]] = {
    "q of two dimensions": ("q", lambda a: a["q"].flatten(1), "[4, 192] in torch.bfloat16", "[N, heads, D] in bfloat16"),
    "q of four dimensions": ("q", lambda a: a["q"][None], "[1, 4, 3, 64]", "[N, heads, D]"),
    "q in float64": ("q", cast("q", torch.float64), "torch.float64", "bfloat16, float16 or float32"),
    "q of a head size between": ("q", lambda a: a["q"].new_ones(4, 3, 72), "[4, 3, 72]", "D one of 64, 80, 96, 128, 256"),
    "q with a gap between elements": ("q", lambda a: every(a["q"]), "strides (384, 128, 2)", "(192 or more, 64, 1)"),
    "q with a gap between heads": (
        "q",
        lambda a: a["q"].new_ones(4, 6, 64)[:, ::2],
        "strides (384, 128, 1)",
        "heads packed within a token",
    ),
    "q head by head": ("q", lambda a: a["q"].new_ones(3, 4, 64).transpose(0, 1), "strides (64, 256, 1)", "heads packed"),
    "q with all tokens in one place": ("q", lambda a: a["q"][:1].expand(Q), "strides (0, 64, 1)", "tokens in memory of their own"),
    "q with overlapping tokens": ("q", lambda a: a["q"].as_strided(Q, (64, 64, 1)), "strides (64, 64, 1)", "(192 or more, 64, 1)"),
    "k of two dimensions": ("k", lambda a: a["k"].flatten(1), "[4, 192]", "[4, kv_heads, 64]"),
    "k in another dtype": ("k", cast("k", torch.float16), "torch.float16", "in torch.bfloat16, like q"),
    "k with fewer tokens": ("k", lambda a: a["k"][:3], "[3, 3, 64]", "[4, kv_heads, 64]"),
    "k of another head size": ("k", lambda a: a["k"].new_ones(4, 3, 80), "[4, 3, 80]", "[4, kv_heads, 64]"),
    "k with a gap between elements": ("k", lambda a: every(a["k"]), "strides (384, 128, 2)", "(192 or more, 64, 1)"),
    "k elsewhere": ("k", lambda a: a["k"].to("meta"), "device meta", "cpu, like q"),
    "q_weight alone missing": ("q_weight", None, "None beside the other weight", "both weights or neither"),
    "k_weight alone missing": ("k_weight", None, "None beside the other weight", "both weights or neither"),
    "q_weight in another dtype": ("q_weight", cast("q_weight", torch.float32), "[64] in torch.float32", "[64] in torch.bfloat16"),
    "q_weight of another length": ("q_weight", lambda a: a["q_weight"][:32], "[32]", "contiguous [64]"),
    "q_weight per head": ("q_weight", lambda a: a["q_weight"].expand(3, 64), "[3, 64]", "contiguous [64]"),
    "k_weight with gaps": ("k_weight", lambda a: every(a["k_weight"]), "with strides (2,)", "contiguous [64]"),
    "k_weight elsewhere": ("k_weight", lambda a: a["k_weight"].to("meta"), "device meta", "cpu, like q"),
    "cache in another 16-bit dtype": ("cos_sin_cache", cast("cos_sin_cache", torch.float16), "torch.float16", "float32 or bfloat16"),
    "cache in float64": ("cos_sin_cache", cast("cos_sin_cache", torch.float64), "torch.float64", "float32 or bfloat16"),
    "cache of one dimension": ("cos_sin_cache", lambda a: a["cos_sin_cache"][0], "[64]", "contiguous [positions, R]"),
    "cache with gaps": ("cos_sin_cache", lambda a: a["cos_sin_cache"].new_ones(4, 80)[:, :64], "with strides (80, 1)", "contiguous"),
    "R odd": ("cos_sin_cache", lambda a: torch.ones(4, 63), "R = 63", "an even R from 2 to D = 64"),
    "R beyond D": ("cos_sin_cache", lambda a: torch.ones(4, 66), "R = 66", "an even R from 2 to D = 64"),
    "R zero": ("cos_sin_cache", lambda a: torch.ones(4, 0), "R = 0", "an even R from 2 to D = 64"),
    "cache elsewhere": ("cos_sin_cache", lambda a: a["cos_sin_cache"].to("meta"), "device meta", "cpu, like q"),
    "positions too few": ("positions", lambda a: a["positions"][:3], "[3]", "contiguous [4] in int32 or int64"),
    "positions per sample": ("positions", lambda a: a["positions"].view(2, 2), "[2, 2]", "contiguous [4]"),
    "positions in int16": ("positions", cast("positions", torch.int16), "torch.int16", "int32 or int64"),
    "positions in float32": ("positions", cast("positions", torch.float32), "torch.float32", "int32 or int64"),
    "positions with gaps": ("positions", lambda a: torch.arange(8)[::2], "with strides (2,)", "contiguous [4]"),
    "positions elsewhere": ("positions", lambda a: a["positions"].to("meta"), "device meta", "cpu, like q"),
    "layout unknown": ("layout", "gptj", "'gptj'", "'interleaved' or 'neox'"),
    "offset negative": ("position_offset", -1, "-1", "zero or more"),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("defect", BAD)
def test_a_bad_argument_is_refused_by_name_before_anything_is_written(collection: Any, name: str, defect: str) -> None:
    argument, value, found, accepted = BAD[defect]
    call = arguments()
    call[argument] = value(call) if callable(value) else value
    before = {key: tensor.clone() for key, tensor in call.items() if isinstance(tensor, torch.Tensor)}
    expected = rf"qknorm_rope: argument {argument}: found .*{re.escape(found)}.*; accepted is .*{re.escape(accepted)}"
    with pytest.raises(KernelArgumentError, match=expected):
        collection.kernel(f"qknorm_rope/{name}")(**call)
    for key, tensor in before.items():
        if tensor.device.type == "cpu":
            assert torch.equal(call[key], tensor), key


@pytest.mark.parametrize("defect", BAD)
def test_dispatch_refuses_what_the_kernels_refuse(op: Any, defect: str) -> None:
    argument, value, found, _ = BAD[defect]
    call = arguments()
    call[argument] = value(call) if callable(value) else value
    with pytest.raises(KernelArgumentError, match=rf"argument {argument}: found .*{re.escape(found)}"):
        op.params_of(**call)


ACCEPTED: dict[str, tuple[str, Any]] = {
    "q in a packed projection": ("q", lambda a: a["q"].new_ones(4, 9, 64)[:, :3]),
    "q off by an element": ("q", lambda a: a["q"].new_ones(4 * 3 * 64 + 1)[1:].view(Q)),
    "k of one head, whose head stride is never used": ("k", lambda a: a["k"].new_ones(1, 4, 64).transpose(0, 1)),
    "positions in int32": ("positions", cast("positions", torch.int32)),
    "cache in the activations' dtype": ("cos_sin_cache", cast("cos_sin_cache", torch.bfloat16)),
    "R smaller than D": ("cos_sin_cache", lambda a: torch.ones(4, 2)),
}


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_whatever_the_operator_defines_is_accepted(op: Any, accepted: str) -> None:
    argument, value = ACCEPTED[accepted]
    call = arguments()
    call[argument] = value(call)
    assert op.params_of(**call).head_dim == DIM


def test_one_token_may_have_any_token_stride(op: Any) -> None:
    one = torch.ones(DIM * HEADS, dtype=torch.bfloat16).as_strided((1, HEADS, DIM), (7, DIM, 1))
    call = arguments() | {"q": one, "k": one, "cos_sin_cache": torch.ones(1, DIM), "positions": torch.arange(1)}
    assert op.params_of(**call).tokens == 1


@pytest.mark.parametrize("name", ["fused_triton@1", "fused_triton@2", "fused_triton@3", "fused_cuda@1", "split_triton@1"])
def test_a_kernel_given_host_memory_refuses_it_instead_of_faulting(collection: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(KernelArgumentError, match="argument q: found device cpu; accepted is a CUDA device"):
        collection.kernel(f"qknorm_rope/{name}")(**arguments())


def test_a_specialisation_that_cuda_declines_is_refused_before_it_is_compiled(
    collection: Any, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    monkeypatch.setattr(module("op").Arguments, "require_gpu", lambda *_, **__: None)
    call = arguments() | {"cos_sin_cache": torch.ones(TOKENS, 4), "layout": "neox"}
    with pytest.raises(KernelArgumentError, match=r"fused_cuda@1: argument cos_sin_cache: rope_dim 4: .* multiple of 8 elements"):
        collection.kernel("qknorm_rope/fused_cuda@1")(**call)
