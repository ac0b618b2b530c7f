"""select01.cu compiles for GPUs that this machine lacks, without spills where models run it, and moves 16 bytes at a time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from helpers.cuda_on_cpu import L2_BYTES

BFLOAT16, FLOAT16, FLOAT32, ABSENT = 0, 1, 2, -1
MULTIPROCESSORS = 132


def source(
    shared: Any,
    *,
    hidden: int = 3072,
    dtype: int = BFLOAT16,
    rows: int = BFLOAT16,
    tokens: int = 4096,
    affine: bool = True,
    residual: bool = False,
    aligned: bool = True,
    index_bytes: int = 4,
    split: tuple[int, int] | None = None,
    alone: bool = False,
) -> Any:
    """The `nvrtc.KernelSource` that the launch would compile for these arguments."""
    cuda, cuda_rows = shared("select01.cuda"), shared("cuda_rows")
    plan = shared("select01.plan").Plan(1, tokens, hidden, (hidden,) * 6, (tokens, 1))
    dtypes = cuda.Dtypes(dtype, rows, rows if affine else ABSENT, rows if affine else ABSENT)
    chosen = cuda_rows.RowSplit(*split) if split else cuda.split_of(plan, dtypes, MULTIPROCESSORS)
    if alone:
        chosen = cuda.alone_split(hidden, 4 if dtype == FLOAT32 else 2, tokens, MULTIPROCESSORS, residual=residual)
    return cuda.specialise(plan, dtypes, index_bytes, residual, aligned, aligned, chosen, l2_bytes=L2_BYTES)


KINDS: dict[str, dict[str, Any]] = {
    "affine": {},
    "no affine": {"affine": False},
    "residual": {"residual": True},
    "residual, no affine": {"residual": True, "affine": False},
    "float32 rows": {"rows": FLOAT32},
    "residual, float32 rows": {"residual": True, "rows": FLOAT32},
    "few rows": {"tokens": 6},
    "float32": {"dtype": FLOAT32, "rows": FLOAT32, "hidden": 8192, "residual": True},
    "float16, bool index": {"dtype": FLOAT16, "rows": FLOAT16, "index_bytes": 1},
    "64-bit index": {"index_bytes": 8, "residual": True},
    "unaligned": {"aligned": False, "residual": True},
    "short row": {"hidden": 8},
    "odd row": {"hidden": 2056},
}
UNSPILLED = tuple(KINDS)[:7]
"""D = 3072, in every mixture that models run."""


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_specialisation_compiles(shared: Any, cuda_code: Any, name: str) -> None:
    for arch in ("sm_80", "sm_90"):
        assert cuda_code.compile(source(shared, **KINDS[name]), arch)


@pytest.mark.parametrize("name", UNSPILLED)
def test_what_models_run_spills_nothing(shared: Any, cuda_code: Any, name: str) -> None:
    compiled = source(shared, **KINDS[name])
    used = cuda_code.resources(compiled)
    assert (used["STACK"], used["LOCAL"]) == (0, 0)
    blocks = dict(compiled.macros)["MIN_BLOCKS"]
    assert used["REG"] * 256 * blocks <= 65536, "the blocks that the grid counts on are resident"


@pytest.mark.parametrize("name", KINDS)
def test_a_block_for_every_row_spills_little_of_what_models_run(shared: Any, cuda_code: Any, name: str) -> None:
    compiled = source(shared, **KINDS[name], alone=True)
    used, macros = cuda_code.resources(compiled), dict(compiled.macros)
    assert used["REG"] * macros["THREADS"] * macros["MIN_BLOCKS"] <= 65536
    allowed = 64 if name == "float32 rows" else 16  # no suite of a model has float32 rows
    assert name not in UNSPILLED or used["STACK"] <= allowed, "64 registers and some spilled words are faster than 96 registers"


@pytest.mark.parametrize("name", ["affine", "residual"])
def test_all_global_accesses_but_the_index_are_16_bytes(shared: Any, cuda_code: Any, name: str) -> None:
    machine_code = cuda_code.sass(source(shared, **KINDS[name]))
    assert set(re.findall(r"STG\.E\S*", machine_code)) == {"STG.E.128"}
    loads = re.findall(r"LDG\.E\S*", machine_code)
    assert set(loads) == {"LDG.E.128.CONSTANT", "LDG.E.CONSTANT"}
    assert loads.count("LDG.E.CONSTANT") == 1, "the index"


def test_narrow_accesses_and_spills_would_be_seen(shared: Any, cuda_code: Any) -> None:
    """The detectors above on planted defects: rows that start anywhere, and a whole row of 3072 on one warp."""
    assert "LDG.E.U16" in cuda_code.sass(source(shared, aligned=False))
    assert cuda_code.resources(source(shared, split=(1, 3)))["STACK"] > 0


@pytest.mark.usefixtures("cuda_code")
def test_rows_that_start_off_16_bytes_are_seen_in_their_strides(shared: Any) -> None:
    cuda, arguments = shared("select01.cuda"), shared("select01.plan")
    dtypes = cuda.Dtypes(BFLOAT16, BFLOAT16, ABSENT, ABSENT)
    for batch, strides, aligned in ((2, (64,) * 6, True), (2, (64,) * 5 + (68,), False), (1, (68,) * 6, True)):
        assert cuda.rows_aligned(arguments.Plan(batch, 4, 64, strides, (4, 1)), dtypes) is aligned
    wide = cuda.Dtypes(BFLOAT16, FLOAT32, ABSENT, ABSENT)
    assert cuda.rows_aligned(arguments.Plan(2, 4, 64, (68,) * 6, (4, 1)), wide) is True
