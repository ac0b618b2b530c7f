"""Bytes moved per byte that must be: stores count when they are made, whether or not they have left the L2."""

from __future__ import annotations

from typing import Any

import pytest

from fusebench.counters.traffic import describe, traffic

MIB = 2**20
PER_MIB = MIB // 32
"""Sectors."""


def moving(counted: Any, *launches: dict[str, float], minimum: int = 8 * MIB) -> Any:
    return traffic(counted.capture(launches=tuple(counted.launch(**figures) for figures in launches), minimum_bytes=minimum))


def test_a_fused_kernel_moves_what_it_must_although_dram_saw_a_third_less(counted: Any) -> None:
    """The real one: of 50.3 MB stored 26.9 MB were still in the L2, and DRAM had moved 48.7 MB of the minimum's 75.6 MB."""
    found = traffic(counted.capture("fused_triton@1"))
    assert found is not None
    assert found.read + found.written == pytest.approx(0.645 * counted.MINIMUM, rel=1e-2)
    assert found.left_in_l2 == pytest.approx(26.9e6, rel=1e-2)
    assert found.per_minimum_byte == pytest.approx(1.0, abs=1e-3)


def test_a_chain_moves_the_sum_over_its_launches(counted: Any) -> None:
    """It stores the normalised activations and reads them again: five activations' bytes where three would do."""
    found = traffic(counted.capture("split_triton@1"))
    assert found is not None
    assert found.per_minimum_byte == pytest.approx(5 / 3, rel=1e-2)
    assert "caches are flushed between its launches" in describe(found)
    assert "between its launches" not in describe(found, flushed=False)


def test_bytes_that_are_moved_twice_are_seen(counted: Any) -> None:
    """A planted kernel that reads its input once more than it must."""
    once = moving(counted, {"dram_read": 4 * MIB, "dram_written": 0, "l2_write_sectors": 4 * PER_MIB})
    twice = moving(counted, {"dram_read": 8 * MIB, "dram_written": 0, "l2_write_sectors": 4 * PER_MIB})
    assert once.per_minimum_byte == 1
    assert twice.per_minimum_byte == 1.5


def test_writes_below_the_minimum_are_explained_and_not_praised(counted: Any) -> None:
    found = moving(counted, {"dram_read": 4 * MIB, "dram_written": 0.5 * MIB, "l2_write_sectors": 4 * PER_MIB})
    assert found.per_minimum_byte == 1
    assert "3.7 MB of them still in the L2 when it ended" in describe(found)


def test_dram_may_write_more_than_was_stored(counted: Any) -> None:
    """A line that leaves the L2 and is stored to again is written twice: then DRAM's count is the larger one, and counts."""
    found = moving(counted, {"dram_read": 4 * MIB, "dram_written": 6 * MIB, "l2_write_sectors": 4 * PER_MIB})
    assert found.moved == 10 * MIB
    assert found.left_in_l2 == 0
    assert "still in the L2" not in describe(found)


def test_without_the_stores_counter_the_figure_is_a_lower_bound_and_says_so(counted: Any) -> None:
    found = moving(counted, {"dram_read": 4 * MIB, "dram_written": MIB})
    assert found.stored is None
    assert found.left_in_l2 is None
    text = describe(found)
    assert "at least 0.62 bytes" in text
    assert "lts__t_sectors_srcunit_tex_op_write.sum" in text


@pytest.mark.parametrize(("flushed", "reason"), [(True, "leaves work out"), (False, "inputs were found in the L2")])
def test_less_than_the_minimum_is_questioned(counted: Any, flushed: bool, reason: str) -> None:
    found = moving(counted, {"dram_read": 2 * MIB, "dram_written": 0, "l2_write_sectors": 4 * PER_MIB})
    assert reason in describe(found, flushed=flushed)


def test_rounding_below_the_minimum_is_not(counted: Any) -> None:
    found = moving(counted, {"dram_read": 3.9 * MIB, "dram_written": 0, "l2_write_sectors": 4 * PER_MIB})
    assert "less than" not in describe(found)


@pytest.mark.parametrize(
    "launches", [(), ({"dram_read": 1.0},), ({"dram_read": 1.0, "dram_written": 1.0}, {"time": 1.0})], ids=["none", "half", "one lacks it"]
)
def test_nothing_is_said_without_dram_bytes(counted: Any, launches: tuple[dict[str, float], ...]) -> None:
    assert moving(counted, *launches) is None


def test_nothing_is_said_of_an_op_without_a_minimum(counted: Any) -> None:
    assert moving(counted, {"dram_read": 1.0, "dram_written": 1.0}, minimum=0) is None
