"""Rows that are copied in whole lines of memory (LINES of row_stream.cuh): when, and right on the CPU (helpers/cuda_on_cpu.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.matrices import few

ROW = {"batch": 2, "tokens": 44, "hidden": 3080, "strided": True}
"""Rows of 6160 bytes: their starts lie 0 to 112 bytes behind that of a line."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "norm": ("norm_scale_shift/fused_cuda@3", ROW),
    "norm, not combined": ("norm_scale_shift/fused_cuda@2", ROW),
    "residual norm": ("residual_gate_norm_scale_shift/fused_cuda@3", ROW | {"gate": "batch"}),
    "select01": ("norm_scale_shift_gate_select01/fused_cuda@3", ROW | {"index": "alternating"}),
    "residual select01": ("residual_norm_scale_shift_gate_select01/fused_cuda@3", ROW),
    "norm_tanh, a gate for each row": ("norm_tanh_mul_add/fused_cuda@3", ROW | {"modulation": "token"}),
}
KEPT = (("norm", True), ("residual select01", True), ("select01", False))


@pytest.fixture
def error_of(error_on_cpu: Callable[..., float]) -> Callable[..., float]:
    """`error_of(case, **of run_case)`: `error_on_cpu` of a case, whose launch copies whole lines."""
    return lambda name, **how: error_on_cpu(*CASES[name], macros={"LINES": 1}, **how)


@pytest.mark.parametrize(("name", "late"), few([(name, late) for name in CASES for late in (False, True)], *KEPT))
def test_every_output_is_rounded_once(error_of: Any, name: str, late: bool) -> None:
    assert error_of(name, late=late) <= 1


DEFECTS = {
    "a row that is taken from the start of its line": ("LINES ? lead_of(slot, STREAM) : 0", "0"),
    "another tensor's lead": ("lead_of(into, s) = lead", "lead_of(into, 0) = lead"),
    "a line too few": ("bytes = (lead + row_bytes(s) + LINE - 1) / LINE * LINE", "bytes = (lead + row_bytes(s)) / LINE * LINE"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_seen(error_of: Any, defect: str) -> None:
    right, wrong = DEFECTS[defect]
    assert error_of("residual norm", planted={right: wrong}) > 1


def combined(shared: Any, hidden: int, *, rows: int = 4096, item_size: int = 2, streams: int = 1, **more: Any) -> Any:
    """The split of a norm on an H200."""
    stream = shared("cuda_stream")
    memory = stream.RingMemory(227 * 1024, 228 * 1024)
    return stream.split_combined(hidden, item_size, streams, rows, 132, kept_words=16, live_words=12, memory=memory, **more)


def test_lines_are_copied_where_rows_lie_across_them_and_blocks_have_several(shared: Any) -> None:
    assert combined(shared, 3080).lines
    assert not combined(shared, 3072).lines, "rows are whole lines"
    assert not combined(shared, 3080, rows=600).lines, "a row or two for each block"
    assert not combined(shared, 200, rows=100_000).lines, "a line more is a third of the row"
    assert not combined(shared, 3080, item_size=4).lines, "float32 gains nothing"
    assert not combined(shared, 3080, alike=False).lines, "float32 rows beside 16 bits"


def test_lines_take_no_slot_from_a_ring(shared: Any) -> None:
    stream = shared("cuda_stream")
    fits = [combined(shared, hidden, streams=2) for hidden in range(1032, 8192, 8)]
    apart = [split for split, hidden in zip(fits, range(1032, 8192, 8), strict=True) if hidden % 64 and not split.lines]
    assert any(split.lines for split in fits)
    assert apart, "a ring of which lines would take a slot keeps to rows"
    for split, hidden in zip(fits, range(1032, 8192, 8), strict=True):
        slot = 2 * (stream.lined_bytes(2 * hidden) if split.lines else 2 * hidden)
        assert split.shared_bytes == stream.ring_bytes(split.stages, slot)
        assert split.min_blocks * (split.shared_bytes + 2048) <= 228 * 1024
