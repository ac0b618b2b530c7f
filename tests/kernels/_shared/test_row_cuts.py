"""How rows are cut into tiles and warps: everything is covered, nothing is idle where it need not be, and the source accepts it."""

from __future__ import annotations

from typing import Any

import pytest

ALL_HIDDEN = range(8, 8192 + 8, 8)
MODELS_HIDDEN = (1536, 3072, 3840, 5120, 6144)
H200_MULTIPROCESSORS = 132


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


VERSIONS = [f"{op}/fused_triton@{version}" for op in ("norm_scale_shift", "residual_gate_norm_scale_shift") for version in (1, 2)]


@pytest.mark.parametrize("name", ["tuned", "two_tiles", "flat", *VERSIONS])
def test_tiles_are_powers_of_two_that_cover_the_row(shared: Any, tile_of: Any, name: str) -> None:
    make = tile_of(name) if name in VERSIONS else getattr(shared("row_tiles"), name)
    for hidden in ALL_HIDDEN:
        tile = make(hidden)
        assert all(is_power_of_two(number) for number in (tile.rows, tile.head, tile.num_warps, tile.tail or 1)), hidden
        assert tile.head + tile.tail >= hidden, hidden
        # The tail alone is masked: a head that did not fit would need the mask of both.
        assert tile.tail == 0 or tile.head < hidden, hidden
        assert tile.num_warps <= 8, hidden


def test_the_tuned_tile_has_work_for_every_thread_and_no_more_than_registers_hold(shared: Any) -> None:
    for hidden in ALL_HIDDEN:
        tile = shared("row_tiles").tuned(hidden)
        each = tile.rows * (tile.head + tile.tail) / (32 * tile.num_warps)
        assert 16 <= each <= 64, (hidden, tile)


def test_wide_rows_are_one_block_on_four_warps(shared: Any) -> None:
    tuned = shared("row_tiles").tuned
    assert {hidden: tuple(tuned(hidden)) for hidden in MODELS_HIDDEN} == {
        1536: (1, 1024, 512, 1), 3072: (1, 4096, 0, 4), 3840: (1, 4096, 0, 4), 5120: (1, 8192, 0, 4), 6144: (1, 8192, 0, 4)
    }  # fmt: skip


def test_two_tiles_leave_no_lane_idle_where_two_powers_of_two_make_a_row(shared: Any, tile_of: Any) -> None:
    idle = {hidden: sum(shared("row_tiles").two_tiles(hidden)[1:3]) - hidden for hidden in MODELS_HIDDEN}
    assert idle == {1536: 0, 3072: 0, 3840: 256, 5120: 0, 6144: 0}
    assert tile_of("norm_scale_shift/fused_triton@1")(3072).head == 4096, "the simple tile idles a quarter"


@pytest.mark.parametrize("rows", [1, 6, 512, 4096, 100_000])
@pytest.mark.parametrize("item_size", [2, 4])
@pytest.mark.parametrize("inputs", [1, 2])
def test_every_row_has_warps_that_the_source_accepts(shared: Any, item_size: int, inputs: int, rows: int) -> None:
    cuda_rows = shared("cuda_rows")
    for hidden in ALL_HIDDEN:
        split = cuda_rows.split_row(hidden, item_size, inputs, rows, H200_MULTIPROCESSORS, narrow=item_size == 2)
        vectors = hidden * item_size // 16
        assert split.warps in (1, 2, 4, 8)
        assert 32 * (split.warps - 1) < vectors, "every warp holds elements"
        assert split.warps == 8 or cuda_rows.words(vectors, split.warps) * inputs <= cuda_rows.MOST_WORDS
        assert 1 <= cuda_rows.grid(rows, split, H200_MULTIPROCESSORS) <= H200_MULTIPROCESSORS * split.min_blocks


def test_a_row_of_2048_has_one_warp_and_short_streams_have_more(shared: Any) -> None:
    def warps(hidden: int, rows: int) -> int:
        return int(shared("cuda_rows").split_row(hidden, 2, 1, rows, H200_MULTIPROCESSORS, narrow=True).warps)

    assert [warps(hidden, 4096) for hidden in (64, 2048, 2056, 4096, 8192)] == [1, 1, 2, 2, 4]
    assert warps(3072, 100_000) == 2
    assert warps(3072, 6) == 8
    assert warps(64, 6) == 1, "more warps than vectors would be idle"


