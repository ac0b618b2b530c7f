from __future__ import annotations

import math

import msgspec
import pytest

from fusebench.schema import AAPair, Estimate, Verdict, VerdictKind
from fusebench.stats.calibration import summarise
from fusebench.verdict.identical_code import (
    against_noise,
    as_trials,
    noise_by_class,
    noise_near,
    same_code,
    spread_of,
    verdict_on_identical,
)


def change(value: float) -> Estimate:
    return Estimate(value, value * 0.999, value * 1.001)


def twin(time_us: float, value: float, kind: VerdictKind = VerdictKind.PASS) -> AAPair:
    return AAPair(case="c", kernel="op/k@1", time_us=time_us, change=change(value), kind=kind)


TWINS = [twin(12.0, 1.003), twin(14.0, 0.994), twin(13.0, 1.001), twin(2.5, 1.02)]


@pytest.mark.parametrize(
    ("new", "old", "same"),
    [
        ({"norm": "a1", "rope": "b2"}, {"rope": "b2", "norm": "a1"}, True),
        ({"norm": "a1"}, {"norm": "a2"}, False),
        ({"norm": "a1", "rope": "b2"}, {"norm": "a1"}, False),
        ({}, {}, None),
        ({"norm": "a1"}, {}, None),
        ({"norm": ""}, {"norm": ""}, None),
        ({"norm": "a1"}, {"norm": ""}, None),
    ],
)
def test_only_known_and_equal_code_is_identical(new: dict[str, str], old: dict[str, str], same: bool | None) -> None:
    assert same_code(new, old) is same


def test_identical_code_passes_whatever_its_times_say() -> None:
    verdict = verdict_on_identical(change(1.05))
    assert (verdict.kind, verdict.change) == (VerdictKind.PASS, change(1.05))
    assert "+5.00% [+4.90%, +5.11%] is noise" in verdict.reason
    assert verdict_on_identical(None).reason == "identical machine code"


def test_noise_is_that_of_kernels_of_such_durations() -> None:
    noise = noise_near(noise_by_class(TWINS), 12.0, 1)
    assert noise.largest == pytest.approx(1 / 0.994 - 1)
    assert noise_near(noise_by_class(TWINS), 2.0, 1).largest == pytest.approx(0.02)
    assert noise_near(noise_by_class(TWINS), 100.0, 1).sizes == ()


def test_calls_of_several_launches_have_a_noise_of_their_own() -> None:
    """Split chains scatter several times as much as kernels of one launch, which must not hide behind them."""
    chain = msgspec.structs.replace(TWINS[0], time_us=12.0, change=change(1.06), launches=3)
    both = [*TWINS, chain]
    assert (
        noise_near(noise_by_class(both), 12.0, 1).largest
        == noise_near(noise_by_class(both), 12.0, 0).largest
        == noise_near(noise_by_class(TWINS), 12.0, 1).largest
        < 0.01
    )
    assert noise_near(noise_by_class(both), 12.0, 2).largest == pytest.approx(0.06)
    several = [spread for spread in spread_of(both) if spread.several_launches]
    assert [str(spread) for spread in several] == ["6.00% (10 to 50 us, several launches: 1 comparison)"]


@pytest.mark.parametrize("kind", [VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT])
def test_a_change_that_identical_code_also_shows_is_not_believed(kind: VerdictKind) -> None:
    sign = 1 if kind is VerdictKind.REGRESSION else -1
    noise = noise_near(noise_by_class(TWINS), 12.0, 1)
    small = against_noise(Verdict(kind=kind, reason="seen", change=change(math.exp(sign * 0.005))), noise)
    assert small.kind is VerdictKind.UNDECIDED
    assert "identical code of such calls differed by up to 0.60%" in small.reason
    large = Verdict(kind=kind, reason="seen", change=change(math.exp(sign * 0.012)))
    assert against_noise(large, noise) is large
    assert against_noise(large, noise_near(noise_by_class([]), 12.0, 1)) is large


def test_other_verdicts_are_left_alone() -> None:
    passed = Verdict(kind=VerdictKind.PASS, reason="seen", change=change(1.001))
    assert against_noise(passed, noise_near(noise_by_class(TWINS), 12.0, 1)) is passed
    with pytest.raises(ValueError, match="with its change"):
        against_noise(Verdict(kind=VerdictKind.REGRESSION, reason="accuracy"), noise_near(noise_by_class(TWINS), 12.0, 1))


def test_identical_code_calibrates_the_machine() -> None:
    found = summarise(as_trials([*TWINS, twin(12.0, 1.02, VerdictKind.REGRESSION)]))
    assert (found.false_regressions.count, found.false_regressions.total) == (1, 5)
