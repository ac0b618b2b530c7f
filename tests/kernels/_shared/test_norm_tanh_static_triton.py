"""The Triton launches of the norm_tanh ops compile for sm_90 without a GPU; on Z-Image's rows they spill next to nothing, move 16 bytes
at a time and leave room for the programs that keep the memory busy."""

from __future__ import annotations

import re
from typing import Any

import pytest

ONE, TWO = "norm_tanh_mul_add", "norm_tanh_mul_add_norm_scale"
# 1024 rows make the launch one of many rows, and are quick to make.
Z_IMAGE = {
    ONE: {"tokens": 1024, "hidden": 3840, "affine": True},
    TWO: {"tokens": 1024, "hidden": 3840, "affine": True, "affine2": True},
}
LAUNCHES = {
    f"{ONE}/fused_triton@1": 1, f"{ONE}/fused_triton@2": 1, f"{ONE}/fused_triton@3": 1, f"{ONE}/split_triton@1": 2,
    f"{TWO}/fused_triton@1": 1, f"{TWO}/fused_triton@2": 1, f"{TWO}/fused_triton@3": 1, f"{TWO}/split_triton@1": 3,
}  # fmt: skip
TUNED = ("fused_triton@2", "fused_triton@3")
STACK = {f"{TWO}/fused_triton@3": 8}
"""Bytes per thread; `most_registers` says what they cost."""
EDGES: dict[str, dict[str, Any]] = {
    "8192 in float32": {"tokens": 2, "hidden": 8192, "dtype": "float32", "norm": "layer"},
    "masked tail, strided tokens": {"tokens": 2, "hidden": 2056, "modulation": "token", "scale2": "token", "strided": True},
    "short rows of frames": {"hidden": 64, "tokens": 6, "modulation": "frame", "frames": 3, "dtype": "float16", "residual": "frame"},
    "8 divides the width": {"hidden": 3832, "modulation": "token", "residual": "batch", "residual_dtype": "float32"},
    "one value": {"tokens": 2, "hidden": 72, "modulation": "scalar", "residual": "scalar"},
    "float32 modulation, layer": {"modulation_dtype": "float32", "norm": "layer"},
    "few rows": {"tokens": 32},
}
REGISTERS = 65536
"""Of a multiprocessor."""


@pytest.fixture(scope="module")
def compiled(compile_launches: Any) -> Any:
    kernels = [f"{op}/{kernel}" for op in Z_IMAGE for kernel in TUNED] + [f"{ONE}/fused_triton@1"]
    wanted = [{"kernel": kernel, "case": "z_image", "params": Z_IMAGE[kernel.partition("/")[0]]} for kernel in kernels]
    wanted += [edge("one value"), edge("8 divides the width")]
    wanted += [
        {"kernel": f"{op}/{kernel}", "case": "odd rows", "params": params | {"tokens": 1025}}
        for op, params in Z_IMAGE.items()
        for kernel in TUNED
    ]
    defect = {"maxnreg": 40}
    wanted += [{"kernel": f"{TWO}/fused_triton@2", "case": "planted", "params": Z_IMAGE[TWO], "planted": defect}]
    return compile_launches(wanted)


def edge(name: str) -> dict[str, Any]:
    return {"kernel": f"{TWO}/fused_triton@2", "case": name, "params": Z_IMAGE[TWO] | EDGES[name]}


@pytest.fixture(scope="module")
def all_compiled(compile_launches: Any) -> Any:
    wanted = [{"kernel": kernel, "case": "z_image", "params": Z_IMAGE[kernel.partition("/")[0]]} for kernel in LAUNCHES]
    return compile_launches(wanted + [edge(name) for name in EDGES])


@pytest.mark.parametrize("kernel", TUNED)
@pytest.mark.parametrize("op", [ONE, TWO])
def test_the_tuned_launches_compile_and_spill_no_more_than_is_known(compiled: Any, op: str, kernel: str) -> None:
    spill_no_more_than_is_known(compiled, f"{op}/{kernel}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", LAUNCHES)
def test_every_launch_compiles_and_spills_no_more_than_is_known(all_compiled: Any, kernel: str) -> None:
    spill_no_more_than_is_known(all_compiled, kernel)


def spill_no_more_than_is_known(compiled: Any, kernel: str) -> None:
    launches = compiled.of(kernel, "z_image")
    assert len(launches) == LAUNCHES[kernel]
    for launch in launches:
        assert re.fullmatch("sm_90a?", launch["target"])
        assert launch["STACK"] <= STACK.get(kernel, 0)
        assert launch["LOCAL"] == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", EDGES)
def test_edge_cases_compile(all_compiled: Any, case: str) -> None:
    launch = all_compiled.one(f"{TWO}/fused_triton@2", case)
    assert launch["stores"]


@pytest.mark.parametrize("kernel", TUNED)
@pytest.mark.parametrize("op", [ONE, TWO])
def test_the_tuned_cut_of_z_images_row_moves_16_bytes_at_a_time(compiled: Any, op: str, kernel: str) -> None:
    launch = compiled.one(f"{op}/{kernel}", "z_image")
    assert all(access.endswith(".v4.b32") for access in launch["stores"] + launch["loads"])
    assert launch["SHARED"] <= 1024 + 256, "a few sums per row pass through shared memory, no tile does (1 KiB is the system's)"


def test_rows_whose_distance_8_divides_and_16_does_not_are_moved_16_bytes_at_a_time(compiled: Any) -> None:
    launch = compiled.one(f"{TWO}/fused_triton@2", "8 divides the width")
    assert all(access.endswith(".v4.b32") for access in launch["stores"] + launch["loads"])


@pytest.mark.parametrize("kernel", TUNED)
@pytest.mark.parametrize("op", [ONE, TWO])
def test_three_programs_of_two_rows_are_resident(compiled: Any, op: str, kernel: str) -> None:
    launch = compiled.one(f"{op}/{kernel}", "z_image")
    assert REGISTERS // (256 * launch["REG"]) >= 3


@pytest.mark.parametrize("op", [ONE, TWO])
def test_version_3_is_one_code_whether_16_divides_the_rows_or_not(compiled: Any, op: str) -> None:
    """The code that version 2 has where 16 does not divide them."""
    (even_2, odd_2), (even_3, odd_3) = (
        [compiled.one(f"{op}/{kernel}", case)["code"] for case in ("z_image", "odd rows")] for kernel in TUNED
    )
    assert even_3 == odd_3 == odd_2
    assert even_2 != odd_2


@pytest.mark.parametrize("kernel", TUNED)
def test_two_rows_share_the_tanh_of_their_gate(compiled: Any, kernel: str) -> None:
    """A thread holds 16 values of each of two rows, and asks for 16 exponentials, not 32; one row per program asks for one per value."""
    shared = compiled.one(f"{ONE}/{kernel}", "z_image")
    alone = compiled.one(f"{ONE}/fused_triton@1", "z_image")
    assert (shared["exponentials"], alone["exponentials"]) == (16, 32)


def test_spills_and_narrow_accesses_would_be_seen(compiled: Any) -> None:
    """The detectors above on planted defects: few registers, and tensors of one value."""
    planted = compiled.one(f"{TWO}/fused_triton@2", "planted")
    assert planted["STACK"] > 0 or planted["LOCAL"] > 0
    scalar = compiled.one(f"{TWO}/fused_triton@2", "one value")
    assert not all(load.endswith(".v4.b32") for load in scalar["loads"])
