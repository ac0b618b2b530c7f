"""Arguments that no kernel may take are refused by name, with what came and what is accepted, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusebench.errors import KernelArgumentError

KERNELS = ("fused_triton@1", "fused_triton@2", "split_triton@1")

TOKENS, HEADS, DIM = 4, 3, 64
Q = (TOKENS, HEADS, DIM)


def arguments() -> dict[str, Any]:
    """A call that every kernel accepts, on the CPU."""
    return {
        "q": torch.ones(Q, dtype=torch.bfloat16),
        "k": torch.ones(Q, dtype=torch.bfloat16),
        "cos_cache": torch.ones(TOKENS, DIM),
        "sin_cache": None,
        "positions": torch.arange(TOKENS),
    }


def every(tensor: torch.Tensor, step: int = 2) -> torch.Tensor:
    """`tensor`'s values in every `step`-th element of memory."""
    spread = tensor.new_zeros((*tensor.shape, step))
    spread[..., 0] = tensor
    return spread[..., 0]


def cast(name: str, dtype: torch.dtype) -> Callable[[dict[str, Any]], Any]:
    return lambda made: made[name].to(dtype)


def flat(*names: str) -> dict[str, Any]:
    """These arguments with two dimensions."""
    return {name: torch.ones(TOKENS, HEADS * DIM, dtype=torch.bfloat16) for name in names}


PACKED = "heads packed within a token"

# What is wrong: (argument, its value, other changes, what the message says came, what it says is accepted).
BAD: dict[str, tuple[str, Any, dict[str, Any], str, str]] = {
    "q of one dimension": ("q", lambda a: a["q"].flatten(), {}, "[768]", "[N, heads * D], [N, heads, D] or [B, T, heads, D]"),
    "q in float64": ("q", cast("q", torch.float64), {}, "torch.float64", "bfloat16, float16 or float32"),
    "q of a head size between": ("q", lambda a: a["q"].new_ones(4, 3, 72), {}, "[4, 3, 72]", "D one of 64, 80, 96, 128, 256, 320"),
    "q with a gap between elements": ("q", lambda a: every(a["q"]), {}, "strides (384, 128, 2)", PACKED),
    "q with a gap between heads": ("q", lambda a: a["q"].new_ones(4, 6, 64)[:, ::2], {}, "strides (384, 128, 1)", PACKED),
    "q with all tokens in one place": ("q", lambda a: a["q"][:1].expand(Q), {}, "strides (0, 64, 1)", "tokens in memory of their own"),
    "q with overlapping tokens": ("q", lambda a: a["q"].as_strided(Q, (64, 64, 1)), {}, "strides (64, 64, 1)", PACKED),
    "q with overlapping samples": (
        "q",
        lambda a: torch.ones(999, dtype=torch.bfloat16).as_strided((2, 2, 2, 64), (64, 192, 64, 1)),
        {"k": None},
        "strides (64, 192, 64, 1)",
        "tokens in memory of their own",
    ),
    "q flat without head_dim": (
        "head_dim",
        0,
        flat("q", "k"),
        "0",
        "one of 64, 80, 96, 128, 256, 320: q of two dimensions does not show it",
    ),
    "q flat of no whole heads": ("q", lambda a: torch.ones(4, 200, dtype=torch.bfloat16), {"head_dim": 64}, "[4, 200]", "[4, heads * 64]"),
    "head_dim of another size": ("head_dim", 128, {}, "128", "64, q's last dimension, or 0"),
    "k of another rank": ("k", lambda a: a["k"].flatten(1), {}, "[4, 192]", "[4, kv_heads, 64] in torch.bfloat16, like q, or None"),
    "k in another dtype": ("k", cast("k", torch.float16), {}, "torch.float16", "in torch.bfloat16, like q"),
    "k with fewer tokens": ("k", lambda a: a["k"][:3], {}, "[3, 3, 64]", "[4, kv_heads, 64]"),
    "k of another head size": ("k", lambda a: a["k"].new_ones(4, 3, 80), {}, "[4, 3, 80]", "[4, heads, 64]"),
    "k with a gap between elements": ("k", lambda a: every(a["k"]), {}, "strides (384, 128, 2)", PACKED),
    "k elsewhere": ("k", lambda a: a["k"].to("meta"), {}, "device meta", "cpu, like q"),
    "cache in another 16-bit dtype": ("cos_cache", cast("cos_cache", torch.float16), {}, "torch.float16", "bfloat16 or float32"),
    "cache of one dimension": ("cos_cache", lambda a: a["cos_cache"][0], {}, "[64]", "contiguous [positions, R]"),
    "cache with gaps": ("cos_cache", lambda a: a["cos_cache"].new_ones(4, 80)[:, :64], {}, "with strides (80, 1)", "contiguous"),
    "R odd": ("cos_cache", torch.ones(4, 63), {}, "R = 63", "an even R from 2 to D = 64"),
    "R beyond D": ("cos_cache", torch.ones(4, 66), {}, "R = 66", "an even R from 2 to D = 64"),
    "R zero": ("cos_cache", torch.ones(4, 0), {}, "R = 0", "an even R from 2 to D = 64"),
    "R beyond D in separate caches": ("cos_cache", torch.ones(4, 64), {"sin_cache": torch.ones(4, 64)}, "R = 128", "in [positions, R/2]"),
    "cache elsewhere": ("cos_cache", lambda a: a["cos_cache"].to("meta"), {}, "device meta", "cpu, like q"),
    "cache too short for the tokens": ("cos_cache", torch.ones(3, 64), {"positions": None}, "3 positions", "at least 4"),
    "cache too short for the offset": (
        "cos_cache",
        torch.ones(5, 64),
        {"positions": None, "position_offset": 2},
        "5 positions",
        "at least 6",
    ),
    "sines of another size": ("sin_cache", torch.ones(4, 16), {"cos_cache": torch.ones(4, 32)}, "[4, 16]", "contiguous [4, 32]"),
    "sines in another dtype": (
        "sin_cache",
        torch.ones(4, 32, dtype=torch.bfloat16),
        {"cos_cache": torch.ones(4, 32)},
        "torch.bfloat16",
        "torch.float32, like cos_cache, or None",
    ),
    "sines with gaps": ("sin_cache", torch.ones(4, 64)[:, ::2], {"cos_cache": torch.ones(4, 32)}, "with strides (64, 2)", "contiguous"),
    "sines elsewhere": ("sin_cache", torch.ones(4, 32, device="meta"), {"cos_cache": torch.ones(4, 32)}, "device meta", "cpu, like q"),
    "positions too few": ("positions", lambda a: a["positions"][:3], {}, "[3]", "contiguous [4] in int32 or int64, or None"),
    "positions per sample": ("positions", lambda a: a["positions"].view(2, 2), {}, "[2, 2]", "contiguous [4]"),
    "positions in float32": ("positions", cast("positions", torch.float32), {}, "torch.float32", "int32 or int64"),
    "positions with gaps": ("positions", torch.arange(8)[::2], {}, "with strides (2,)", "contiguous [4]"),
    "positions elsewhere": ("positions", lambda a: a["positions"].to("meta"), {}, "device meta", "cpu, like q"),
    "layout unknown": ("layout", "gptj", {}, "'gptj'", "'interleaved' or 'neox'"),
    "offset negative": ("position_offset", -1, {}, "-1", "zero or more"),
}


