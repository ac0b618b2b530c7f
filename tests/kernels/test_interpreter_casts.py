"""The interpreter rounds float32 to bfloat16 as a GPU does once `install_exact_casts` ran, and is shown not to without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from fusebench.accuracy.interpreter import install_exact_casts


@pytest.fixture(autouse=True)
def exact_casts() -> Iterator[None]:
    before = InterpreterBuilder.cast_impl
    install_exact_casts()
    yield
    InterpreterBuilder.cast_impl = before


def patterns() -> np.ndarray:
    """Every bfloat16 value, at its own bits, just above, just below half way to the next, at the tie, above it, and just below the next.

    That holds all ties, NaN, both infinities, subnormals, zeros of both signs, and finite values that round to infinity.
    """
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    return (upper[:, None] | lower).reshape(-1)


def cast(values: np.ndarray) -> np.ndarray:
    return InterpreterBuilder().cast_impl(TensorHandle(values, tl.float32), tl.bfloat16).data


def test_every_value_and_tie_is_rounded_to_nearest_even() -> None:
    bits = patterns()
    got = cast(bits.view(np.float32))
    # In integers: add half a unit less one, plus one where the last kept bit is odd; a carry moves on to the exponent.
    due = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    number = ~np.isnan(bits.view(np.float32))
    np.testing.assert_array_equal(got[number], due[number])
    assert torch.from_numpy(got[~number].copy()).view(torch.bfloat16).isnan().all()


def test_the_cast_is_torchs_own() -> None:
    values = patterns().view(np.float32)
    got, due = torch.from_numpy(cast(values).copy()).view(torch.bfloat16), torch.from_numpy(values.copy()).to(torch.bfloat16)
    torch.testing.assert_close(got, due, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("value", "due"),
    [
        (0x3F808000, 0x3F80),  # 1 + 2^-8, a tie: to the even neighbour below
        (0x3F818000, 0x3F82),  # a tie: to the even neighbour above
        (0xBF818000, 0xBF82),
        (0x00008000, 0x0000),  # half the least subnormal
        (0x00018000, 0x0002),
        (0x007FFFFF, 0x0080),  # the greatest subnormal becomes normal
        (0x7F7F7FFF, 0x7F7F),
        (0x7F7F8000, 0x7F80),  # from here on: infinity
        (0xFF7FFFFF, 0xFF80),
        (0x7F800000, 0x7F80),
        (0x80000000, 0x8000),
    ],
)
def test_rounding_at_the_edges(value: int, due: int) -> None:
    assert int(cast(np.array([value], dtype=np.uint32).view(np.float32))[0]) == due


def test_blocks_of_any_shape_keep_it() -> None:
    for values in (np.float32([1.00390625]).reshape(()), np.ones((2, 3, 4), dtype=np.float32), np.ones((4, 6), dtype=np.float32)[:, ::2]):
        got = cast(values)
        assert got.shape == values.shape
        assert got.dtype == np.uint16


def test_every_bfloat16_value_is_widened_exactly_subnormals_included() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    got = InterpreterBuilder().cast_impl(TensorHandle(bits, tl.bfloat16), tl.float32).data
    np.testing.assert_array_equal(got.view(np.uint32), bits.astype(np.uint32) << 16)


def test_casts_between_other_dtypes_are_left_alone() -> None:
    builder = InterpreterBuilder()
    bits = np.arange(1 << 16, dtype=np.uint16)
    normal = (bits & 0x7F80) != 0  # subnormals aside, which the interpreter widens in its own way
    widened = builder.cast_impl(TensorHandle(bits[normal], tl.bfloat16), tl.float32).data
    assert np.array_equal(widened.view(np.uint32) >> 16, bits[normal])
    assert builder.cast_impl(TensorHandle(np.float32([1.5, -2.5]), tl.float32), tl.int32).data.tolist() == [1, -2]
    with np.errstate(over="ignore"):
        assert builder.cast_impl(TensorHandle(np.float32([65520.0, 1.0]), tl.float32), tl.float16).data.tolist() == [np.inf, 1.0]


def test_installing_twice_changes_nothing() -> None:
    once = InterpreterBuilder.cast_impl
    install_exact_casts()
    assert InterpreterBuilder.cast_impl is once


PROGRAM = """
import json, sys
import torch, triton, triton.language as tl

@triton.jit
def store(source, target, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    tl.store(target + offsets, tl.load(source + offsets).to(target.dtype.element_ty))

if sys.argv[1] == "exact":
    from fusebench.accuracy.interpreter import install_exact_casts
    install_exact_casts()
source = torch.randn(4096, generator=torch.Generator().manual_seed(0))
target = torch.empty(4096, dtype=torch.bfloat16)
store[(1,)](source, target, SIZE=4096)
outward = ((target.float() - source) * source.sign()).double()
json.dump({"share": float(outward.sum() / outward.abs().sum()), "equal": torch.equal(target, source.bfloat16())}, sys.stdout)
"""


def run_program(mode: str, tmp_path: Path) -> dict[str, Any]:
    program = tmp_path / "program.py"  # Triton reads a kernel's source from its file
    program.write_text(PROGRAM)
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, program, mode], env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_the_interpreters_own_cast_is_biased_toward_zero_and_the_exact_one_is_not(tmp_path: Path) -> None:
    own, exact = run_program("own", tmp_path), run_program("exact", tmp_path)
    assert own["share"] < -0.9, "truncation moves every value toward zero; once Triton rounds, install_exact_casts can go"
    assert abs(exact["share"]) < 0.1
    assert exact["equal"]
