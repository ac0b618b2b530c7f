"""The Triton launches compile for sm_90 without a GPU; on models' rows they spill nothing and move 16 bytes at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("static_compile.py")
NORM, RESIDUAL = "norm_scale_shift", "residual_gate_norm_scale_shift"
FLUX = {"tokens": 2, "hidden": 3072}
WAN = {"tokens": 2, "hidden": 5120, "modulation_dtype": "float32", "affine": True}
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
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    wanted = [{"kernel": kernel, "case": "flux", "params": FLUX} for kernel in LAUNCHES]
    wanted += [{"kernel": f"{op}/fused_triton@2", "case": "wan", "params": WAN} for op in (NORM, RESIDUAL)]
    wanted += [{"kernel": f"{NORM}/fused_triton@2", "case": name, "params": FLUX | changes} for name, changes in EDGES.items()]
    wanted += [{"kernel": f"{RESIDUAL}/fused_triton@2", "case": "no gate", "params": FLUX | {"gate": "none"}}]
    defect = {"maxnreg": 32, "enable_fp_fusion": True}
    wanted += [{"kernel": f"{RESIDUAL}/fused_triton@2", "case": "planted", "params": FLUX, "planted": defect}]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run([sys.executable, PROGRAM, json.dumps(wanted)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def of(compiled: list[dict[str, Any]], kernel: str, case: str) -> list[dict[str, Any]]:
    return [one for one in compiled if (one["kernel"], one["case"]) == (kernel, case)]


@pytest.mark.parametrize("kernel", LAUNCHES)
def test_every_launch_compiles(compiled: list[dict[str, Any]], kernel: str) -> None:
    launches = of(compiled, kernel, "flux")
    assert len(launches) == LAUNCHES[kernel]
    assert {launch["target"] for launch in launches} <= {"sm_90", "sm_90a"}
    for launch in launches:
        assert (launch["STACK"], launch["LOCAL"]) == (0, 0)


@pytest.mark.parametrize("case", EDGES)
def test_edge_cases_compile(compiled: list[dict[str, Any]], case: str) -> None:
    (launch,) = of(compiled, f"{NORM}/fused_triton@2", case)
    assert launch["stores"]


@pytest.mark.parametrize("op", [NORM, RESIDUAL])
@pytest.mark.parametrize("case", ["flux", "wan"])
def test_the_tuned_tile_moves_16_bytes_at_a_time_and_spills_nothing(compiled: list[dict[str, Any]], op: str, case: str) -> None:
    (launch,) = of(compiled, f"{op}/fused_triton@2", case)
    assert set(launch["stores"]) == {"st.global.v4.b32"}
    assert set(launch["loads"]) == {"ld.global.v4.b32"}
    assert (launch["STACK"], launch["LOCAL"]) == (0, 0)
    assert launch["SHARED"] <= 1024 + 128, "a few sums per row pass through shared memory, no tile does (1 KiB is the system's)"


def test_gate_and_residual_are_not_contracted(compiled: list[dict[str, Any]]) -> None:
    """What makes v equal to torch's float32 chain."""
    (launch,) = of(compiled, f"{RESIDUAL}/fused_triton@2", "flux")
    assert launch["fused"] == 0


def test_spills_contraction_and_narrow_accesses_would_be_seen(compiled: list[dict[str, Any]]) -> None:
    """The detectors above on planted defects: few registers, contraction, and a modulation of one value."""
    (planted,) = of(compiled, f"{RESIDUAL}/fused_triton@2", "planted")
    assert planted["STACK"] > 0 or planted["LOCAL"] > 0
    assert planted["fused"] > 0
    (scalar,) = of(compiled, f"{NORM}/fused_triton@2", "one value")
    assert set(scalar["loads"]) != {"ld.global.v4.b32"}
