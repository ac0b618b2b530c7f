"""Blocks that take up their next row between a row's sums and its result (PIPELINED of row_stream.cuh), run on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from helpers.cuda_on_cpu import worst
from helpers.matrices import few

OPS = {
    "norm": "norm_scale_shift/fused_cuda__pipelined@3",
    "one norm": "norm_tanh_mul_add/fused_cuda__pipelined_12@3",
    "two norms": "norm_tanh_mul_add_norm_scale/fused_cuda__pipelined@3",
}
ROWS = {"tokens": 180, "hidden": 1336}
"""Of two warps or more, with several rows for each block of three multiprocessors."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "norm": ("norm", ROWS | {"affine": True, "modulation_dtype": "float32"}),
    "norm of far rows": ("norm", ROWS | {"norm": "layer", "dtype": "float16"}),
    "norm, blocks with rows of two frames": ("norm", {"batch": 2, "tokens": 105, "hidden": 1336, "modulation": "frame", "frames": 7}),
    "norm, copies of whole lines": ("norm", {"batch": 2, "tokens": 120, "hidden": 3080, "strided": True}),
    "norm of float32": ("norm", {"tokens": 60, "hidden": 1336, "dtype": "float32", "norm": "rms"}),
    "norm of eight warps": ("norm", {"tokens": 24, "hidden": 8184, "affine": True}),
    "one norm, a gate for each row": ("one norm", ROWS | {"modulation": "token", "affine": True}),
    "one norm, frames": (
        "one norm",
        {"batch": 2, "tokens": 105, "hidden": 1336, "modulation": "frame", "residual": "frame", "residual_dtype": "float32", "frames": 7},
    ),
    "two norms": ("two norms", ROWS | {"affine": True, "affine2": True, "norm": "layer"}),
    "two norms of far rows": ("two norms", ROWS | {"norm": "layer", "residual": "scalar", "dtype": "float16"}),
    "two norms, frames": (
        "two norms",
        {
            "batch": 2, "tokens": 105, "hidden": 1336, "modulation": "frame", "residual": "frame", "scale2": "frame", "frames": 7,
            "affine2": True, "modulation_dtype": "float32",
        },
    ),
    "two norms, everything for each row": (
        "two norms",
        ROWS | {"modulation": "token", "scale2": "token", "residual_dtype": "float32", "affine": True},
    ),
    "two norms, scales of a channel": ("two norms", ROWS | {"scale2": "channel", "modulation": "scalar"}),
}  # fmt: skip
KEPT = (
    ("norm of far rows", False), ("norm, blocks with rows of two frames", True), ("norm, copies of whole lines", True),
    ("norm of eight warps", True), ("one norm, a gate for each row", True), ("two norms, frames", False), ("two norms of far rows", True),
    ("two norms, everything for each row", True),
)  # fmt: skip


@pytest.fixture
def error_of(error_on_cpu: Callable[..., float]) -> Callable[..., float]:
    """`error_of(case, **of run_case)`: `error_on_cpu` of a case, in a pipeline."""

    def error(name: str, **how: Any) -> float:
        which, fields = CASES[name]

        def fill(arguments: Mapping[str, Any]) -> None:
            if "far" in name:
                arguments["x"].add_(1000.0)

        return error_on_cpu(OPS[which], fields, macros={"PIPELINED": 1}, fill=fill, **how)

    return error


@pytest.mark.parametrize(("name", "late"), few([(name, late) for name in CASES for late in (False, True)], *KEPT))
def test_every_output_is_rounded_once(error_of: Any, name: str, late: bool) -> None:
    assert error_of(name, late=late) <= 1


DEFECTS = {
    "sums are read before every warp has given its own": ("norm", "__syncthreads();\n        stream.replace(row);", "stream.replace(row);"),
    "a slot is refilled before its row is done": ("norm", "request(slot == 0 ? SLOTS - 1 : slot - 1,", "request(slot,"),
    "the next row's sums in the place of this one's": ("norm", "member, turn + 1, exchange", "member, turn, exchange"),
    "x of the next row": ("norm", "row, i, stream.template vector_in<0>(slot, i)", "row, i, stream.template vector_in<0>(stream.slot, i)"),
    "far rows that are summed about zero": ("norm of far rows", "origin[1] = {sums.first * (1.0f / D)}", "origin[1] = {0.0f}"),
    "the second norm of another row": ("two norms", "second(row - rows.step, turn - 1)", "second(row, turn - 1)"),
    "no second norm of the last row": ("two norms", "second(last, last_turn);", ""),
    "the second scale of the next row": (
        "two norms, everything for each row",
        "stream.template take<3>(row, slot, scales2)",
        "stream.template take<3>(row, stream.slot, scales2)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_seen(error_of: Any, defect: str) -> None:
    name, right, wrong = DEFECTS[defect]
    assert worst(partial(error_of, name, planted={right: wrong})) > 1


def split(shared: Any, hidden: int, name: str, rows: int = 4096, **more: Any) -> Any:
    """Of a norm of 16 bits on an H200."""
    stream = shared("cuda_stream")
    memory = stream.RingMemory(227 * 1024, 228 * 1024)
    tile = stream.PIPELINED_TILES[name]
    return stream.split_combined(hidden, 2, 1, rows, 132, kept_words=16, live_words=12, memory=more.get("memory", memory), tile=tile)


def test_a_pipeline_needs_warps_that_wait_and_room_for_two_rows(shared: Any) -> None:
    assert split(shared, 3072, "pipelined").pipelined
    assert not split(shared, 256, "pipelined").pipelined, "one warp"
    assert not split(shared, 3072, "pipelined", memory=shared("cuda_stream").NO_RINGS).pipelined, "no ring"


def test_the_choices_differ_in_warps_of_a_multiprocessor(shared: Any) -> None:
    wide, narrow = (split(shared, 3072, name) for name in ("pipelined", "pipelined_12"))
    assert narrow.min_blocks * narrow.warps <= 12
    assert 12 < wide.min_blocks * wide.warps <= 16
