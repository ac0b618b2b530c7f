"""The CUDA source compiles for GPUs that this machine lacks, without spills where models run it, and moves 16 bytes at a time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from helpers.cuda_on_cpu import L2_BYTES

BFLOAT16, FLOAT16, FLOAT32, ABSENT = 0, 1, 2, -1
SCALAR, CHANNEL, ROW = 0, 1, 2
MULTIPROCESSORS = 132


def source(shared: Any, *, hidden: int = 3072, dtype: int = BFLOAT16, modulation: int = BFLOAT16, rows: int = 4096, batch: int = 1,
           addressing: int = ROW, affine: bool = False, layer: bool = True, residual: bool = False, gate: bool = True, aligned: bool = True,
           split: tuple[int, int] | None = None, design: str = "persistent") -> Any:  # fmt: skip
    """The `nvrtc.KernelSource` that the launch would compile for these arguments."""
    cuda, cuda_rows, modulations = shared("modulated_norm_cuda"), shared("cuda_rows"), shared("modulation")
    at = modulations.Broadcast(hidden if addressing == ROW else 0, 0, rows // batch, 0 if addressing == SCALAR else 1)
    assert at.addressing == addressing
    plan = shared("norm_arguments").Plan(batch, rows // batch, hidden, at, at, at if residual and gate else None)
    affine_dtype = modulation if affine else ABSENT
    dtypes = cuda.Dtypes(
        dtype, modulation if plan.gate else ABSENT, affine_dtype, affine_dtype if layer else ABSENT, modulation, modulation
    )
    narrow = FLOAT32 not in (dtype, modulation) and not affine
    item_size, inputs = 4 if dtype == FLOAT32 else 2, 2 if residual else 1
    chosen = cuda_rows.RowSplit(*split) if split else cuda_rows.split_ahead(hidden, item_size, inputs, rows, MULTIPROCESSORS, narrow=narrow)
    if design == "alone":
        chosen = cuda.alone_split(hidden, item_size, inputs, rows, MULTIPROCESSORS)
    elif design == "neighbours":
        chosen = cuda_rows.split_neighbours(hidden, item_size, inputs)
    return cuda.specialise(plan, dtypes, layer, residual, aligned, aligned, chosen, l2_bytes=L2_BYTES)


KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "residual": {"residual": True},
    "residual, no gate": {"residual": True, "gate": False},
    "float32 modulation, affine": {"modulation": FLOAT32, "affine": True},
    "residual, float32 modulation, affine": {"residual": True, "modulation": FLOAT32, "affine": True},
    "float32": {"dtype": FLOAT32, "modulation": FLOAT32, "affine": True, "hidden": 8192},
    "float16, rms, one value": {"dtype": FLOAT16, "modulation": FLOAT16, "layer": False, "affine": True, "addressing": SCALAR},
    "channel": {"addressing": CHANNEL, "hidden": 5120, "residual": True},
    "unaligned": {"aligned": False, "residual": True},
    "short row": {"hidden": 8},
    "odd row": {"hidden": 2056},
    "few rows": {"rows": 6},
}

UNSPILLED = ("default", "residual", "residual, no gate", "float32 modulation, affine", "residual, float32 modulation, affine", "few rows")
"""D = 3072, in every mixture that models run."""
SPILLED = {"float32 modulation, affine": 16, "residual, no gate": 16}
"""Bytes of a persistent grid, of which three blocks are resident: the second sums take registers. On an H200 it is faster all the same."""


MEETINGS = 2
"""Barriers of a layer norm: for the sums of all rows, and for the second sums of rows whose mean is far from zero."""


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_specialisation_compiles(shared: Any, cuda_code: Any, name: str) -> None:
    for arch in ("sm_80", "sm_90"):
        assert cuda_code.compile(source(shared, **KINDS[name]), arch)


@pytest.mark.parametrize("name", UNSPILLED)
def test_what_models_run_spills_nothing(shared: Any, cuda_code: Any, name: str) -> None:
    compiled = source(shared, **KINDS[name])
    used = cuda_code.resources(compiled)
    assert (used["STACK"], used["LOCAL"]) == (SPILLED.get(name, 0), 0)
    blocks = dict(compiled.macros)["MIN_BLOCKS"]
    assert used["REG"] * 256 * blocks <= 65536, "the blocks that the grid counts on are resident"


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("design", ["alone", "neighbours"])
def test_a_block_for_a_few_rows_spills_little_of_what_models_run(shared: Any, cuda_code: Any, design: str, name: str) -> None:
    compiled = source(shared, **KINDS[name], design=design)
    used, macros = cuda_code.resources(compiled), dict(compiled.macros)
    assert used["REG"] * macros["THREADS"] * macros["MIN_BLOCKS"] <= 65536
    assert name not in UNSPILLED or used["STACK"] <= (0 if design == "alone" else 40)


def test_neighbouring_rows_meet_at_the_same_barriers_and_load_what_they_share_once(shared: Any, cuda_code: Any) -> None:
    """Rows of 3072: four warps, three vectors a lane. Each scale and each shift is loaded once for the first row, and for each of the two
    others behind a branch, as it may belong to the next sample. Rows of one sample, or of all, share one: no branch, no second load."""
    machine_code = cuda_code.sass(source(shared, batch=2, design="neighbours"))
    assert len(re.findall(r"BAR\.SYNC", machine_code)) == MEETINGS
    assert len(re.findall(r"LDG\.E\.128", machine_code)) == 3 * 3 + 3 * 3 * 2
    for one in ({}, {"batch": 2, "addressing": CHANNEL}):
        assert len(re.findall(r"LDG\.E\.128", cuda_code.sass(source(shared, design="neighbours", **one)))) == 3 * 3 + 3 * 2


def test_one_warp_per_row_needs_no_shared_memory_and_several_meet_at_barriers(shared: Any, cuda_code: Any) -> None:
    alone, together = source(shared, hidden=768), source(shared)
    assert cuda_code.resources(alone)["SHARED"] == 0
    assert "BAR.SYNC" not in cuda_code.sass(alone)
    assert len(re.findall(r"BAR\.SYNC", cuda_code.sass(together))) == MEETINGS
    assert len(re.findall(r"BAR\.SYNC", cuda_code.sass(source(shared, layer=False)))) == 1


@pytest.mark.parametrize("name", ["default", "residual"])
def test_all_global_accesses_are_16_bytes(shared: Any, cuda_code: Any, name: str) -> None:
    machine_code = cuda_code.sass(source(shared, **KINDS[name]))
    assert set(re.findall(r"STG\.E\S*", machine_code)) == {"STG.E.128"}
    assert set(re.findall(r"LDG\.E\S*", machine_code)) == {"LDG.E.128.CONSTANT"}


def test_narrow_accesses_and_spills_would_be_seen(shared: Any, cuda_code: Any) -> None:
    """The detectors above on planted defects: rows that start anywhere, and a whole row of 3072 on one warp."""
    assert "LDG.E.U16" in cuda_code.sass(source(shared, aligned=False))
    assert cuda_code.resources(source(shared, split=(1, 3)))["STACK"] > 0


def test_a_split_that_leaves_a_warp_without_elements_is_refused_by_the_source(shared: Any, cuda_code: Any) -> None:
    with pytest.raises(Exception, match="every warp must hold elements"):
        cuda_code.compile(source(shared, hidden=256, split=(2, 4)))
