"""The Triton launches compile for sm_90 without a GPU; on models' rows they spill nothing and move 16 bytes at a time."""

from __future__ import annotations

from typing import Any

import pytest

NORM, RESIDUAL = "norm_scale_shift", "residual_gate_norm_scale_shift"
FLUX = {"tokens": 2, "hidden": 3072}
WAN = {"tokens": 2, "hidden": 5120, "modulation_dtype": "float32", "affine": True}
ODD = {"tokens": 2, "hidden": 3032, "modulation": "token"}
"""8 divides the rows' distances, 16 does not."""
LAUNCHES = {
    f"{NORM}/fused_triton@1": 1, f"{NORM}/fused_triton@2": 1, f"{NORM}/split_triton@1": 2,
    f"{RESIDUAL}/fused_triton@1": 1, f"{RESIDUAL}/fused_triton@2": 1, f"{RESIDUAL}/split_triton@1": 3,
}  # fmt: skip
EDGES: dict[str, dict[str, Any]] = {
    "8192 in float32": {"hidden": 8192, "dtype": "float32", "affine": True},
    "masked tail, strided tokens": {"hidden": 2056, "modulation": "token", "strided": True},
    "short rows of frames": {
        "hidden": 64,
        "tokens": 6,
        "modulation": "frame",
        "frames": 3,
        "dtype": "float16",
        "norm": "rms",
        "affine": True,
    },
    "one value": {"hidden": 72, "modulation": "scalar"},
}


@pytest.fixture(scope="module")
def compiled(compile_launches: Any) -> Any:
    tuned = {"flux": FLUX, "wan": WAN, "odd width": ODD}
    wanted = [
        {"kernel": f"{op}/fused_triton@2", "case": name, "params": params} for op in (NORM, RESIDUAL) for name, params in tuned.items()
    ]
    wanted += [edge("one value")]
    sizes = {"small chain": FLUX, "large chain": FLUX | {"tokens": 32760}}
    wanted += [{"kernel": f"{RESIDUAL}/split_triton@1", "case": name, "params": params} for name, params in sizes.items()]
    defect = {"maxnreg": 32, "enable_fp_fusion": True}
    wanted += [{"kernel": f"{RESIDUAL}/fused_triton@2", "case": "planted", "params": FLUX, "planted": defect}]
    return compile_launches(wanted)


def edge(name: str) -> dict[str, Any]:
    return {"kernel": f"{NORM}/fused_triton@2", "case": name, "params": FLUX | EDGES[name]}


@pytest.fixture(scope="module")
def all_compiled(compile_launches: Any) -> Any:
    wanted = [{"kernel": kernel, "case": "flux", "params": FLUX} for kernel in LAUNCHES]
    wanted += [{"kernel": f"{RESIDUAL}/fused_triton@2", "case": "no gate", "params": FLUX | {"gate": "none"}}]
    return compile_launches(wanted + [edge(name) for name in EDGES])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", LAUNCHES)
def test_every_launch_compiles(all_compiled: Any, kernel: str) -> None:
    launches = all_compiled.of(kernel, "flux")
    assert len(launches) == LAUNCHES[kernel]
    assert {launch["target"] for launch in launches} <= {"sm_90", "sm_90a"}
    for launch in launches:
        assert (launch["STACK"], launch["LOCAL"]) == (0, 0)


def test_launches_of_a_chain_let_go_of_what_they_read_while_the_l2_holds_what_they_write(compiled: Any) -> None:
    small, large = (compiled.of(f"{RESIDUAL}/split_triton@1", f"{size} chain") for size in ("small", "large"))
    assert [any("evict_first" in load for load in launch["loads"]) for launch in small] == [True] * 3
    assert [any("evict_first" in load for load in launch["loads"]) for launch in large] == [False] * 3
    fused = compiled.one(f"{RESIDUAL}/fused_triton@2", "flux")
    assert not any("evict_first" in load for load in fused["loads"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", EDGES)
def test_edge_cases_compile(all_compiled: Any, case: str) -> None:
    launch = all_compiled.one(f"{NORM}/fused_triton@2", case)
    assert launch["stores"]


@pytest.mark.parametrize("op", [NORM, RESIDUAL])
@pytest.mark.parametrize("case", ["flux", "wan", "odd width"])
def test_the_tuned_tile_moves_16_bytes_at_a_time_and_spills_nothing(compiled: Any, op: str, case: str) -> None:
    launch = compiled.one(f"{op}/fused_triton@2", case)
    assert set(launch["stores"]) == {"st.global.v4.b32"}
    assert all(load.endswith(".v4.b32") for load in launch["loads"])
    assert (launch["STACK"], launch["LOCAL"]) == (0, 0)
    assert launch["SHARED"] <= 1024 + 128, "a few sums per row pass through shared memory, no tile does (1 KiB is the system's)"


def test_gate_and_residual_are_not_contracted(compiled: Any) -> None:
    """What makes v equal to torch's float32 chain."""
    launch = compiled.one(f"{RESIDUAL}/fused_triton@2", "flux")
    assert launch["fused"] == 0


def test_spills_contraction_and_narrow_accesses_would_be_seen(compiled: Any) -> None:
    """The detectors above on planted defects: few registers, contraction, and a modulation of one value."""
    planted = compiled.one(f"{RESIDUAL}/fused_triton@2", "planted")
    assert planted["STACK"] > 0 or planted["LOCAL"] > 0
    assert planted["fused"] > 0
    scalar = compiled.one(f"{NORM}/fused_triton@2", "one value")
    assert not all(load.endswith(".v4.b32") for load in scalar["loads"])
