from __future__ import annotations

import math

import pytest

from fusebench.schema import Estimate, Verdict, VerdictKind
from fusebench.stats.calibration import summarise
from fusebench.stats.identical import Twin, against_noise, as_trials, noise_near, same_code, verdict_on_identical


def change(value: float) -> Estimate:
    return Estimate(value, value * 0.999, value * 1.001)


def twin(time_us: float, value: float, kind: VerdictKind = VerdictKind.PASS) -> Twin:
    return Twin(case="c", kernel="op/k@1", time_us=time_us, change=change(value), kind=kind)


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
    noise = noise_near(TWINS, 12.0)
    assert noise.largest == pytest.approx(1 / 0.994 - 1)
    assert noise_near(TWINS, 2.0).largest == pytest.approx(0.02)
    assert noise_near(TWINS, 100.0).sizes == ()


@pytest.mark.parametrize("kind", [VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT])
def test_a_change_that_identical_code_also_shows_is_not_believed(kind: VerdictKind) -> None:
    sign = 1 if kind is VerdictKind.REGRESSION else -1
    noise = noise_near(TWINS, 12.0)
    small = against_noise(Verdict(kind=kind, reason="seen", change=change(math.exp(sign * 0.005))), noise)
    assert small.kind is VerdictKind.UNDECIDED
    assert "identical code of such durations differed by up to 0.60%" in small.reason
    large = Verdict(kind=kind, reason="seen", change=change(math.exp(sign * 0.012)))
    assert against_noise(large, noise) is large
    assert against_noise(large, noise_near([], 12.0)) is large


def test_other_verdicts_are_left_alone() -> None:
    passed = Verdict(kind=VerdictKind.PASS, reason="seen", change=change(1.001))
    assert against_noise(passed, noise_near(TWINS, 12.0)) is passed
    with pytest.raises(ValueError, match="with its change"):
        against_noise(Verdict(kind=VerdictKind.REGRESSION, reason="accuracy"), noise_near(TWINS, 12.0))


def test_identical_code_calibrates_the_machine() -> None:
    found = summarise(as_trials([*TWINS, twin(12.0, 1.02, VerdictKind.REGRESSION)]))
    assert (found.false_regressions.count, found.false_regressions.total) == (1, 5)
