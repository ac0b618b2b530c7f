"""norm_tanh.cu compiles for GPUs that this machine lacks, without spills on Z-Image's rows, and moves 16 bytes at a time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from helpers.cuda_on_cpu import L2_BYTES

BFLOAT16, FLOAT16, FLOAT32, ABSENT = 0, 1, 2, -1
SCALAR, CHANNEL, ROW = 0, 1, 2
MULTIPROCESSORS = 132


def source(shared: Any, *, second: bool = True, hidden: int = 3840, dtype: int = BFLOAT16, modulation: int = BFLOAT16,
           residual: int | None = None, stream: bool = True, rows: int = 4128, addressing: int = CHANNEL, layer: bool = False,
           affine: bool = True, aligned: bool = True, split: tuple[int, int] | None = None) -> Any:  # fmt: skip
    """The `nvrtc.KernelSource` that the launch would compile for these arguments."""
    cuda, tiles, broadcast = shared("norm_tanh.cuda"), shared("norm_tanh.tiles"), shared("modulation").Broadcast
    at = broadcast(hidden if addressing == ROW else 0, 0, rows, 0 if addressing == SCALAR else 1)
    assert at.addressing == addressing
    own = broadcast(rows * hidden, hidden, 1, 1) if stream else at
    plan = shared("norm_tanh.plan").TanhPlan(1, rows, hidden, own, at, at if second else None)
    weight = modulation if affine else ABSENT
    bias = weight if layer else ABSENT
    twice = (weight, bias, weight if second else ABSENT, bias if second else ABSENT)
    dtypes = cuda.Dtypes(dtype, dtype if residual is None else residual, modulation, *twice, modulation if second else ABSENT)
    assert cuda.is_stream(plan, dtypes) == (stream and residual in (None, dtype))
    item_size = 4 if dtype == FLOAT32 else 2
    chosen = tiles.spread_row(hidden, item_size, rows, MULTIPROCESSORS, narrow=cuda.is_narrow(dtypes))
    return cuda.specialise(
        plan, dtypes, layer, aligned=aligned, shared_aligned=aligned, split=tiles.RowWarps(*split) if split else chosen, l2_bytes=L2_BYTES
    )


KINDS: dict[str, dict[str, Any]] = {
    "both norms": {},
    "one norm": {"second": False},
    "gate per sample": {"addressing": ROW},
    "float32 modulation": {"modulation": FLOAT32},
    "layer, float32 modulation": {"modulation": FLOAT32, "layer": True},
    "float32": {"dtype": FLOAT32, "modulation": FLOAT32, "hidden": 8192, "layer": True},
    "float16, one value": {"dtype": FLOAT16, "modulation": FLOAT16, "addressing": SCALAR, "affine": False},
    "float32 residual": {"residual": FLOAT32},
    "residual per channel": {"stream": False},
    "unaligned": {"aligned": False},
    "short row": {"hidden": 8},
    "odd row": {"hidden": 2056},
    "few rows": {"rows": 32},
}
UNSPILLED = ("both norms", "one norm", "float32 modulation", "few rows")
"""D = 3840, in every mixture that Z-Image runs."""


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_specialisation_compiles(shared: Any, cuda_code: Any, name: str) -> None:
    for arch in ("sm_80", "sm_90"):
        assert cuda_code.compile(source(shared, **KINDS[name]), arch)


@pytest.mark.parametrize("name", UNSPILLED)
def test_what_models_run_spills_nothing_and_fits_as_often_as_the_grid_counts_on(shared: Any, cuda_code: Any, name: str) -> None:
    compiled = source(shared, **KINDS[name])
    used = cuda_code.resources(compiled)
    assert (used["STACK"], used["LOCAL"]) == (0, 0)
    macros = dict(compiled.macros)
    assert used["REG"] * macros["THREADS"] * macros["MIN_BLOCKS"] <= 65536


@pytest.mark.parametrize("name", ["both norms", "one norm"])
def test_all_global_accesses_are_16_bytes(shared: Any, cuda_code: Any, name: str) -> None:
    machine_code = cuda_code.sass(source(shared, **KINDS[name]))
    assert set(re.findall(r"STG\.E\S*", machine_code)) == {"STG.E.128"}
    assert set(re.findall(r"LDG\.E\S*", machine_code)) == {"LDG.E.128.CONSTANT"}


def test_a_row_meets_at_one_barrier_per_norm(shared: Any, cuda_code: Any) -> None:
    counts = [len(re.findall(r"BAR\.SYNC", cuda_code.sass(source(shared, second=second)))) for second in (False, True)]
    assert counts == [1, 2]


def test_narrow_accesses_and_spills_would_be_seen(shared: Any, cuda_code: Any) -> None:
    """The detectors above on planted defects: rows that start anywhere, and a row of 3840 on three warps with few registers."""
    assert "LDG.E.U16" in cuda_code.sass(source(shared, aligned=False))
    assert cuda_code.resources(source(shared, split=(3, 5)))["STACK"] > 0


def test_a_split_that_leaves_a_warp_without_elements_is_refused_by_the_source(shared: Any, cuda_code: Any) -> None:
    with pytest.raises(Exception, match="every warp must hold elements"):
        cuda_code.compile(source(shared, hidden=256, split=(2, 4)))