def bad_call(defect: str) -> dict[str, Any]:
    argument, value, changes, _, _ = BAD[defect]
    call = arguments() | changes
    call[argument] = value(call) if callable(value) else value
    return call


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("defect", BAD)
def test_a_bad_argument_is_refused_by_name_before_anything_is_written(collection: Any, name: str, defect: str) -> None:
    argument, _, _, found, accepted = BAD[defect]
    call = bad_call(defect)
    before = {key: tensor.clone() for key, tensor in call.items() if isinstance(tensor, torch.Tensor)}
    expected = rf"rotary_embedding: argument {argument}: found .*{re.escape(found)}.*; accepted is .*{re.escape(accepted)}"
    with pytest.raises(KernelArgumentError, match=expected):
        collection.kernel(f"rotary_embedding/{name}")(**call)
    for key, tensor in before.items():
        if tensor.device.type == "cpu":
            assert torch.equal(call[key], tensor), key


@pytest.mark.parametrize("defect", BAD)
def test_dispatch_refuses_what_the_kernels_refuse(op: Any, defect: str) -> None:
    argument, _, _, found, _ = BAD[defect]
    with pytest.raises(KernelArgumentError, match=rf"argument {argument}: found .*{re.escape(found)}"):
        op.params_of(**bad_call(defect))


ACCEPTED: dict[str, dict[str, Any]] = {
    "q in a packed projection": {"q": torch.ones(4, 9, 64, dtype=torch.bfloat16)[:, :3]},
    "q off by an element": {"q": torch.ones(4 * 3 * 64 + 1, dtype=torch.bfloat16)[1:].view(Q)},
    "k of one head, whose head stride is never used": {"k": torch.ones(1, 4, 64, dtype=torch.bfloat16).transpose(0, 1)},
    "no k": {"k": None},
    "two dimensions": flat("q", "k") | {"head_dim": 64},
    "samples inside tokens": {"q": torch.ones(2, 2, 3, 64, dtype=torch.bfloat16).transpose(0, 1), "k": None},
    "a part of longer samples": {"q": torch.ones(2, 5, 3, 64, dtype=torch.bfloat16)[:, 3:], "k": None},
    "one token at any stride": {
        "q": torch.ones(192, dtype=torch.bfloat16).as_strided((1, 3, 64), (7, 64, 1)),
        "k": None,
        "positions": torch.arange(1),
    },
    "caches of their own": {"cos_cache": torch.ones(4, 32), "sin_cache": torch.ones(4, 32)},
    "cache in the activations' dtype": {"cos_cache": torch.ones(4, 64, dtype=torch.bfloat16)},
    "R smaller than D": {"cos_cache": torch.ones(4, 2)},
    "positions in int32": {"positions": torch.arange(4, dtype=torch.int32)},
    "no positions": {"positions": None},
}


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_whatever_the_operator_defines_is_accepted(op: Any, accepted: str) -> None:
    assert op.params_of(**(arguments() | ACCEPTED[accepted])).head_dim == DIM


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_given_host_memory_refuses_it_instead_of_faulting(collection: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(KernelArgumentError, match="argument q: found device cpu; accepted is a CUDA device"):
        collection.kernel(f"rotary_embedding/{name}")(**arguments())
