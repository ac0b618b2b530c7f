"""How rows are dealt out to persistent blocks (`even_shares` and `Rows` of row_stream.cuh)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.cuda_on_cpu import largest, run_case

LAUNCHES = [(1, 1), (7, 7), (132, 132), (1000, 132), (4096, 264), (4097, 396), (5516, 264), (75600, 2112)]


def taken(rows: int, blocks: int, *sections: int, shared: Any) -> list[range]:
    """The rows of each block, as `Rows` reckons them."""
    least, more, parts, part_rows = shared("cuda_stream").even_shares(rows, blocks, *sections)
    found = []
    for block in range(blocks):
        place, part = divmod(block, parts)
        first = part * part_rows + place * least + min(place, more)
        found.append(range(first, first + least + (place < more)))
    return found


@pytest.mark.parametrize(("rows", "blocks"), LAUNCHES)
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 12])
def test_every_row_is_of_one_block_and_none_has_two_more_than_another(shared: Any, rows: int, blocks: int, parts: int) -> None:
    blocks_taken = taken(parts * rows, blocks, rows, shared=shared)
    assert sorted(row for block in blocks_taken for row in block) == list(range(parts * rows))
    sizes = [len(block) for block in blocks_taken]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_no_block_has_rows_of_two_samples_where_the_blocks_can_be_dealt_out_so(shared: Any) -> None:
    for block in taken(3 * 1000, 132, 1000, shared=shared):
        assert block[0] // 1000 == block[-1] // 1000
    assert any(block[0] // 600 != block[-1] // 600 for block in taken(5 * 600, 132, 600, shared=shared))


def test_the_first_sections_that_fit_are_the_parts(shared: Any) -> None:
    even_shares = shared("cuda_stream").even_shares
    assert even_shares(1200, 132, 100, 300) == (9, 1, 12, 100)  # twelve frames, eleven blocks each
    assert even_shares(1200, 132, 75, 300) == (9, 3, 4, 300)  # sixteen frames of four samples
    assert even_shares(1300, 132, 70) == (9, 112, 1, 1300)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a part to each sample": ("norm_scale_shift/fused_cuda@3", {"batch": 3, "tokens": 67, "hidden": 264, "affine": True}),
    "samples that blocks straddle": ("residual_gate_norm_scale_shift/fused_cuda@3", {"batch": 5, "tokens": 41, "hidden": 264}),
    "a part to each frame": (
        "norm_scale_shift/fused_cuda@3", {"batch": 1, "tokens": 150, "hidden": 264, "modulation": "frame", "frames": 3},
    ),
    "row sets of samples": ("norm_scale_shift_gate_select01/fused_cuda@3", {"batch": 3, "tokens": 70, "hidden": 264, "index": "random"}),
    "every grid-th row": ("norm_scale_shift/fused_cuda@2", {"batch": 2, "tokens": 70, "hidden": 264}),
}  # fmt: skip


@pytest.fixture
def error_of(collection: Any, one_rounding: Any, built: Path) -> Callable[..., float]:
    """`error_of(case, planted)`: the largest error of any output in units of one rounding, infinite where one is NaN."""

    def error(case: str, planted: Mapping[str, str] | None = None) -> float:
        name, fields = CASES[case]
        op = collection.op(name.partition("/")[0])
        ran = run_case(op, collection.kernel(name), fields, built, late=True, planted=planted)
        assert [source.entry.endswith("_stream") for source in ran.launched] == [True]
        return largest(one_rounding(value, ran.reference[output]) for output, value in ran.outputs.items())

    return error


@pytest.mark.parametrize("case", CASES)
def test_every_output_is_rounded_once(error_of: Any, case: str) -> None:
    assert error_of(case) <= 1


@pytest.mark.parametrize(
    ("case", "right", "wrong"),
    [
        ("a part to each sample", "min(place, (u32)more)", "0"),
        ("a part to each sample", "part * (u32)part_rows", "0"),
        ("samples that blocks straddle", "if (row == until)", "if (row == rows.first)"),
        ("row sets of samples", "(place < (u32)more)", "0"),
    ],
)
def test_a_row_that_is_left_out_or_takes_other_values_is_seen(error_of: Any, case: str, right: str, wrong: str) -> None:
    assert error_of(case, {right: wrong}) > 1
