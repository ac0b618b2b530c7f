"""What compiles for GPUs that this machine lacks is the machine code that tiles and splits were chosen for."""

from __future__ import annotations

import re
from typing import Any

import pytest

WIDTHS = {"1.3B": 12, "5B": 24, "14B": 40}
"""Heads of 128 of the Wan models."""
TUNED, SPLIT = "qknorm_across_heads_rope/fused_triton@2", "qknorm_across_heads_rope/split_triton@1"
BFLOAT16, FLOAT32 = 0, 2
MULTIPROCESSORS = 132


@pytest.fixture(scope="module")
def compiled(compile_launches: Any) -> Any:
    shapes = {name: {"tokens": 2, "heads": heads, "head_dim": 128} for name, heads in WIDTHS.items()}
    wanted: list[dict[str, Any]] = [{"kernel": TUNED, "case": name, "params": params} for name, params in shapes.items()]
    wanted += [
        {"kernel": SPLIT, "case": "1.3B", "params": shapes["1.3B"]},
        {"kernel": TUNED, "case": "planted", "params": shapes["14B"], "planted": {"maxnreg": 32}},
        {"kernel": TUNED, "case": "seven heads", "params": {"tokens": 2, "heads": 7, "head_dim": 80}},
    ]
    return compile_launches(wanted)


@pytest.mark.parametrize("name", WIDTHS)
def test_the_tuned_launch_passes_over_a_token_once_with_16_bytes_a_thread(compiled: Any, name: str) -> None:
    launch = compiled.one(TUNED, name)
    vectors = 2 * WIDTHS[name] * 128 // 8 // (32 * launch["warps"])  # a thread's share of q and k
    assert launch["stores"] == ["st.global.v4.b32"] * vectors
    wide = [load for load in launch["loads"] if "v4.b32" in load]
    assert len(wide) >= 2 * vectors, "activations and weights"
    assert (launch["STACK"], launch["LOCAL"]) == (0, 0)


def test_the_split_chain_is_four_launches_without_spills(compiled: Any) -> None:
    launches = compiled.of(SPLIT, "1.3B")
    assert len(launches) == 4
    assert {(one["STACK"], one["LOCAL"]) for one in launches} == {(0, 0)}
    assert {store for one in launches for store in one["stores"]} == {"st.global.v4.b32"}


def test_a_width_that_fills_no_tile_compiles(compiled: Any) -> None:
    assert compiled.one(TUNED, "seven heads")["stores"]


def test_spills_would_be_seen(compiled: Any) -> None:
    launch = compiled.one(TUNED, "planted")
    assert launch["STACK"] > 0 or launch["LOCAL"] > 0


def source(module: Any, heads: int, head_dim: int = 128, *, dtype: int = BFLOAT16, rows: int = 9450, **changes: Any) -> Any:
    """The `nvrtc.KernelSource` that a call on an H200 gets."""
    cuda = module("fused_cuda")
    split = cuda.split_token(heads * head_dim, head_dim, 4 if dtype == FLOAT32 else 2, rows, MULTIPROCESSORS)
    given = {"cache_dtype": FLOAT32, "affine": True, "aligned": True, "cache_aligned": True, "split": split} | changes
    return cuda.specialise(heads=heads, head_dim=head_dim, dtype=dtype, **given)


@pytest.mark.parametrize("name", WIDTHS)
def test_cuda_moves_16_bytes_in_registers_alone_and_meets_at_one_barrier(module: Any, cuda_code: Any, name: str) -> None:
    made = source(module, WIDTHS[name])
    used = cuda_code.resources(made)
    assert (used["STACK"], used["LOCAL"]) == (0, 0)
    assert used["REG"] <= 128, "two blocks of 256 threads fit a multiprocessor's 65536 registers"
    assert dict(made.macros)["PREFETCH"] == 1
    machine_code = cuda_code.sass(made)
    assert {access.partition(".128")[1] for access in re.findall(r"(?:STG|LDG)\.E\S*", machine_code)} == {".128"}
    assert len(re.findall(r"\bBAR\.", machine_code)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 13, "head_dim": 80},
        {"heads": 3, "head_dim": 96, "dtype": FLOAT32},
        {"heads": 1, "head_dim": 64, "cache_dtype": BFLOAT16, "rows": 5},
        {"heads": 6, "head_dim": 256, "aligned": False, "cache_aligned": False},
        {"heads": 64, "affine": False},
    ],
    ids=str,
)
def test_other_specialisations_compile_without_spills(module: Any, cuda_code: Any, changes: dict[str, Any]) -> None:
    used = cuda_code.resources(source(module, **changes))
    assert (used["STACK"], used["LOCAL"]) == (0, 0)


