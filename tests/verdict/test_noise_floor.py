"""Identical machine code: whether it is, what it passes for, and the noise floor that it sets."""

from __future__ import annotations

import math

import msgspec
import pytest

from fusebench.schema import AAPair, Estimate, Verdict, VerdictKind
from fusebench.verdict.calibration import Trial, summarise
from fusebench.verdict.identical_code import same_code, verdict_on_identical
from fusebench.verdict.noise_floor import above_floor, noise_by_class, noise_near, spread_of


def change(value: float) -> Estimate:
    return Estimate(value, value * 0.999, value * 1.001)


def aa_pair(time_us: float, value: float, kind: VerdictKind = VerdictKind.PASS) -> AAPair:
    return AAPair(case="c", kernel="op/k@1", time_us=time_us, change=change(value), kind=kind)


AA_PAIRS = [aa_pair(12.0, 1.003), aa_pair(14.0, 0.994), aa_pair(13.0, 1.001), aa_pair(2.5, 1.02)]


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
    assert "+5.00 % [+4.90 %, +5.11 %] is noise" in verdict.reason
    assert verdict_on_identical(None).reason == "identical machine code"


def test_noise_is_that_of_kernels_of_such_durations() -> None:
    noise = noise_near(noise_by_class(AA_PAIRS), 12.0, 1)
    assert noise.largest == pytest.approx(1 / 0.994 - 1)
    assert noise_near(noise_by_class(AA_PAIRS), 2.0, 1).largest == pytest.approx(0.02)
    assert noise_near(noise_by_class(AA_PAIRS), 100.0, 1).sizes == ()


def test_calls_of_several_launches_have_a_noise_of_their_own() -> None:
    """Split chains scatter several times as much as kernels of one launch, which must not hide behind them."""
    chain = msgspec.structs.replace(AA_PAIRS[0], time_us=12.0, change=change(1.06), launches=3)
    both = [*AA_PAIRS, chain]
    assert (
        noise_near(noise_by_class(both), 12.0, 1).largest
        == noise_near(noise_by_class(both), 12.0, 0).largest
        == noise_near(noise_by_class(AA_PAIRS), 12.0, 1).largest
        < 0.01
    )
    assert noise_near(noise_by_class(both), 12.0, 2).largest == pytest.approx(0.06)
    several = [spread for spread in spread_of(both) if spread.several_launches]
    assert [str(spread) for spread in several] == ["6.00 % (10 to 50 us, several launches: 1 comparison)"]


@pytest.mark.parametrize("kind", [VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT])
def test_a_change_that_identical_code_also_shows_is_not_believed(kind: VerdictKind) -> None:
    sign = 1 if kind is VerdictKind.REGRESSION else -1
    noise = noise_near(noise_by_class(AA_PAIRS), 12.0, 1)
    small = above_floor(Verdict(kind=kind, reason="seen", change=change(math.exp(sign * 0.005))), noise)
    assert small.kind is VerdictKind.UNDECIDED
    assert "identical code of such calls differed by up to 0.60 %" in small.reason
    large = Verdict(kind=kind, reason="seen", change=change(math.exp(sign * 0.012)))
    assert above_floor(large, noise) is large
    assert above_floor(large, noise_near(noise_by_class([]), 12.0, 1)) is large


def test_other_verdicts_are_left_alone() -> None:
    passed = Verdict(kind=VerdictKind.PASS, reason="seen", change=change(1.001))
    assert above_floor(passed, noise_near(noise_by_class(AA_PAIRS), 12.0, 1)) is passed
    with pytest.raises(ValueError, match="with its change"):
        above_floor(Verdict(kind=VerdictKind.REGRESSION, reason="accuracy"), noise_near(noise_by_class(AA_PAIRS), 12.0, 1))


def test_identical_code_calibrates_the_machine() -> None:
    pairs = [*AA_PAIRS, aa_pair(12.0, 1.02, VerdictKind.REGRESSION)]
    found = summarise(Trial(time_us=pair.time_us, injected=0.0, kind=pair.kind) for pair in pairs)
    assert (found.false_regressions.count, found.false_regressions.total) == (1, 5)
