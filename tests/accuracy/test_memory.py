"""Guards: whatever is written outside the elements that may change is found and located."""

from __future__ import annotations

import pytest
import torch

from fusebench.accuracy.memory import ALIGNMENT, GUARD_BYTES, Placed, place

CPU = torch.device("cpu")


def placed_pair() -> Placed:
    placed = place({"x": torch.randn(5, 7).bfloat16(), "positions": torch.arange(5)}, device=CPU)
    placed.snapshot()
    return placed


def test_buffers_keep_their_values_shapes_dtypes_and_alignment() -> None:
    originals = {"a": torch.randn(3, 5).t(), "b": torch.tensor([True, False, True]), "c": torch.empty(0, 4), "d": torch.arange(3)}
    placed = place(originals, device=CPU, lead_bytes=lambda: 17)
    for name, original in originals.items():
        buffer = placed.buffers[name]
        assert buffer.dtype == original.dtype
        assert torch.equal(buffer, original)
        assert buffer.is_contiguous()
        assert not buffer._is_view(), "torch.compile treats a view of bytes differently"
        assert original.numel() == 0 or buffer.data_ptr() % ALIGNMENT == 0


def test_each_buffer_has_a_storage_of_its_own_and_leads_move_it() -> None:
    leads = iter((0, 1000))
    placed = place({"a": torch.zeros(4), "b": torch.zeros(4)}, device=CPU, lead_bytes=lambda: next(leads))
    a, b = placed.buffers["a"], placed.buffers["b"]
    assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()
    before = [tensor.storage_offset() * 4 for tensor in (a, b)]
    assert before[0] >= GUARD_BYTES
    assert before[1] >= GUARD_BYTES + 1000


def test_nothing_written_is_no_violation() -> None:
    placed = placed_pair()
    _ = placed.buffers["x"] * 2
    assert placed.violations() == []


def test_one_element_past_the_end_is_found() -> None:
    placed = placed_pair()
    x = placed.buffers["x"]
    x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(1.0)
    (violation,) = placed.violations([x])
    assert violation == "guard after buffer 'x': 2 bytes changed, first 0 bytes past the buffer's end"


def test_one_element_before_the_start_is_found() -> None:
    placed = placed_pair()
    positions = placed.buffers["positions"]
    positions.as_strided((1,), (1,), positions.storage_offset() - 1).fill_(7)
    (violation,) = placed.violations()
    assert violation == "guard before buffer 'positions': 8 bytes changed, nearest 1 byte before the buffer's start"


def test_the_last_guard_byte_is_compared() -> None:
    placed = placed_pair()
    x = placed.buffers["x"]
    whole = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
    whole[-1] ^= 1
    whole[0] ^= 1
    assert [text.split(":")[0] for text in placed.violations([x])] == ["guard before buffer 'x'", "guard after buffer 'x'"]


def test_a_changed_read_only_input_is_found_and_located() -> None:
    placed = placed_pair()
    placed.buffers["positions"][3] = 99
    (violation,) = placed.violations([placed.buffers["x"]])
    assert violation.startswith("buffer 'positions': 1 byte changed, first at byte 24 (element 3)")


def test_only_the_viewed_elements_of_a_packed_buffer_may_change() -> None:
    placed = place({"qkv": torch.zeros(4, 3, 8)}, device=CPU)
    placed.snapshot()
    qkv = placed.buffers["qkv"]
    q, k, v = qkv.unbind(1)
    q.fill_(1.0)
    k.fill_(2.0)
    assert placed.violations([q, k]) == []
    v[2, 5] = 3.0
    (violation,) = placed.violations([q, k])
    assert f"(element {2 * 24 + 16 + 5})" in violation


def test_nan_in_a_read_only_buffer_equals_itself() -> None:
    placed = place({"x": torch.full((4,), float("nan"))}, device=CPU)
    placed.snapshot()
    assert placed.violations() == []


def test_the_guard_is_nan_in_every_activation_dtype() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = place({"x": torch.zeros(3, dtype=dtype)}, device=CPU).buffers["x"]
        around = x.as_strided((2,), (x.numel() + 1,), x.storage_offset() - 1)
        assert bool(around.isnan().all()), f"an out-of-bounds read of {dtype} would not show"


def test_memory_outside_the_buffers_is_recognised() -> None:
    placed = placed_pair()
    foreign = torch.zeros(3)
    assert placed.unguarded({"x": placed.buffers["x"][1:], "copy": foreign, "eps": 1e-6, "absent": None}) == ["copy"]
    assert placed.owner(placed.buffers["x"][2]) == "x"
    with pytest.raises(ValueError, match="not a view of a placed buffer"):
        placed.violations([foreign])


def test_comparing_without_a_snapshot_is_refused() -> None:
    with pytest.raises(ValueError, match="call snapshot"):
        place({"x": torch.zeros(1)}, device=CPU).violations()


def test_refilled_buffers_hold_other_values_at_the_same_addresses() -> None:
    placed = place({"x": torch.zeros(3, 4)}, device=CPU)
    address = placed.buffers["x"].data_ptr()
    placed.refill({"x": torch.ones(4, 3).t()})
    placed.snapshot()
    assert torch.equal(placed.buffers["x"], torch.ones(3, 4))
    assert placed.buffers["x"].data_ptr() == address
    assert placed.violations() == []
