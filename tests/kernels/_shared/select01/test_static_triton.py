"""The select01 launches compile for sm_90 without a GPU: what version 2 saves in registers and loads, and how wide they are."""

from __future__ import annotations

from typing import Any

import pytest

PLAIN, RESIDUAL = "norm_scale_shift_gate_select01", "residual_norm_scale_shift_gate_select01"
OPS = (PLAIN, RESIDUAL)
VERSIONS = ("fused_triton@1", "fused_triton@2")
CASES: dict[str, dict[str, Any]] = {
    "affine": {"hidden": 3072, "affine": True, "tokens": 4096},
    "plain": {"hidden": 3072, "tokens": 4096},
    "short": {"hidden": 512, "index_dtype": "bool"},
    "float32 rows": {"hidden": 3072, "affine": True, "modulation_dtype": "float32", "index_dtype": "int64"},
    "longest": {"hidden": 8192, "dtype": "float32", "affine": True},
    "8 divides the width": {"hidden": 3032},
    "masked, strided": {"hidden": 1032, "strided": True},
    "one token": {"hidden": 3072, "batch": 1, "tokens": 1},
    "affine, few": {"hidden": 3072, "affine": True},
}
PAIRED = ("affine", "plain")
"""The cases that all fused kernels are compiled for; the others are version 2's without a residual."""
REGISTERS = 65536
"""Of a multiprocessor."""


@pytest.fixture(scope="module")
def compiled(compile_launches: Any) -> Any:
    sizes = {"batch": 2, "tokens": 4}
    wanted = [{"kernel": f"{op}/{v}", "case": name, "params": sizes | CASES[name]} for op in OPS for v in VERSIONS for name in PAIRED]
    rest = [name for name in CASES if name not in PAIRED]
    wanted += [{"kernel": f"{PLAIN}/fused_triton@2", "case": name, "params": sizes | CASES[name]} for name in rest]
    defect = {"kernel": f"{RESIDUAL}/fused_triton@2", "params": sizes | CASES["affine"]}
    wanted.append(defect | {"case": "planted", "planted": {"maxnreg": 32, "enable_fp_fusion": True}})
    return compile_launches(wanted)


FAST = [(f"{op}/{version}", case) for op in OPS for version in VERSIONS for case in PAIRED]
FAST += [(f"{PLAIN}/fused_triton@2", "short"), (f"{PLAIN}/fused_triton@2", "float32 rows")]
FAST += [(f"{PLAIN}/fused_triton@2", "8 divides the width")]


@pytest.mark.parametrize(("kernel", "case"), FAST)
def test_what_models_run_moves_16_bytes_at_a_time_and_spills_nothing(compiled: Any, kernel: str, case: str) -> None:
    launch = compiled.one(kernel, case)
    assert set(launch["stores"]) == {"st.global.v4.b32"}
    narrow = [load for load in launch["loads"] if not load.endswith(".v4.b32")]
    rows = 2 if case == "short" else 1
    assert len(narrow) == rows, f"one index per row, found {narrow}"
    assert (launch["STACK"], launch["LOCAL"]) == (0, 0)
    assert launch["SHARED"] <= 1024 + 128, "a few sums per row pass through shared memory, no tile does (1 KiB is the system's)"


@pytest.mark.parametrize("case", ["longest", "masked, strided", "one token"])
def test_edge_cases_compile(compiled: Any, case: str) -> None:
    assert compiled.one(f"{PLAIN}/fused_triton@2", case)["stores"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", PAIRED)
def test_selecting_the_address_saves_registers_and_loads_at_the_same_tile(compiled: Any, op: str, case: str) -> None:
    """Published for the affine norm without a residual: 96 registers a thread become 72. With a residual version 2 stores v and the gate
    after the norm, which holds them until then."""
    both, one = (compiled.one(f"{op}/{version}", case) for version in VERSIONS)
    assert both["warps"] == one["warps"]
    # Six rows against three; each of 128 threads holds four vectors of a block of 4096.
    assert len(both["loads"]) - len(one["loads"]) == 3 * 4
    if op == PLAIN:
        assert one["REG"] <= 72
        assert both["REG"] >= one["REG"] + 20
    else:
        assert one["REG"] <= 128


@pytest.mark.parametrize("op", OPS)
def test_enough_rows_of_version_two_are_resident(compiled: Any, op: str) -> None:
    """By Little's law 4.8 TB/s over 132 multiprocessors at 0.7 us want 25 KB on their way to each: four rows of 6 KB, or two of
    a residual's three inputs."""
    launch = compiled.one(f"{op}/fused_triton@2", "affine")
    allocated = -(-launch["REG"] // 8) * 8 * 32 * launch["warps"]
    assert REGISTERS // allocated >= (7 if op == PLAIN else 4)


def test_where_rows_are_few_the_lean_selection_stores_after_the_norm(compiled: Any) -> None:
    """All loads come first, and no store is between them and the sums."""
    few, many = (compiled.one(f"{PLAIN}/fused_triton@2", case) for case in ("affine, few", "affine"))
    assert few["REG"] > many["REG"], "the gate is held until the norm is done"
    assert few["loads"] == many["loads"]
    assert few["stores"] == many["stores"]


def test_gate_and_residual_are_not_contracted(compiled: Any) -> None:
    """What makes v equal to torch's float32 chain."""
    assert compiled.one(f"{RESIDUAL}/fused_triton@2", "affine")["fused"] == 0


def test_spills_contraction_and_narrow_accesses_would_be_seen(compiled: Any) -> None:
    """The detectors above on planted defects: few registers, contraction, and rows that start anywhere."""
    planted = compiled.one(f"{RESIDUAL}/fused_triton@2", "planted")
    assert planted["STACK"] > 0 or planted["LOCAL"] > 0
    assert planted["fused"] > 0
    masked = compiled.one(f"{PLAIN}/fused_triton@2", "masked, strided")
    assert [load for load in masked["loads"] if not load.endswith(".v4.b32")][1:]
