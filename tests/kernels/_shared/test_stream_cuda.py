"""Streamed row norms: the sources compile, stream by bulk copies where the GPU has them, spill nothing where models run them.

Combined ones put weights, biases and modulations together, so that they take fewer registers.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest

from helpers.cuda_on_cpu import L2_BYTES

BFLOAT16, FLOAT32, ABSENT = 0, 2, -1
CHANNEL, ROW = 1, 2
MULTIPROCESSORS = 132
BLOCK_BYTES, MULTIPROCESSOR_BYTES = 227 * 1024, 228 * 1024
SYSTEM_BYTES = 1024
"""Of every block on sm_90; the compiler's count of static bytes holds them."""


class Streamed(NamedTuple):
    source: Any
    split: Any


def memory(shared: Any, *, aligned: bool = True) -> Any:
    stream = shared("cuda_stream")
    return stream.RingMemory(BLOCK_BYTES, MULTIPROCESSOR_BYTES) if aligned else stream.NO_RINGS


def modulated(shared: Any, *, hidden: int = 3072, modulation: int = BFLOAT16, rows: int = 4096, affine: bool = False,
              residual: bool = False, aligned: bool = True, warps: int = 0, combined: bool = False) -> Any:  # fmt: skip
    cuda, stream, modulations = shared("modulated_norm_cuda"), shared("cuda_stream"), shared("modulation")
    at = modulations.Broadcast(0, 0, rows, 1)
    plan = shared("norm_arguments").Plan(1, rows, hidden, at, at, at if residual else None)
    affine_dtype = modulation if affine else ABSENT
    dtypes = cuda.Dtypes(BFLOAT16, modulation if residual else ABSENT, affine_dtype, affine_dtype, modulation, modulation)
    words = stream.words_of(2, *((modulation,) * ((4 if affine else 2) + residual)))
    streams, ring = 2 if residual else 1, memory(shared, aligned=aligned)
    split = (
        stream.split_combined(hidden, 2, streams, rows, MULTIPROCESSORS, memory=ring, kept_words=24 if residual else 16, live_words=16)
        if combined
        else stream.split_stream(hidden, 2, streams, rows, MULTIPROCESSORS, shared_words=words, memory=ring)
    )
    split = split._replace(warps=warps) if warps else split
    return Streamed(cuda.specialise(plan, dtypes, True, residual, aligned, aligned, split, l2_bytes=L2_BYTES), split)


def select01(shared: Any, *, rows: int = 4096, residual: bool = False, combined: bool = False, modulation: int = BFLOAT16) -> Any:
    cuda, stream = shared("select01.cuda"), shared("cuda_stream")
    plan = shared("select01.plan").Plan(1, rows, 3072, (3072,) * 6, (rows, 1))
    streams = 3 if residual else 1
    split = (
        stream.split_combined(
            3072, 2, streams, rows, MULTIPROCESSORS, memory=memory(shared), kept_words=20, live_words=20 if residual else 12, selects=True
        )
        if combined
        else stream.split_stream(3072, 2, streams, rows, MULTIPROCESSORS, shared_words=28 if residual else 20, memory=memory(shared))
    )
    dtypes = cuda.Dtypes(BFLOAT16, modulation, modulation, modulation)
    return Streamed(cuda.specialise(plan, dtypes, 4, residual, True, True, split, l2_bytes=L2_BYTES), split)


def norm_tanh(shared: Any, *, rows: int = 4096, combined: bool = False, own_gate: int | None = None) -> Any:
    cuda, stream, modulations = shared("norm_tanh.cuda"), shared("cuda_stream"), shared("modulation")
    at, own = modulations.Broadcast(0, 0, rows, 1), modulations.Broadcast(0, 3840, 1, 1)
    plan = shared("norm_tanh.plan").TanhPlan(1, rows, 3840, residual=own, gate=at if own_gate is None else own, scale2=at)
    gate = BFLOAT16 if own_gate is None else own_gate
    dtypes = cuda.Dtypes(BFLOAT16, BFLOAT16, gate, BFLOAT16, ABSENT, BFLOAT16, ABSENT, BFLOAT16)
    streams = 1 + cuda.own_items((plan.residual, BFLOAT16), (plan.gate, gate)) // 2
    split = (
        stream.split_combined(3840, 2, streams, rows, MULTIPROCESSORS, memory=memory(shared), kept_words=16, live_words=8 + 4 * streams)
        if combined
        else stream.split_stream(3840, 2, 2, rows, MULTIPROCESSORS, shared_words=20, memory=memory(shared))
    )
    return Streamed(cuda.specialise(plan, dtypes, False, aligned=True, shared_aligned=True, split=split, l2_bytes=L2_BYTES), split)


def assert_ring_fits(split: Any, row_bytes: int) -> None:
    beside = 1024 + SYSTEM_BYTES  # for the warps' sums
    assert split.stages * (row_bytes + 8) <= split.shared_bytes <= BLOCK_BYTES - 1024, row_bytes
    assert split.shared_bytes % 128 == 0, row_bytes
    assert split.min_blocks * (split.shared_bytes + beside) <= MULTIPROCESSOR_BYTES or split.stages == 0, row_bytes


