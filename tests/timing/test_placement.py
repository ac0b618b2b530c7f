"""Arms on buffers of their own: what is called, what is restored, what the yardsticks move."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusebench import Part
from fusebench.registry import Collection, Kernel
from fusebench.registry.calling import bound_call
from fusebench.timing import placement as placement_module
from fusebench.timing.placement import CONTROL, COPY, STREAM, ArmSpec, Placement, arm_specs, memory_bytes, minimum_bytes

CPU = torch.device("cpu")


@pytest.fixture
def place(toy: Collection, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Placement]:
    """`place(values, op)`: a placement with little padding."""
    monkeypatch.setattr(placement_module, "PADDING_LIMIT", 4096)

    def build(values: dict[str, torch.Tensor], op: Any = None, seed: int = 1) -> Placement:
        size = next(iter(values.values())).numel()
        return Placement(op or toy.ops["scale"], toy.ops["scale"].Params(size=size), values, CPU, random.Random(seed))

    return build


def test_the_arms_are_both_yardsticks_the_baseline_twice_and_every_other_kernel(
    toy: Collection, make_kernel: Callable[..., Kernel]
) -> None:
    baseline, other = toy.kernels["scale/split@1"], make_kernel("other", lambda x, *, factor: None)
    specs = arm_specs([other, baseline], baseline)
    assert [spec.name for spec in specs] == [COPY, STREAM, "scale/split@1", CONTROL, "scale/other@1"]
    assert [spec.kernel for spec in specs] == [None, None, baseline, baseline, other]


def test_the_bytes_of_an_arm_are_those_of_its_own_params_and_of_its_part_less_what_a_cache_keeps_of_the_written_ones(
    toy: Collection, make_kernel: Callable[..., Kernel]
) -> None:
    op, kernel, partial = toy.ops["scale"], make_kernel("whole", lambda x, *, factor: None), make_kernel("part", lambda x, *, factor: None)
    partial.part = Part(
        covers="half", reference=lambda params, arguments: {}, split=lambda **_: (), minimum_bytes=lambda params: 3 * params.size
    )
    case, more = op.Params(size=16), op.Params(size=20)
    specs = [ArmSpec(COPY, None), ArmSpec("usual", kernel), ArmSpec("more", kernel, more), ArmSpec("part", partial)]
    assert [minimum_bytes(spec, op, case) for spec in specs] == [128, 128, 160, 48]
    assert [memory_bytes(spec, op, case, 0) for spec in specs] == [128, 128, 160, 48]
    assert [memory_bytes(spec, op, case, 30) for spec in specs] == [98, 98, 130, 24]
    assert [memory_bytes(spec, op, case, 2**20) for spec in specs] == [64, 64, 80, 24]


def test_a_kernel_is_called_as_model_code_does_tensors_by_position_the_rest_by_name(
    toy: Collection, make_kernel: Callable[..., Kernel]
) -> None:
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    kernel = make_kernel("spy", lambda *args, **kwargs: seen.append((args, kwargs)))
    x = torch.ones(4)
    bound_call(toy.ops["scale"], kernel, {"factor": 3.0, "x": x})()
    assert seen == [((x,), {"factor": 3.0})]


def test_a_call_overwrites_its_own_copy_and_restore_puts_it_back(
    place: Callable[..., Placement], make_kernel: Callable[..., Kernel]
) -> None:
    values = {"x": torch.arange(1.0, 9.0)}
    seen: list[torch.Tensor] = []

    def double(x: torch.Tensor, *, factor: float) -> None:
        seen.append(x)
        x.mul_(factor)

    arm = place(values).arm(ArmSpec("double", make_kernel("double", double)))
    arm.call()
    arm.call()
    assert torch.equal(seen[0], 4 * values["x"]), "the planted drift of an arm that is not restored"
    arm.restore()
    assert torch.equal(seen[0], values["x"])
    assert torch.equal(values["x"], torch.arange(1.0, 9.0)), "the original values are nobody's to write"


def test_arms_share_no_memory(place: Callable[..., Placement], make_kernel: Callable[..., Kernel]) -> None:
    storages: list[int] = []
    kernel = make_kernel("spy", lambda x, *, factor: storages.append(x.untyped_storage().data_ptr()))
    values = {"x": torch.ones(64)}
    placed = place(values)
    arms = [placed.arm(ArmSpec(name, kernel)) for name in ("a", "b", CONTROL)]
    for arm in arms:
        arm.call()
    assert len({*storages, values["x"].untyped_storage().data_ptr()}) == 4


def test_padding_is_random_and_reproducible_and_kept(place: Callable[..., Placement], make_kernel: Callable[..., Kernel]) -> None:
    kernel = make_kernel("idle", lambda x, *, factor: None)

    def paddings(seed: int) -> list[int]:
        placed = place({"x": torch.ones(8)}, seed=seed)
        kept = [placed.arm(ArmSpec("a", kernel)) for _ in range(6)]
        assert len(kept) == 6
        return [padding.numel() for padding in placed._padding]

    assert paddings(1) == paddings(1)
    assert paddings(1) != paddings(2)
    assert all(size % placement_module.PADDING_STEP == 0 for size in paddings(1))


def test_the_copy_moves_the_ops_minimum_bytes(place: Callable[..., Placement]) -> None:
    arm = place({"x": torch.ones(1024)}).arm(ArmSpec(COPY, None))
    target = arm.call()
    assert isinstance(target, torch.Tensor)
    assert 2 * target.nbytes == 8 * 1024, "read once and written once, the op's minimum_bytes"
    assert target.unique().numel() > 500, "random words: power and clocks depend on the data"


@pytest.mark.parametrize("in_place", [True, False])
def test_the_stream_reads_and_writes_as_many_bytes_in_place_where_the_op_works_in_place(
    place: Callable[..., Placement], toy: Collection, in_place: bool
) -> None:
    class Op(type(toy.ops["scale"])):  # type: ignore[misc]
        pass

    op = Op()
    op.in_place = in_place
    arm = place({"x": torch.ones(1024)}, op).arm(ArmSpec(STREAM, None))
    first = arm.call()
    assert isinstance(first, torch.Tensor)
    before = first.clone()
    second = arm.call()
    assert isinstance(second, torch.Tensor)
    assert 2 * second.nbytes == 8 * 1024
    # In place, the second call flips every bit back; out of place, it makes the same result of the same source.
    assert torch.equal(second, ~before if in_place else before)


def test_only_what_an_op_overwrites_is_restored(
    toy: Collection, place: Callable[..., Placement], make_kernel: Callable[..., Kernel]
) -> None:
    """The op's output is a strided view of a packed buffer, as q and k are of a QKV projection."""

    class Packed(type(toy.ops["scale"])):  # type: ignore[misc]
        def arguments(self, params: Any, buffers: Any) -> dict[str, Any]:
            return {"x": buffers["x"][::2], "factor": 2.0}

    seen: list[torch.Tensor] = []

    def overwrite(x: torch.Tensor, *, factor: float) -> None:
        seen.append(x)
        x._base.fill_(-1.0)  # type: ignore[union-attr]

    values = {"x": torch.arange(8.0)}
    arm = place(values, Packed()).arm(ArmSpec("a", make_kernel("a", overwrite)))
    arm.call()
    arm.restore()
    assert torch.equal(seen[0]._base, torch.tensor([0.0, -1, 2, -1, 4, -1, 6, -1]))


