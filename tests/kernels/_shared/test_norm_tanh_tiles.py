"""How rows of the norm_tanh ops are cut: everything is covered, few lanes are idle, few rows fill the GPU, and tanh is accurate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

ALL_HIDDEN = range(8, 8192 + 8, 8)
H200_MULTIPROCESSORS = 132
Z_IMAGE = 3840


@pytest.mark.parametrize("rows", [1, 4128])
def test_tiles_cover_the_row_and_give_each_thread_what_registers_hold(shared: Any, rows: int) -> None:
    for hidden in ALL_HIDDEN:
        tile = shared("norm_tanh.tiles").tuned(hidden, rows)
        assert tile.head + tile.tail >= hidden, hidden
        assert all(number & (number - 1) == 0 for number in (tile.rows, tile.head, tile.tail, tile.num_warps)), hidden
        assert 16 <= tile.rows * (tile.head + tile.tail) / (32 * tile.num_warps) <= 64, (hidden, tile)


def test_many_long_rows_share_a_program_and_few_do_not(shared: Any) -> None:
    tiles = shared("norm_tanh.tiles")
    assert [tiles.tuned(Z_IMAGE, rows).rows for rows in (1, 32, 4096, 4128)] == [1, 1, 2, 2]
    assert tiles.tuned(64, 4128) == tiles.tuned(64, 1), "short rows share one anyway"
    assert tiles.tuned(8192, 4128).rows == 1, "two would not fit into registers"


def test_rows_are_prefetched_where_there_is_a_second_one_to_fetch(shared: Any) -> None:
    def prefetches(hidden: int, rows: int, *, narrow: bool = True) -> bool:
        return bool(shared("norm_tanh.tiles").spread_row(hidden, 2, rows, H200_MULTIPROCESSORS, narrow=narrow).prefetch)

    assert prefetches(Z_IMAGE, 4128)
    assert not prefetches(Z_IMAGE, 32)
    assert not prefetches(Z_IMAGE, 4128, narrow=False), "float32 values take the registers"
    assert not prefetches(8192, 4128), "four vectors of each input do"


def test_only_the_cut_that_was_seen_to_fit_is_held_to_fewer_registers(shared: Any) -> None:
    tiles = shared("norm_tanh.tiles")
    limits = {hidden: tiles.most_registers(tiles.tuned(hidden, 4128), narrow=True) for hidden in (256, 3072, Z_IMAGE, 5120, 8192)}
    assert limits == {256: None, 3072: 80, Z_IMAGE: 80, 5120: None, 8192: None}
    assert tiles.most_registers(tiles.tuned(Z_IMAGE, 4128), narrow=False) is None
    assert tiles.most_registers(tiles.tuned(Z_IMAGE, 32), narrow=True) is None


@pytest.mark.parametrize("rows", [1, 32, 512, 4128, 100_000])
@pytest.mark.parametrize("item_size", [2, 4])
def test_every_row_has_warps_that_the_source_accepts(shared: Any, item_size: int, rows: int) -> None:
    for hidden in ALL_HIDDEN:
        split = shared("norm_tanh.tiles").spread_row(hidden, item_size, rows, H200_MULTIPROCESSORS, narrow=item_size == 2)
        vectors = hidden * item_size // 16
        assert 1 <= split.warps <= 8
        assert 32 * (split.warps - 1) < vectors, "every warp holds elements"
        assert split.threads == 32 * split.warps * split.rows <= 256
        assert split.rows <= 15, "a barrier for each row: there are 16, and the first is the block's"
        assert split.min_blocks * split.threads <= 2048
        assert 1 <= split.grid(rows, H200_MULTIPROCESSORS) <= min(rows, H200_MULTIPROCESSORS * split.min_blocks)


def test_z_images_row_leaves_no_lane_idle_and_short_streams_have_more_warps(shared: Any) -> None:
    def warps(hidden: int, rows: int) -> int:
        return int(shared("norm_tanh.tiles").spread_row(hidden, 2, rows, H200_MULTIPROCESSORS, narrow=True).warps)

    assert warps(Z_IMAGE, 4128) == 5
    assert Z_IMAGE // 8 == 5 * 32 * 3
    assert [warps(hidden, 4128) for hidden in (256, 1536, 3072, 4096, 6144, 8192)] == [1, 2, 4, 8, 8, 8]
    assert warps(Z_IMAGE, 32) == 8
    assert warps(64, 6) == 1, "more warps than vectors would be idle"


def tanh_by_launch(op: Any, shared: Any, gate: torch.Tensor, *, short: bool = False) -> torch.Tensor:
    """tanh of `gate` `[n]` in float32 as the kernels compute it: the gate stage alone, of ones with a residual of zero."""
    gate = gate.view(1, -1, 1024)
    ones, zero = torch.ones_like(gate), torch.zeros(1, device=gate.device)
    checked = op.Arguments(zero, ones, gate, None, None).checked()
    y = torch.empty_like(gate)
    with np.errstate(all="ignore"):  # the interpreter computes with NumPy, which warns of overflow
        shared("norm_tanh.launch").launch(checked, shared("row_tiles").tuned(1024), ones, y=y, residual=zero, gate=gate, short=short)
    return y.flatten()


def test_tanh_is_within_its_stated_units_in_the_last_place(collection: Any, shared: Any, device: torch.device) -> None:
    """Magnitudes from 1e-30 to 12, evenly by exponent and evenly around the change of formula, of both signs."""
    even = torch.cat((torch.logspace(-30, -1, 1024), torch.linspace(0.1, 12.0, 8192), torch.linspace(0.69, 0.71, 3072)))
    gate = torch.cat((even, -even)).to(device)
    found = tanh_by_launch(collection.op("norm_tanh_mul_add"), shared, gate).cpu()
    due = gate.double().tanh().cpu()
    unit = torch.from_numpy(np.spacing(due.abs().float().numpy())).double()
    errors = (found.double() - due).abs() / unit
    assert errors.max() <= 2.5 if device.type == "cpu" else errors.max() <= 4  # a GPU's exp2 and division add two units each at most
    assert errors[gate.cpu().abs() < 0.7].max() <= 0.9


def test_the_short_tanh_is_within_its_stated_share_of_the_value(collection: Any, shared: Any, device: torch.device) -> None:
    even = torch.cat((torch.logspace(-30, -2, 1024), torch.linspace(0.01, 0.12, 3072), torch.linspace(0.12, 12.0, 4096)))
    gate = torch.cat((even, -even)).to(device)
    due = gate.double().tanh().cpu()
    short, long = (
        (tanh_by_launch(collection.op("norm_tanh_mul_add"), shared, gate, short=short).cpu().double() / due - 1).abs().max()
        for short in (True, False)
    )
    assert long < 1e-6 < short < 4e-6, "the first shows that the second is seen"


@pytest.mark.parametrize("short", [False, True])
def test_tanh_saturates_and_keeps_nan_infinity_and_zero(collection: Any, shared: Any, device: torch.device, short: bool) -> None:
    special = torch.tensor([1e3, -1e3, 3e38, -3e38, float("inf"), -float("inf"), 9.1, -9.1, 0.0, -0.0, float("nan"), 1e-45])
    found = tanh_by_launch(
        collection.op("norm_tanh_mul_add"), shared, torch.cat((special, torch.zeros(1012))).to(device), short=short
    ).cpu()
    assert found[:8].tolist() == [1.0, -1.0] * 4
    assert found[8:10].tolist() == [0.0, 0.0]
    assert found[10].isnan()
    assert 0 <= found[11] <= 1e-44
