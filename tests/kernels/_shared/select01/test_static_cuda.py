"""select01.cu compiles for GPUs that this machine lacks, without spills where models run it, and moves 16 bytes at a time."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.core")
nvrtc_binding = pytest.importorskip("cuda.bindings.nvrtc")

try:
    nvrtc_binding.nvrtcVersion()
except RuntimeError as error:  # the binding is there, the compiler is not
    pytest.skip(f"NVRTC cannot be loaded: {error}", allow_module_level=True)

from fusebench.registry import nvrtc  # noqa: E402 - only where NVRTC is

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
) -> nvrtc.KernelSource:
    """What the launch would compile for these arguments."""
    cuda, cuda_rows = shared("select01_cuda"), shared("cuda_rows")
    plan = shared("select01_arguments").Plan(1, tokens, hidden, (hidden,) * 6, (tokens, 1))
    dtypes = cuda.Dtypes(dtype, rows, rows if affine else ABSENT, rows if affine else ABSENT)
    chosen = cuda_rows.RowSplit(*split) if split else cuda.split_of(plan, dtypes, MULTIPROCESSORS)
    return cuda.specialise(plan, dtypes, index_bytes, residual, aligned, aligned, chosen)


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


@pytest.fixture(scope="module")
def cuobjdump() -> Path:
    triton = pytest.importorskip("triton")
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not path.is_file():
        pytest.skip("this Triton brings no cuobjdump")
    return path


def dump(cuobjdump: Path, compiled: nvrtc.KernelSource, option: str, folder: Path) -> str:
    file = folder / "kernel.cubin"
    file.write_bytes(bytes(nvrtc.compile_cubin(compiled, "sm_90").code))
    return subprocess.run([cuobjdump, option, file], check=True, capture_output=True, text=True).stdout


def resources(cuobjdump: Path, compiled: nvrtc.KernelSource, folder: Path) -> dict[str, int]:
    found = re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", dump(cuobjdump, compiled, "--dump-resource-usage", folder))
    return {name: int(value) for name, value in found}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_specialisation_compiles(shared: Any, name: str) -> None:
    for arch in ("sm_80", "sm_90"):
        assert bytes(nvrtc.compile_cubin(source(shared, **KINDS[name]), arch).code)


@pytest.mark.parametrize("name", UNSPILLED)
def test_what_models_run_spills_nothing(shared: Any, cuobjdump: Path, tmp_path: Path, name: str) -> None:
    compiled = source(shared, **KINDS[name])
    used = resources(cuobjdump, compiled, tmp_path)
    assert (used["STACK"], used["LOCAL"]) == (0, 0)
    blocks = dict(compiled.macros)["MIN_BLOCKS"]
    assert used["REG"] * 256 * blocks <= 65536, "the blocks that the grid counts on are resident"


@pytest.mark.parametrize("name", ["affine", "residual"])
def test_all_global_accesses_but_the_index_are_16_bytes(shared: Any, cuobjdump: Path, tmp_path: Path, name: str) -> None:
    machine_code = dump(cuobjdump, source(shared, **KINDS[name]), "-sass", tmp_path)
    assert set(re.findall(r"STG\.E\S*", machine_code)) == {"STG.E.128"}
    loads = re.findall(r"LDG\.E\S*", machine_code)
    assert set(loads) == {"LDG.E.NA.128.CONSTANT", "LDG.E.128.CONSTANT", "LDG.E.CONSTANT"}
    assert loads.count("LDG.E.CONSTANT") == 1, "the index"


def test_narrow_accesses_and_spills_would_be_seen(shared: Any, cuobjdump: Path, tmp_path: Path) -> None:
    """The detectors above on planted defects: rows that start anywhere, and a whole row of 3072 on one warp."""
    assert "LDG.E.U16" in dump(cuobjdump, source(shared, aligned=False), "-sass", tmp_path)
    assert resources(cuobjdump, source(shared, split=(1, 3)), tmp_path)["STACK"] > 0


def test_rows_that_start_off_16_bytes_are_seen_in_their_strides(shared: Any) -> None:
    cuda, arguments = shared("select01_cuda"), shared("select01_arguments")
    dtypes = cuda.Dtypes(BFLOAT16, BFLOAT16, ABSENT, ABSENT)
    for batch, strides, aligned in ((2, (64,) * 6, True), (2, (64,) * 5 + (68,), False), (1, (68,) * 6, True)):
        assert cuda.rows_aligned(arguments.Plan(batch, 4, 64, strides, (4, 1)), dtypes) is aligned
    wide = cuda.Dtypes(BFLOAT16, FLOAT32, ABSENT, ABSENT)
    assert cuda.rows_aligned(arguments.Plan(2, 4, 64, (68,) * 6, (4, 1)), wide) is True
