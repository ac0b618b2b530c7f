"""What a calibration measures: subjects, and the arms that make them slower by a planted share."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fusebench.registry import load_collection
from fusebench.runner.subjects import (
    CALIBRATION_KERNELS,
    Pilot,
    Subject,
    built_in_subjects,
    comparing,
    pilot_of,
    planted_params,
    subjects_of,
)
from fusebench.schema import Case
from fusebench.stats.planting import Planting

ROWS, DELAY = (built_in_subjects("cpu", (way,))[0] for way in ("rows", "delay"))


def of_size(one: Subject, elements: int) -> Subject:
    case = msgspec.structs.replace(one.case, params={**one.case.params, "elements": elements})
    return msgspec.structs.replace(one, case=case)


def test_every_pair_has_arms_of_its_own() -> None:
    wanted = comparing(ROWS, 5, {0.01: 2, 0.02: 1}, Pilot(time_us=12.0, sensitivity=1.0))
    used = [arm for pair in wanted.pairs for arm in (pair.new, pair.old)]
    assert len(used) == len(set(used)) == len(wanted.arms) == 16
    assert sorted(wanted.nominal.values()) == [0.0] * 5 + [0.01, 0.01, 0.02]
    slower = {arm.name for arm in wanted.arms if arm.params is not None}
    assert slower == {pair.new for pair in wanted.pairs if wanted.nominal[pair.name] > 0}


def test_planted_work_follows_the_pilot_within_belief() -> None:
    half = pilot_of(new_us=12.3, old_us=12.0)
    assert half.sensitivity == pytest.approx(0.5)
    assert planted_params(of_size(ROWS, 1000), 0.02, half)["elements"] == 1040
    assert planted_params(DELAY, 0.02, Pilot(time_us=14.0, sensitivity=1.0))["delay_ns"] == 2280
    assert pilot_of(11.0, 12.0).sensitivity == 0.2, "a pilot that got faster is noise"


@pytest.mark.parametrize(
    ("rows", "slowdown", "expected"),
    [
        (4128, 0.01, 4128 + 48),  # 41 rows, to the next multiple of 16
        (4128, 0.005, 4128 + 16),
        (4128, 0.002, 4128 + 8),  # so few rows that 16 would plant twice as much
        (1028, 0.02, 1028 + 20),  # 4 divides it
        (257, 0.02, 257 + 5),
    ],
)
def test_more_rows_are_divided_by_what_divides_the_rows(rows: int, slowdown: float, expected: int) -> None:
    """Triton compiles a count that 16 divides apart from others."""
    assert planted_params(of_size(ROWS, rows), slowdown, Pilot(time_us=12.0, sensitivity=1.0))["elements"] == expected


def test_the_built_in_subjects_load_and_compute_what_they_say() -> None:
    import torch

    collection = load_collection([CALIBRATION_KERNELS], entry_points=False)
    assert collection.problems == []
    for kind in ("cpu", "cuda"):
        subjects = built_in_subjects(kind)
        assert len({one.case.key for one in subjects}) == len(subjects) == {"cpu": 4, "cuda": 12}[kind]
        assert built_in_subjects(kind, ()) == []
        for one in subjects:
            assert one.kernel in collection.kernels
            op = collection.op(one.case.op)
            assert op.parse_params(one.case.params).elements > 0
            assert one.key in one.case.params
    kernel = collection.kernel("planted/negate_and_wait@1")
    x = torch.tensor([1.0, -2.0])
    kernel(x, delay_ns=1000)
    assert x.tolist() == [-1.0, 2.0]


def test_selected_cases_give_the_newest_fused_kernel_that_can_be_timed(collection: Any, case: Case) -> None:
    (one,) = subjects_of(collection, [case], "cpu", "*good*")
    assert (one.kernel, one.key, one.planting) == ("scale/good@1", "", Planting.ROWS)
    assert subjects_of(collection, [case], "cpu", "*fast*") == [], "a CUDA kernel is not timed on a CPU"
    wanted = comparing(one, 3, (0.01,), Pilot(time_us=1.0, sensitivity=1.0))
    assert set(wanted.nominal.values()) == {0.0}, "without a parameter to raise only equal arms are compared"