KINDS = {
    "norm": modulated,
    "norm, few rows": lambda shared: modulated(shared, rows=6),
    "norm of 5120, float32, affine": lambda shared: modulated(shared, hidden=5120, modulation=FLOAT32, affine=True),
    "residual norm of 1536, float32": lambda shared: modulated(shared, hidden=1536, modulation=FLOAT32, residual=True, rows=32760),
    "select01": select01,
    "select01, few rows": lambda shared: select01(shared, rows=33),
    "residual select01": lambda shared: select01(shared, residual=True),
    "norm_tanh, both norms": norm_tanh,
    "combined norm": lambda shared: modulated(shared, combined=True),
    "combined norm of 5120, float32, affine": lambda shared: modulated(
        shared, hidden=5120, modulation=FLOAT32, affine=True, combined=True, rows=8192
    ),
    "combined residual norm of 1536, float32": lambda shared: modulated(
        shared, hidden=1536, modulation=FLOAT32, residual=True, rows=32760, combined=True
    ),
    "combined select01, float32": lambda shared: select01(shared, combined=True, modulation=FLOAT32),
    "combined residual select01": lambda shared: select01(shared, residual=True, combined=True),
    "combined norm_tanh, both norms": lambda shared: norm_tanh(shared, combined=True),
    "combined norm_tanh, a gate for each row": lambda shared: norm_tanh(shared, combined=True, own_gate=BFLOAT16),
    "combined norm_tanh, a float32 gate for each row": lambda shared: norm_tanh(shared, combined=True, own_gate=FLOAT32),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_models_run_spills_nothing_and_fits_the_blocks_that_the_grid_counts_on(shared: Any, cuda_code: Any, name: str) -> None:
    source, split = KINDS[name](shared)
    used, macros = cuda_code.resources(source), dict(source.macros)
    assert (used["STACK"], used["LOCAL"]) == (0, 0)
    assert used["REG"] * macros["THREADS"] * macros["MIN_BLOCKS"] <= 65536
    assert used["SHARED"] <= shared("cuda_stream").STATIC_BYTES + SYSTEM_BYTES
    assert (used["SHARED"] + split.shared_bytes) * macros["MIN_BLOCKS"] <= MULTIPROCESSOR_BYTES


@pytest.mark.parametrize("name", ["norm", "residual select01", "combined norm"])
def test_rows_come_by_bulk_copies_and_everything_else_by_16_bytes(shared: Any, cuda_code: Any, name: str) -> None:
    machine_code = cuda_code.sass(KINDS[name](shared).source)
    assert "UBLKCP" in machine_code
    assert set(re.findall(r"STG\.E\S*", machine_code)) == {"STG.E.128"}
    assert set(re.findall(r"LDG\.E\S*", machine_code)) <= {"LDG.E.128.CONSTANT", "LDG.E.CONSTANT"}  # an index of select01


def test_a_gpu_without_bulk_copies_and_rows_that_start_anywhere_get_plain_loads(shared: Any, cuda_code: Any) -> None:
    """The second is the detector above on a planted defect: narrow accesses would be seen."""
    assert cuda_code.compile(modulated(shared).source, "sm_80")
    machine_code = cuda_code.sass(modulated(shared, aligned=False).source)
    assert "UBLKCP" not in machine_code
    assert "LDG.E.U16" in machine_code


def test_more_of_a_row_than_registers_hold_would_be_seen(shared: Any, cuda_code: Any) -> None:
    assert cuda_code.resources(modulated(shared, hidden=5120, modulation=FLOAT32, affine=True, warps=1).source)["STACK"] > 0


@pytest.mark.parametrize("rows", [1, 512, 4096, 100_000])
@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("item_size", [2, 4])
def test_every_width_has_a_split_that_the_source_accepts(shared: Any, item_size: int, streams: int, rows: int) -> None:
    for hidden in range(8, 8200, 8):
        split = shared("cuda_stream").split_stream(hidden, item_size, streams, rows, MULTIPROCESSORS, shared_words=8, memory=memory(shared))
        vectors = hidden * item_size // 16
        assert 32 * (split.warps - 1) < vectors, hidden
        assert split.threads <= 1024, hidden
        assert split.stages != 1, hidden
        assert_ring_fits(split, streams * hidden * item_size)
        assert 1 <= split.blocks <= rows, hidden


def test_combined_float32_parameters_leave_registers_for_a_second_block(shared: Any, cuda_code: Any) -> None:
    apart, together = (
        cuda_code.resources(modulated(shared, hidden=5120, modulation=FLOAT32, affine=True, rows=8192, combined=combined, warps=7).source)[
            "REG"
        ]
        for combined in (False, True)
    )
    assert together <= 128 < apart


@pytest.mark.parametrize("rows", [1, 512, 4096, 100_000])
@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("selects", [True, False])
def test_every_width_has_a_combined_split_that_the_source_accepts(shared: Any, selects: bool, streams: int, rows: int) -> None:
    stream = shared("cuda_stream")
    for hidden in range(8, 8200, 24):
        for item_size in (2, 4):
            split = stream.split_combined(
                hidden, item_size, streams, rows, MULTIPROCESSORS, kept_words=20, live_words=12, memory=memory(shared), selects=selects
            )
            assert 32 * (split.warps - 1) < hidden * item_size // 16, hidden
            assert split.threads <= 1024, hidden
            assert split.stages != 1, hidden
            assert_ring_fits(split, streams * hidden * item_size)
            blocks = split.blocks
            assert 1 <= blocks <= rows, hidden
            assert not selects or -(-rows // blocks) <= stream.MOST_CHUNK, "a block orders its rows by one bit each"


def test_a_case_with_nothing_to_combine_is_declined_with_the_reason(collection: Any) -> None:
    name = "residual_gate_norm_scale_shift"
    kernel, op = collection.kernel(f"{name}/fused_cuda@3"), collection.op(name)

    def reason(**fields: Any) -> str:
        return str(kernel.reason_unsupported(op.parse_params({"tokens": 4096, "hidden": 3072, **fields})) or "")

    assert reason() == ""
    assert "neighbouring rows" in reason(modulation="token")
    assert "neighbouring rows" in reason(modulation="frame", frames=2048)
    assert reason(modulation="frame", frames=1024) == ""
    assert "bytes of shared memory" in reason(hidden=8192, dtype="float32")
