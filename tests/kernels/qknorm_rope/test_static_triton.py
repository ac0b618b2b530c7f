"""The Triton launches compile for GPUs that this machine lacks, and the tuned one is the machine code that its tile was chosen for."""

from __future__ import annotations

from typing import Any

import pytest

FLUX = {"tokens": 2, "heads": 24, "head_dim": 128, "layout": "interleaved"}
ARCHITECTURES = [80, 90, 100]
TRITON = {"qknorm_rope/fused_triton@1": 1, "qknorm_rope/fused_triton@2": 1, "qknorm_rope/split_triton@1": 2}
"""Kernels and their launches."""

EDGES: dict[str, dict[str, Any]] = {
    "neox, D 80, R 32, packed": {"layout": "neox", "head_dim": 80, "rope_dim": 32, "packed": True, "affine": False, "mode": "round_norm"},
    "neox, a single pair": {"layout": "neox", "rope_dim": 2, "position_dtype": "int32", "position_offset": 1},
    "neox, two pairs": {"layout": "neox", "rope_dim": 4},
    "R/2 odd, float16": {"head_dim": 96, "rope_dim": 66, "dtype": "float16", "cache_dtype": "activation"},
    "D 256 float32": {"head_dim": 256, "dtype": "float32", "kv_heads": 1},
}


NEOX: dict[str, dict[str, Any]] = {"neox": {}, "neox, R 64": {"rope_dim": 64}}


NEEDED = ("neox, a single pair", "neox, two pairs")
"""The edges that other tests look at."""


@pytest.fixture(scope="module")
def compiled(compile_launches: Any) -> Any:
    wanted = [{"kernel": kernel, "case": "flux", "params": FLUX} for kernel in TRITON]
    wanted += [
        {"kernel": "qknorm_rope/fused_triton@2", "case": name, "params": FLUX | changes, "capabilities": [90]}
        for name, changes in EDGES.items()
        if name in NEEDED
    ]
    wanted += [
        {"kernel": kernel, "case": name, "params": FLUX | {"layout": "neox"} | changes, "capabilities": [90]}
        for kernel in ("qknorm_rope/fused_triton@2", "qknorm_rope/split_triton@1")
        for name, changes in NEOX.items()
    ]
    defect = {"maxnreg": 32, "enable_fp_fusion": True}
    wanted += [{"kernel": "qknorm_rope/fused_triton@2", "case": "planted", "params": FLUX, "capabilities": [90], "planted": defect}]
    return compile_launches(wanted)


@pytest.fixture(scope="module")
def all_compiled(compile_launches: Any) -> Any:
    wanted = [{"kernel": kernel, "case": "flux", "params": FLUX, "capabilities": ARCHITECTURES} for kernel in TRITON]
    return compile_launches(
        wanted + [{"kernel": "qknorm_rope/fused_triton@2", "case": name, "params": FLUX | EDGES[name]} for name in EDGES]
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("kernel", TRITON)
def test_every_launch_compiles_for_every_generation(all_compiled: Any, kernel: str, capability: int) -> None:
    launches = all_compiled.of(kernel, "flux", capability)
    assert len(launches) == TRITON[kernel]
    assert {launch["target"] for launch in launches} == {f"sm_{capability}"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", EDGES)
def test_edge_cases_compile(all_compiled: Any, case: str) -> None:
    launch = all_compiled.one("qknorm_rope/fused_triton@2", case)
    assert launch["stores"]


def test_the_tuned_tile_moves_16_bytes_at_a_time_and_spills_nothing(compiled: Any) -> None:
    in_registers_alone(compiled.one("qknorm_rope/fused_triton@2", "flux"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_the_tuned_tile_moves_16_bytes_at_a_time_and_spills_nothing_on_every_generation(all_compiled: Any, capability: int) -> None:
    in_registers_alone(all_compiled.one("qknorm_rope/fused_triton@2", "flux", capability))


def in_registers_alone(launch: dict[str, Any]) -> None:
    # Eight heads of 128 bfloat16 on one warp are 2 KiB: four vectors of 16 bytes a lane, once for q's branch and once for k's.
    assert launch["stores"] == ["st.global.v4.b32"] * 8
    assert launch["loads"].count("ld.global.v4.b32") >= 8
    assert (launch["STACK"], launch["LOCAL"]) == (0, 0)
    assert launch["SHARED"] == 0, "one warp exchanges through shuffles"


def test_the_tuned_tile_spills_nothing_in_the_other_layout(compiled: Any) -> None:
    launch = compiled.one("qknorm_rope/fused_triton@2", "neox")
    assert (launch["STACK"], launch["LOCAL"]) == (0, 0)
    assert set(launch["stores"]) == {"st.global.v4.b32"}


def test_neox_halves_of_an_odd_number_of_16_bit_values_are_stored_with_the_head_16_bytes_at_a_time(compiled: Any) -> None:
    launch = compiled.one("qknorm_rope/fused_triton@2", "neox, a single pair")
    assert set(launch["stores"]) == {"st.global.v4.b32"}
    assert (launch["STACK"], launch["LOCAL"]) == (0, 0)


def test_products_and_sums_are_not_contracted(compiled: Any) -> None:
    """What the bitwise contract rests on: both launches of the split chain and the fused one round every product."""
    for kernel in ("qknorm_rope/fused_triton@2", "qknorm_rope/split_triton@1"):
        for launch in compiled.of(kernel, "flux"):
            assert launch["fused"] == 0, kernel


def order_of_sums(compiled: Any, kernel: str, case: str) -> list[Any]:
    (reductions,) = [launch["reductions"] for launch in compiled.of(kernel, case) if launch["reductions"]]
    return reductions


@pytest.mark.parametrize("case", ["flux", "neox"])
def test_the_fused_launch_adds_up_a_row_in_the_order_of_the_split_norm(compiled: Any, case: str) -> None:
    """The other half of what the bitwise contract rests on, which the interpreter cannot show: NumPy sums in one order."""
    assert order_of_sums(compiled, "qknorm_rope/fused_triton@2", case) == order_of_sums(compiled, "qknorm_rope/split_triton@1", case)


def test_partly_rotated_neox_rows_are_added_up_in_another_order_and_promise_no_bits(compiled: Any, collection: Any, op: Any) -> None:
    """Should the two orders become one, the promise can be widened."""
    assert order_of_sums(compiled, "qknorm_rope/fused_triton@2", "neox, R 64") != order_of_sums(
        compiled, "qknorm_rope/split_triton@1", "neox, R 64"
    )
    params = op.parse_params(FLUX | {"layout": "neox", "rope_dim": 64, "mode": "round_norm"})
    assert str(collection.kernel("qknorm_rope/fused_triton@2").contract_for(params)) == "close(1.5x split)"


def test_spills_narrow_accesses_and_contraction_would_be_seen(compiled: Any) -> None:
    """The detectors above, on the tuned tile with half its registers and with contraction, and on rows whose pairs are few."""
    launch = compiled.one("qknorm_rope/fused_triton@2", "planted")
    assert launch["STACK"] > 0 or launch["LOCAL"] > 0
    assert launch["fused"] > 0
    two_pairs = compiled.one("qknorm_rope/fused_triton@2", "neox, two pairs")
    assert set(two_pairs["stores"]) != {"st.global.v4.b32"}
