"""Theoretical occupancy against values that NVIDIA's occupancy calculator gives."""

from __future__ import annotations

import pytest

from fusebench.errors import UnknownNameError
from fusebench.evidence.occupancy import occupancy
from fusebench.evidence.targets import KIB, TARGETS, target

KNOWN = [
    # target, threads, registers, shared bytes -> resident blocks, what limits
    ("sm_90", 256, 64, 0, 4, ("registers",)),
    ("sm_90", 256, 32, 0, 8, ("warps", "registers")),
    ("sm_90", 256, 33, 0, 6, ("registers",)),  # 33 x 32 rounds up to 1280 registers a warp: 12 warps to a quarter
    ("sm_90", 1024, 32, 0, 2, ("warps", "registers")),
    ("sm_90", 1024, 65, 0, 0, ("registers",)),  # 32 warps of 2304 registers are more than there are
    ("sm_90", 32, 16, 0, 32, ("blocks",)),
    ("sm_90", 128, 255, 0, 2, ("registers",)),
    ("sm_90", 128, 32, 48 * KIB, 4, ("shared",)),
    ("sm_90", 128, 32, 227 * KIB, 1, ("shared",)),
    ("sm_90", 128, 32, 227 * KIB + 1, 0, ("shared",)),
    ("sm_90", 100, 32, 0, 16, ("warps", "registers")),  # 100 threads are four warps
    ("sm_80", 256, 64, 32 * KIB, 4, ("registers", "shared")),  # 33 KiB with the system's: 164 / 33
    ("sm_100", 256, 64, 0, 4, ("registers",)),
    ("sm_120", 256, 32, 0, 6, ("warps",)),
    ("sm_120", 32, 16, 0, 24, ("blocks",)),
    ("sm_120", 128, 32, 48 * KIB, 2, ("shared",)),
]


@pytest.mark.parametrize("known", KNOWN, ids=str)
def test_known_values(known: tuple[str, int, int, int, int, tuple[str, ...]]) -> None:
    name, threads, registers, shared, blocks, limited_by = known
    found = occupancy(TARGETS[name], threads=threads, registers=registers, shared_bytes=shared)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * -(-threads // 32)
    assert found.share == found.warps / TARGETS[name].warps


def test_a_block_of_too_many_threads_does_not_fit() -> None:
    assert occupancy(TARGETS["sm_90"], threads=1056, registers=16, shared_bytes=0).blocks == 0


def test_a_block_of_no_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="a block of 0 threads"):
        occupancy(TARGETS["sm_90"], threads=0, registers=16, shared_bytes=0)


def test_more_of_anything_never_raises_occupancy() -> None:
    for one in TARGETS.values():
        for threads in (32, 96, 256, 1024):
            by_registers = [occupancy(one, threads=threads, registers=count, shared_bytes=0).blocks for count in range(1, 257)]
            by_shared = [occupancy(one, threads=threads, registers=16, shared_bytes=size).blocks for size in range(0, 240 * KIB, 1000)]
            assert by_registers == sorted(by_registers, reverse=True)
            assert by_shared == sorted(by_shared, reverse=True)
            assert by_registers[255] == 0, "no thread has 256 registers"


def test_an_unknown_target_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown target 'sm90'; did you mean 'sm_90'"):
        target("sm90")
