"""What a pilot tries, and what of it plants the slowdowns that are wanted."""

from __future__ import annotations

import msgspec
import pytest

from fusebench.cli.calibrate_command import CPU_SLOWDOWNS, GPU_SLOWDOWNS
from fusebench.runner.calibrate.pilots import FIT, delays, fitting_values, tried_values
from fusebench.runner.calibrate.targets import CalibrationTarget, built_in_targets
from fusebench.schema import Estimate

ROWS, DELAY = (built_in_targets("cpu", (way,))[0] for way in ("rows", "delay"))


def of_size(elements: int, **changes: object) -> CalibrationTarget:
    case = msgspec.structs.replace(ROWS.case, params={**ROWS.case.params, "elements": elements})
    return msgspec.structs.replace(ROWS, case=case, **changes)


def seen(**slowdowns: float) -> dict[int, Estimate]:
    """By value (`_1040` for 1040), known to 0.1 %."""
    return {int(name[1:]): Estimate(1 + value, 1 + value - 0.001, 1 + value + 0.001) for name, value in slowdowns.items()}


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        (100_000, [496, 992, 2000, 4000, 4992, 8000, 10_000, 16_000, 20_000, 40_000]),
        (1024, [16, 32, 48, 64, 80, 96, 112, 160, 208, 416]),  # rows that 16 divides stay so, and no number comes twice
        (1028, [4, 12, 20, 40, 52, 84, 104, 164, 204, 412]),  # 4 divides it
        (257, [1, 3, 5, 10, 13, 21, 26, 41, 51, 103]),
        (6, [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]),
    ],
)
def test_more_rows_are_divided_by_what_divides_the_rows(elements: int, expected: list[int]) -> None:
    """Triton compiles a count that 16 divides apart from others."""
    tried = tried_values(of_size(elements), GPU_SLOWDOWNS, None)
    assert [value - elements for value in tried.values()] == expected
    assert list(tried) == pytest.approx([more / elements for more in expected])


@pytest.mark.parametrize("slowdowns", [GPU_SLOWDOWNS, CPU_SLOWDOWNS])
@pytest.mark.parametrize("hidden", [1.0, 2.0, 5.0, 8.0])
def test_every_slowdown_is_reached_where_time_is_smooth_though_most_of_the_work_be_hidden(
    slowdowns: tuple[float, ...], hidden: float
) -> None:
    tried = tried_values(of_size(2**20), slowdowns, None)
    measured = {value: Estimate(1 + share / hidden, 1 + share / hidden, 1 + share / hidden) for share, value in tried.items()}
    values, missing = fitting_values(slowdowns, measured)
    assert not missing
    for wanted, value in values.items():
        assert wanted / FIT <= measured[value].value - 1 <= wanted * FIT
        assert hidden > 1 or measured[value].value - 1 == pytest.approx(wanted, rel=0.002), "in proportion, what was meant"


def test_what_does_not_fit_in_the_memory_is_not_tried() -> None:
    large = of_size(1000, bytes=1000)
    # 40 % of 5300 bytes hold the usual arm and one of 1120 bytes.
    assert list(tried_values(large, (0.01, 0.02), 5300).values()) == [1008, 1016, 1040, 1080]
    assert tried_values(large, (0.01, 0.02), 5000) == {}
    assert len(tried_values(large, (0.01, 0.02), None)) == 5


def test_only_rows_are_tried() -> None:
    assert tried_values(DELAY, (0.01,), None) == {}
    assert tried_values(of_size(1000, key=""), (0.01,), None) == {}


def test_a_wait_adds_the_time_that_it_takes() -> None:
    assert delays(DELAY, (0.02, 0.05, 1e-9), 14.0) == {0.02: 2280, 0.05: 2700, 1e-9: 2001}


def test_the_nearest_as_a_ratio_plants_a_slowdown() -> None:
    values, missing = fitting_values((0.005, 0.01, 0.02, 0.05), seen(_16=0.004, _32=0.0074, _48=0.013, _64=0.024, _80=0.036, _96=0.09))
    assert values == {0.005: 16, 0.01: 48, 0.02: 64, 0.05: 80}
    assert missing == {}


def test_a_slowdown_that_a_wave_leaps_over_is_named_and_not_injected() -> None:
    values, missing = fitting_values((0.005, 0.02, 0.05), seen(_16=0.0052, _32=0.0056, _48=0.048, _64=0.049))
    assert values == {0.005: 16, 0.05: 64}
    assert missing == {0.02: "of 4 values from 16 to 64 the nearest, 48, is 4.80 % slower, not within a factor of 1.5"}


@pytest.mark.parametrize(("slowdown", "keeps", "loses"), [(0.0140, 0.01, 0.02), (0.0143, 0.02, 0.01)])
def test_of_two_slowdowns_that_come_to_one_value_the_better_fit_keeps_it(slowdown: float, keeps: float, loses: float) -> None:
    values, missing = fitting_values((0.01, 0.02), seen(_16=slowdown))
    assert values == {keeps: 16}
    assert missing == {
        loses: f"of 1 values from 16 to 16 the nearest, 16, is {100 * slowdown:.2f} % slower, "
        "which injects another slowdown that it is nearer to"
    }


def test_what_is_not_told_from_nothing_plants_nothing() -> None:
    values, missing = fitting_values((0.001, 0.002), seen(_16=0.0009, _32=0.0025))
    assert values == {0.002: 32}
    assert "the nearest, 32, is 0.25 % slower, not within" in missing[0.001]
    assert fitting_values((0.01,), seen(_16=-0.02, _32=0.0)) == ({}, {0.01: "none of 2 values from 16 to 32 takes measurably longer"})
    assert fitting_values((0.01,), {}) == ({}, {0.01: "nothing larger could be measured"})
