"""Kernels of a case share its draws: computed once, the same for all, and out of the kernels' reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusebench.accuracy import shared_draws
from fusebench.accuracy.shared_draws import Draws, DrawStore


class Counted:
    """How often the reference and the split chain of an op ran, and a sum of every input that each kernel saw."""

    def __init__(self) -> None:
        self.references = self.splits = 0
        self.seen: list[list[float]] = []


@pytest.fixture
def counted(toys: Any, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Counts calls of `rms_scale`'s reference and split chain."""
    counted = Counted()
    reference, split = toys.rms_scale.reference, toys.rms_split.function

    def count_reference(params: Any, arguments: Any) -> Any:
        counted.references += 1
        return reference(params, arguments)

    def count_split(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        counted.splits += 1
        return split(x, weight)  # type: ignore[no-any-return]

    monkeypatch.setattr(toys.rms_scale, "reference", count_reference, raising=False)
    monkeypatch.setattr(toys.rms_split, "function", count_split)
    return counted


def looking(toys: Any, counted: Counted) -> Any:
    """An honest kernel that notes its inputs."""
    seen: list[float] = []
    counted.seen.append(seen)

    def kernel(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.double().nan_to_num(0.0, 0.0, 0.0).sum()))
        return toys.fused(x, weight)  # type: ignore[no-any-return]

    return kernel


def test_references_and_split_chain_are_computed_once_per_draw_not_once_per_kernel(toys: Any, counted: Counted) -> None:
    store = DrawStore()
    found = [toys.check(toys.rms_scale, looking(toys, counted), seed=7, store=store) for _ in range(4)]
    assert all(accuracy.passed for accuracy in found)
    draws = {accuracy.draws for accuracy in found}
    assert draws == {counted.references} == {counted.splits}
    assert all(seen == counted.seen[0] for seen in counted.seen), "every kernel is judged on the same inputs"
    assert len(set(counted.seen[0])) == counted.references, "and every draw has values of its own"


def test_another_seed_or_case_has_draws_of_its_own(toys: Any, counted: Counted) -> None:
    store = DrawStore()
    first, second = (toys.check(toys.rms_scale, looking(toys, counted), seed=seed, store=store) for seed in (7, 8))
    assert not set(counted.seen[0]) & set(counted.seen[1])
    other = toys.check(toys.rms_scale, looking(toys, counted), toys.Params(rows=64), seed=8, store=store)
    assert counted.references == sum(accuracy.draws for accuracy in (first, second, other))


def test_a_seed_repeats_the_draws_of_a_shared_check(toys: Any, counted: Counted) -> None:
    """`--seed` of a failure's record: with one kernel alone, and where another kernel needed more draws before."""
    store = DrawStore()
    toys.check(toys.rms_scale, lambda x, weight: toys.split_norm(x, weight) * 1.001, toys.Params(rows=16), seed=7, store=store)
    shared = toys.check(toys.rms_scale, looking(toys, counted), toys.Params(rows=16), seed=7, store=store)
    alone = toys.check(toys.rms_scale, looking(toys, counted), toys.Params(rows=16), seed=7)
    assert counted.seen[0] == counted.seen[1]
    assert shared == alone


def test_without_room_draws_are_computed_for_each_kernel_and_stay_the_same(
    toys: Any, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_draws, "room_on", lambda device: 0)
    monkeypatch.setattr("fusebench.accuracy.gate.room_on", lambda device: 0)
    store = DrawStore()
    found = [toys.check(toys.rms_scale, looking(toys, counted), seed=7, store=store) for _ in range(2)]
    assert counted.references == 2 * found[0].draws
    assert counted.seen[0] == counted.seen[1]
    assert found[0] == found[1]


def test_what_is_kept_takes_no_more_than_its_room(toys: Any) -> None:
    def kept(room: int) -> int:
        draws = Draws(toys.rms_scale, toys.Params(), split=toys.rms_split, device=torch.device("cpu"), seed=1, room=room)
        made = [draws.draw(1e3, number, ()) for number in range(3)]
        assert all(draw.nbytes == made[0].nbytes for draw in made)
        return sum(draws.draw(1e3, number, ()) is draw for number, draw in enumerate(made))

    size = 96 * 64 * (2 + 8 + 2) + 64 * 2
    assert [kept(room) for room in (0, size - 1, size, 2 * size, 10 * size)] == [0, 0, 1, 2, 3]


def test_a_stray_write_into_what_other_kernels_use_is_caught_and_spoils_nothing(toys: Any, counted: Counted) -> None:
    store = DrawStore()
    right = toys.check(toys.rms_scale, looking(toys, counted), seed=7, store=store)

    def stray(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        (draws,) = store._draws.values()
        draw, _ = next(iter(draws._kept.values()))
        draw.references["y"].values[95, 63] += 1e-9
        return toys.fused(x, weight)  # type: ignore[no-any-return]

    wrong = toys.check(toys.rms_scale, stray, seed=7, store=store)
    assert not wrong.passed
    assert "writes far outside of its buffers" in wrong.reason
    assert toys.check(toys.rms_scale, looking(toys, counted), seed=7, store=store) == right


def test_right_values_of_a_draw_do_not_stay_in_memory_for_the_next_kernel(toys: Any) -> None:
    returned: list[torch.Tensor] = []

    def keeping(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        returned.append(toys.fused(x, weight))
        return returned[-1]

    assert toys.check(toys.rms_scale, keeping, seed=7).passed
    assert returned
    assert all(bool(torch.isnan(output).all()) for output in returned)


def test_no_kernel_is_given_a_tensor_that_the_others_use(toys: Any, counted: Counted) -> None:
    """A kernel that changes its inputs fails, and the next one is checked on the pristine values."""
    store = DrawStore()

    def spoiling(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        output = toys.fused(x, weight)
        x.fill_(7.0)
        weight.zero_()
        return output  # type: ignore[no-any-return]

    assert not toys.check(toys.rms_scale, spoiling, seed=7, store=store).passed
    assert toys.check(toys.rms_scale, looking(toys, counted), seed=7, store=store) == toys.check(
        toys.rms_scale, looking(toys, counted), seed=7
    )


def test_draws_of_an_in_place_op_are_shared_too(toys: Any) -> None:
    store = DrawStore()
    first, second = (toys.check(toys.packed, toys.packed_fused, seed=7, store=store) for _ in range(2))
    assert first.passed
    assert first == second
