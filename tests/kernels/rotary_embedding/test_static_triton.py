"""The Triton launches compile for GPUs that this machine lacks, move 16 bytes at a time, and contract no product."""

from __future__ import annotations

from typing import Any

import pytest

FLUX = {"tokens": 512, "heads": 24, "head_dim": 128, "layout": "interleaved"}
ARCHITECTURES = [80, 90, 100]
TRITON = {"rotary_embedding/fused_triton@1": 1, "rotary_embedding/fused_triton@2": 1, "rotary_embedding/split_triton@1": 2}
"""Kernels and their launches."""

EDGES: dict[str, dict[str, Any]] = {
    "neox, 2-D packed, D 80, R 32": {"layout": "neox", "head_dim": 80, "rope_dim": 32, "rank": 2, "packed": True},
    "4-D separate by index": {"rank": 4, "caches": "separate", "positions": "index", "position_offset": 1},
    "R/2 odd, float16": {"head_dim": 96, "rope_dim": 66, "dtype": "float16", "cache_dtype": "activation"},
    "D 320 float32": {"head_dim": 320, "dtype": "float32", "kv_heads": 1},
    "no k": {"kv_heads": 0},
    "one token": {"tokens": 1},
}


NEEDED = (
    "R/2 odd, float16",
    "no k",
)
"""The edges that other tests look at."""


@pytest.fixture(scope="module")
def compiled(compile_launches: Any) -> Any:
    wanted = [{"kernel": kernel, "case": "flux", "params": FLUX} for kernel in TRITON]
    wanted += [
        {"kernel": "rotary_embedding/fused_triton@2", "case": name, "params": FLUX | changes, "capabilities": [90]}
        for name, changes in EDGES.items()
        if name in NEEDED
    ]
    wanted += [{"kernel": "rotary_embedding/fused_triton@2", "case": "neox", "params": FLUX | {"layout": "neox"}, "capabilities": [90]}]
    defect = {"maxnreg": 24, "enable_fp_fusion": True}
    wanted += [{"kernel": "rotary_embedding/fused_triton@2", "case": "planted", "params": FLUX, "capabilities": [90], "planted": defect}]
    return compile_launches(wanted)


@pytest.fixture(scope="module")
def all_compiled(compile_launches: Any) -> Any:
    wanted = [{"kernel": kernel, "case": "flux", "params": FLUX, "capabilities": ARCHITECTURES} for kernel in TRITON]
    return compile_launches(
        wanted + [{"kernel": "rotary_embedding/fused_triton@2", "case": name, "params": FLUX | EDGES[name]} for name in EDGES]
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
def test_edge_cases_compile_and_spill_nothing(all_compiled: Any, case: str) -> None:
    launch = all_compiled.one("rotary_embedding/fused_triton@2", case)
    assert launch["stores"]
    assert (launch["STACK"], launch["LOCAL"]) == (0, 0)


def test_the_tuned_tile_moves_16_bytes_at_a_time_in_registers_alone(compiled: Any) -> None:
    in_registers_alone(compiled.one("rotary_embedding/fused_triton@2", "flux"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_the_tuned_tile_moves_16_bytes_at_a_time_in_registers_alone_on_every_generation(all_compiled: Any, capability: int) -> None:
    in_registers_alone(all_compiled.one("rotary_embedding/fused_triton@2", "flux", capability))


def in_registers_alone(launch: dict[str, Any]) -> None:
    # Eight heads of 128 bfloat16 on one warp are 2 KiB: four vectors of 16 bytes a lane, once for q's branch and once for k's.
    assert launch["stores"] == ["st.global.v4.b32"] * 8
    assert launch["loads"].count("ld.global.v4.b32") >= 8
    assert (launch["STACK"], launch["LOCAL"], launch["SHARED"]) == (0, 0, 0)


def test_a_call_without_k_has_no_code_for_it(compiled: Any) -> None:
    launch = compiled.one("rotary_embedding/fused_triton@2", "no k")
    assert launch["stores"] == ["st.global.v4.b32"] * 4


def test_the_tuned_tile_is_as_good_in_the_other_layout(compiled: Any) -> None:
    launch = compiled.one("rotary_embedding/fused_triton@2", "neox")
    assert (launch["STACK"], launch["LOCAL"]) == (0, 0)
    assert set(launch["stores"]) == {"st.global.v4.b32"}


def test_products_and_sums_are_not_contracted(compiled: Any) -> None:
    """What the bitwise contract rests on: every launch rounds every product, as separate torch operations do."""
    for kernel in TRITON:
        for launch in compiled.of(kernel, "flux"):
            assert launch["fused"] == 0, kernel


def test_spills_narrow_accesses_and_contraction_would_be_seen(compiled: Any) -> None:
    """The detectors above on planted defects: a third of the registers and contraction, and pairs whose vectors no width divides."""
    launch = compiled.one("rotary_embedding/fused_triton@2", "planted")
    assert launch["STACK"] > 0 or launch["LOCAL"] > 0
    assert launch["fused"] > 0
    odd = compiled.one("rotary_embedding/fused_triton@2", "R/2 odd, float16")
    assert set(odd["stores"]) != {"st.global.v4.b32"}