def test_a_lane_with_several_columns_of_a_head_prefetches_nothing(module: Any, cuda_code: Any) -> None:
    """Its cosines and sines take the registers; with both it would spill."""
    made = source(module, 13, 80)
    assert dict(made.macros)["PREFETCH"] == 0
    split = module("fused_cuda").RowSplit(warps=2, min_blocks=2, prefetch=True)
    assert cuda_code.resources(source(module, 13, 80, split=split))["STACK"] > 0


PUT_ASIDE = 48
"""Bytes of a thread."""


def any_heads(module: Any, heads: int, kv_heads: int, head_dim: int, *, dtype: int = BFLOAT16, rows: int = 9450, **changes: Any) -> Any:
    """The source of `fused_cuda@2` that a call on an H200 gets; `changes` to the split or to the macros."""
    cuda = module("fused_cuda_v2")
    item, affine = (4 if dtype == FLOAT32 else 2), changes.pop("affine", True)
    split = cuda.split_heads(heads + kv_heads, head_dim * item // 16, item, rows, MULTIPROCESSORS)
    split = split._replace(**{name: changes.pop(name) for name in split._fields if name in changes})
    given = {"cache_dtype": FLOAT32, "affine": affine, "aligned": True, "cache_aligned": True, "samples": True, "split": split} | changes
    return cuda.specialise(heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, **given)


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ((40, 40, 128), {}),
        ((40, 8, 128), {"rows": 75600}),
        ((16, 4, 80), {"rows": 100}),
        ((32, 32, 256), {"dtype": FLOAT32}),
        ((64, 8, 80), {"affine": False}),
        ((8, 1, 64), {"samples": False}),
    ],
    ids=str,
)
def test_heads_of_any_number_stay_in_registers_and_move_16_bytes(module: Any, cuda_code: Any, shape: Any, changes: Any) -> None:
    """Nothing is masked but the last pass, and nothing but cosines of float32 pairs is narrower than 16 bytes. Lanes with eight vectors
    may put a few values aside: in the measurements fewer blocks, with more registers, were slower."""
    made = any_heads(module, *shape, **changes)
    used = cuda_code.resources(made)
    assert used["LOCAL"] == 0
    assert used["STACK"] <= (PUT_ASIDE if dict(made.macros)["MIN_BLOCKS"] * dict(made.macros)["THREADS"] > 900 else 0)
    machine_code = cuda_code.sass(made)
    assert set(re.findall(r"STG\.E\S*", machine_code)) == {"STG.E.128"}
    narrow = {load for load in re.findall(r"LDG\.E\S*", machine_code) if ".128" not in load}
    assert narrow <= {"LDG.E.64.CONSTANT"}
    assert len(re.findall(r"\bBAR\.", machine_code)) == (1 if dict(made.macros)["WARPS"] > 1 else 0)


def test_narrow_accesses_and_spills_of_any_heads_would_be_seen(module: Any, cuda_code: Any) -> None:
    machine_code = cuda_code.sass(any_heads(module, 16, 4, 80, aligned=False))
    assert "STG.E.U16" in machine_code
    assert cuda_code.resources(any_heads(module, 40, 8, 128, min_blocks=16))["STACK"] > PUT_ASIDE


@pytest.mark.parametrize(
    ("heads", "vectors", "rows", "expected"),
    [
        pytest.param(80, 16, 75600, (5, 1), id="80 heads of 128: eight vectors to a lane, none idle"),
        pytest.param(80, 16, 200, (20, 1), id="few tokens: two vectors to a lane"),
        pytest.param(9, 8, 14268, (1, 4), id="72 vectors: a warp, four tokens to a block"),
    ],
)
def test_a_token_gets_the_warps_that_its_vectors_fill(module: Any, heads: int, vectors: int, rows: int, expected: tuple[int, int]) -> None:
    split = module("fused_cuda_v2").split_heads(heads, vectors, 2, rows, MULTIPROCESSORS)
    assert (split.warps, split.together) == expected


@pytest.mark.parametrize("vectors", [8, 10, 12, 16, 32])
@pytest.mark.parametrize("item_size", [2, 4])
def test_every_split_fits_a_multiprocessor(module: Any, vectors: int, item_size: int) -> None:
    cuda = module("fused_cuda_v2")
    for heads in range(2, 129):
        split = cuda.split_heads(heads, vectors, item_size, 9450, MULTIPROCESSORS)
        threads = 32 * split.warps * split.together
        assert threads <= 1024
        assert split.together == 1 or split.warps == 1
        assert threads * split.min_blocks <= 2048
        assert split.min_blocks <= 32
        assert threads // 32 * split.min_blocks >= 20 or split.min_blocks == 1, (heads, split)