@pytest.mark.parametrize("rows", [1, 6, 512, 4096, 100_000])
@pytest.mark.parametrize("item_size", [2, 4])
@pytest.mark.parametrize("inputs", [1, 2])
def test_rows_are_prefetched_only_where_registers_hold_two_and_a_second_row_comes(
    shared: Any, item_size: int, inputs: int, rows: int
) -> None:
    cuda_rows = shared("cuda_rows")
    for hidden in ALL_HIDDEN:
        split = cuda_rows.split_ahead(hidden, item_size, inputs, rows, H200_MULTIPROCESSORS, narrow=item_size == 2)
        vectors = hidden * item_size // 16
        assert split.warps in (1, 2, 4, 8)
        assert 32 * (split.warps - 1) < vectors, "every warp holds elements"
        if split.prefetch:
            assert 2 * inputs * cuda_rows.words(vectors, split.warps) <= cuda_rows.MOST_WORDS_AHEAD
            assert rows > cuda_rows.grid(rows, split, H200_MULTIPROCESSORS) * (cuda_rows.BLOCK_WARPS // split.warps), "a second row"


def test_the_splits_measured_best_are_the_ones_chosen(shared: Any) -> None:
    row_split = shared("cuda_rows").RowSplit

    def split(hidden: int, rows: int, inputs: int = 1, *, narrow: bool = True) -> Any:
        return shared("cuda_rows").split_ahead(hidden, 2, inputs, rows, H200_MULTIPROCESSORS, narrow=narrow)

    assert split(3072, 4096) == row_split(4, 3, True)
    assert split(6144, 4096) == row_split(8, 3, True)
    assert split(1536, 32760, narrow=False) == row_split(2, 3, True)
    assert split(5120, 75600, narrow=False) == row_split(8, 3, True)
    assert split(1536, 32760, 2, narrow=False) == row_split(2, 2, True)
    assert split(3072, 512) == row_split(4, 2, False)


def test_the_grid_has_no_block_without_rows(shared: Any) -> None:
    cuda_rows = shared("cuda_rows")
    split = cuda_rows.RowSplit(warps=2, min_blocks=3)
    assert cuda_rows.grid(5, split, 132) == 2
    assert cuda_rows.grid(100_000, split, 132) == 3 * 132


@pytest.mark.parametrize("item_size", [2, 4])
@pytest.mark.parametrize("each", [2, 4])
def test_a_row_of_its_own_block_leaves_no_warp_without_work(shared: Any, item_size: int, each: int) -> None:
    cuda_rows = shared("cuda_rows")
    for hidden in ALL_HIDDEN:
        split, vectors = cuda_rows.split_alone(hidden, item_size, each), hidden * item_size // 16
        assert split.threads == 32 * split.warps <= 1024, hidden
        assert 32 * (split.warps - 1) < vectors, hidden
        assert cuda_rows.grid(4096, split, H200_MULTIPROCESSORS) == 4096
    assert [cuda_rows.split_alone(3072, 2, count).warps for count in (4, 2)] == [3, 6], "384 vectors, and no lane without one"


def test_all_rows_are_resident_at_once_where_that_takes_no_more_registers_than_there_are(shared: Any) -> None:
    norms = shared("modulated_norm_cuda")

    def blocks(rows: int, hidden: int = 3072, inputs: int = 2) -> tuple[int, int]:
        split = norms.alone_split(hidden, 2, inputs, rows, H200_MULTIPROCESSORS)
        return split.warps, split.min_blocks

    assert [blocks(rows)[1] for rows in (6, 660, 661, 1024, 1056, 1057, 4096)] == [5, 5, 6, 8, 8, 5, 5]
    assert [blocks(rows, inputs=1)[0] for rows in (6, 660, 661, 4096)] == [6, 6, 3, 3], "two vectors to a lane, or four"


@pytest.mark.parametrize("item_size", [2, 4])
@pytest.mark.parametrize("inputs", [1, 2])
def test_neighbouring_rows_share_a_block_in_which_no_warp_is_without_work(shared: Any, item_size: int, inputs: int) -> None:
    cuda_rows = shared("cuda_rows")
    for hidden in ALL_HIDDEN:
        split, vectors = cuda_rows.split_neighbours(hidden, item_size, inputs), hidden * item_size // 16
        assert split.threads == 32 * split.warps <= 1024, hidden
        assert 32 * (split.warps - 1) < vectors, hidden
        assert cuda_rows.grid(7, split, H200_MULTIPROCESSORS) == {1: 3, 2: 4}[inputs], "a block for what is left of seven rows, too"
    widths = {hidden: cuda_rows.split_neighbours(hidden, 2, 1).warps for hidden in MODELS_HIDDEN}
    assert widths == {1536: 2, 3072: 4, 3840: 5, 5120: 5, 6144: 8}, "three vectors a lane, or four where three would leave lanes idle"