class Indexed:
    """An op of a table and an index into it, both as long as its Params say."""

    def __init__(self, toy: Collection) -> None:
        self._scale = toy.ops["scale"]
        self.in_place = False
        self.schema = self._scale.schema

    def arguments(self, params: Any, buffers: Any) -> dict[str, Any]:
        return {"x": buffers["x"], "factor": buffers["index"]}


def test_arms_placed_together_lie_in_the_same_buffers_and_the_shorter_one_in_their_beginning(
    toy: Collection, place: Callable[..., Placement], make_kernel: Callable[..., Kernel]
) -> None:
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def spy(name: str) -> Kernel:
        return make_kernel(name, lambda x, *, factor: seen.update({name: (x, factor)}))

    op, case, more = Indexed(toy), toy.ops["scale"].Params(size=64), toy.ops["scale"].Params(size=80)
    values = {"x": torch.randn(64), "index": torch.arange(64)}
    longer = {"x": torch.randn(80), "index": torch.arange(80)}
    specs = [ArmSpec("new", spy("new"), more), ArmSpec("old", spy("old")), ArmSpec("twin", spy("twin"), case)]
    for arm in place(values, op).together(specs[:2], {"new": longer}):
        arm.call()
    (new, new_index), (old, old_index) = seen["new"], seen["old"]
    assert new.data_ptr() == old.data_ptr()
    assert (new.shape, old.shape) == ((80,), (64,))
    assert new_index.data_ptr() != old_index.data_ptr(), "what the longer one looks up the shorter one does not have"
    assert torch.equal(new_index, longer["index"])
    assert torch.equal(old_index, values["index"])
    for arm in place(values, op).together([specs[1], ArmSpec("twin", spy("twin"))], {}):
        arm.call()
    assert [one.data_ptr() for one in seen["twin"]] == [one.data_ptr() for one in seen["old"]], "equal inputs: integers are shared too"


def test_each_arm_in_shared_buffers_is_restored_to_its_own_values(
    place: Callable[..., Placement], toy: Collection, make_kernel: Callable[..., Kernel]
) -> None:
    seen: list[torch.Tensor] = []

    def double(x: torch.Tensor, *, factor: float) -> None:
        seen.append(x.clone())
        x.mul_(factor)

    values, longer = {"x": torch.arange(1.0, 9.0)}, {"x": torch.arange(11.0, 31.0)}
    specs = [ArmSpec("more", make_kernel("more", double), toy.ops["scale"].Params(size=20)), ArmSpec("usual", make_kernel("usual", double))]
    arms = place(values).together(specs, {"more": longer})
    for arm in (*arms, *arms):
        arm.restore()
        arm.call()
    assert all(torch.equal(x, longer["x"]) for x in seen[::2])
    assert all(torch.equal(x, values["x"]) for x in seen[1::2])
