"""How rows are dealt out to persistent blocks (`even_shares` and `Rows` of row_stream.cuh)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

LAUNCHES = [(1, 1), (7, 7), (132, 132), (1000, 132), (4096, 264), (4097, 396), (5516, 264), (75600, 2112)]


def taken(blocks: int, shares: Any) -> list[range]:
    """The rows of each block, as `Rows` reckons them."""
    least, more, step, parts, part_rows = shares
    found = []
    for block in range(blocks):
        place, part = divmod(block, parts)
        begin, end = part * part_rows, (part + 1) * part_rows
        if step == 1:
            first = begin + place * least + min(place, more)
            found.append(range(first, min(end, first + least + (place < more))))
        else:
            found.append(range(begin + place, end, step))
    return found


@pytest.mark.parametrize("dealing", ["even_shares", "in_step"])
@pytest.mark.parametrize(("rows", "blocks"), LAUNCHES)
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 12])
def test_every_row_is_of_one_block_and_none_has_two_more_than_another(
    shared: Any, rows: int, blocks: int, parts: int, dealing: str
) -> None:
    module, length = shared("cuda_stream"), parts * rows
    part = rows if module.fits(length, blocks, rows) else length
    shares = module.in_step(length, blocks, part) if dealing == "in_step" else module.even_shares(length, blocks, (rows,))
    assert shares.part_rows == part
    blocks_taken = taken(blocks, shares)
    assert sorted(row for block in blocks_taken for row in block) == list(range(length))
    sizes = [len(block) for block in blocks_taken]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_no_block_has_rows_of_two_samples_where_the_blocks_can_be_dealt_out_so(shared: Any) -> None:
    even_shares = shared("cuda_stream").even_shares
    for block in taken(132, even_shares(3 * 1000, 132, (1000,))):
        assert block[0] // 1000 == block[-1] // 1000
    assert any(block[0] // 600 != block[-1] // 600 for block in taken(132, even_shares(5 * 600, 132, (600,))))


def test_the_first_sections_that_fit_are_the_parts(shared: Any) -> None:
    even_shares = shared("cuda_stream").even_shares
    assert even_shares(1200, 132, (100, 300)) == (9, 1, 1, 12, 100)  # twelve frames, eleven blocks each
    assert even_shares(1200, 132, (75, 300)) == (9, 3, 1, 4, 300)  # sixteen frames of four samples
    assert even_shares(1300, 132, (70,)) == (9, 112, 1, 1, 1300)


def memory(module: Any) -> Any:
    """Of an H200."""
    return module.RingMemory(227 * 1024, 228 * 1024)


def combined(module: Any, hidden: int = 3072, *, rows: int = 3072, kept_words: int = 16, **more: Any) -> Any:
    """The split of a norm of 16 bits on an H200."""
    return module.split_combined(hidden, 2, 1, rows, 132, kept_words=kept_words, live_words=12, memory=memory(module), **more)


def test_blocks_are_in_step_where_each_has_rows_of_one_section_alone(shared: Any) -> None:
    module = shared("cuda_stream")

    def split(rows: int, *sections: int, **more: Any) -> Any:
        return combined(module, rows=rows, sections=sections, **more)

    of_one, of_samples, of_frames = split(4096, 4096, 4096), split(4096, 1024, 1024), split(27280, 880, 27280)
    assert of_one.shares.step == of_one.blocks
    assert of_samples.shares[2:] == (of_samples.blocks // 4, 4, 1024)
    assert of_frames.shares.step == 1 <= of_frames.shares.least < module.SECTION_CHUNK
    # Rows that are ordered by what they select, and long queues, which the hardware balances, are neighbours.
    assert split(4096, 4096, selects=True).shares.step == 1
    assert split(75600, 75600, 75600).shares.least <= module.MOST_CHUNK


def test_a_second_block_is_worth_a_few_registers_that_lack(shared: Any) -> None:
    """7 warps, twice, of 4 vectors to a lane where 140 registers are wanted and 128 are there; 12 registers more are too many."""
    module = shared("cuda_stream")
    split = combined(module, 6272, kept_words=16)
    assert (split.warps, split.min_blocks) == (7, 2)
    needed = module.OTHER_REGISTERS + module.WIDE_LANES * (16 + 12)
    assert 0 < needed - module._registers(split.warps * split.min_blocks) <= module.LACKING
    assert combined(module, 6272, kept_words=20).min_blocks == 1


@pytest.mark.parametrize(("hidden", "kept_words"), [(1024, 16), (3072, 16), (3584, 8), (6272, 16), (7224, 20)])
def test_choices_bound_slots_and_warps(shared: Any, hidden: int, kept_words: int) -> None:
    module = shared("cuda_stream")
    default = combined(module, hidden, kept_words=kept_words)
    three, fewer = (
        combined(module, hidden, kept_words=kept_words, tile=module.STREAM_TILES[name]) for name in ("three_slots", "fewer_warps")
    )
    assert (three.warps, three.min_blocks, three.stages) == (default.warps, default.min_blocks, 3)
    assert three.shared_bytes < default.shared_bytes
    assert fewer.warps * fewer.min_blocks <= 16 or fewer.min_blocks == 1


@pytest.mark.parametrize("rows", [1, 5, 132, 396, 397, 2111, 2112, 4096])
def test_a_launch_is_compiled_without_a_loop_where_every_block_has_one_row(shared: Any, rows: int) -> None:
    module = shared("cuda_stream")
    splits = [module.split_stream(3072, 2, streams, rows, 132, shared_words=8, memory=memory(module)) for streams in (1, 2)]
    splits += [
        combined(module, rows=rows, sections=sections, selects=selects)
        for sections in ((), (rows,), (1, rows))
        for selects in (False, True)
    ]
    for split in splits:
        assert split.shares.single == (split.blocks == rows)
        assert split.macros(3072)["SINGLE"] == split.shares.single
    assert any(split.shares.single for split in splits) == (rows < 2112)


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
def error_of(error_on_cpu: Callable[..., float]) -> Callable[..., float]:
    """`error_of(case, planted)`: `error_on_cpu` of a case, of whose copies each comes as late as it may."""
    return lambda case, planted=None: error_on_cpu(*CASES[case], "_stream", late=True, planted=planted)


@pytest.mark.parametrize("case", CASES)
def test_every_output_is_rounded_once(error_of: Any, case: str) -> None:
    assert error_of(case) <= 1


@pytest.mark.parametrize(
    ("case", "right", "wrong"),
    [
        ("a part to each sample", "(blockIdx.x - place * (u32)parts)", "0"),
        ("a part to each sample", ": place);", ": 0);"),
        ("row sets of samples", "min(place, (u32)more)", "0"),
        ("samples that blocks straddle", "if (row != until) return;", "if (row != rows.first) return;"),
        ("row sets of samples", "(place < (u32)more)", "0"),
    ],
)
def test_a_row_that_is_left_out_or_takes_other_values_is_seen(error_of: Any, case: str, right: str, wrong: str) -> None:
    assert error_of(case, {right: wrong}) > 1
