from __future__ import annotations

from types import ModuleType

import msgspec
import pytest

from fusebench.schema import Accuracy, Estimate, OutputError, Verdict, VerdictKind
from fusebench.verdict.accuracy_change import accuracy_growth, accuracy_loss, with_accuracy

FASTER = Verdict(kind=VerdictKind.IMPROVEMENT, reason="-9.0 %: faster", change=Estimate(0.91, 0.90, 0.92))
SAME = Verdict(kind=VerdictKind.PASS, reason="+0.0 %", change=Estimate(1.0, 0.99, 1.01))


@pytest.fixture
def accuracy(synthetic: ModuleType) -> Accuracy:
    return synthetic.make_run().results[0].accuracy  # type: ignore[no-any-return]


def worse(accuracy: Accuracy, rms: float = 1.0, largest: float = 1.0) -> Accuracy:
    return msgspec.structs.replace(accuracy, rms_error=accuracy.rms_error * rms, max_error=accuracy.max_error * largest)


def test_a_kernel_that_became_faster_by_becoming_less_accurate_fails(accuracy: Accuracy) -> None:
    verdict = with_accuracy(FASTER, worse(accuracy, 1.3), accuracy)
    assert verdict.kind is VerdictKind.REGRESSION
    assert verdict.reason.startswith("accuracy: rms error")
    assert "faster by being less accurate" in verdict.reason
    assert verdict.change == FASTER.change


@pytest.mark.parametrize("speed", [FASTER, SAME])
def test_accuracy_within_its_margin_leaves_the_verdict_on_speed(accuracy: Accuracy, speed: Verdict) -> None:
    assert with_accuracy(speed, worse(accuracy, 1.09), accuracy) is speed
    assert with_accuracy(speed, worse(accuracy, 0.5), accuracy) is speed


def test_a_fault_of_few_elements_is_seen_on_the_same_inputs_only(accuracy: Accuracy) -> None:
    """One element of millions, wrong by three times as much: the rms error does not move."""
    faulty = worse(accuracy, 1.0, 3.0)
    assert "max error on the same inputs, relative to the split chain's, is 3.00 x" in accuracy_loss(faulty, accuracy, paired=True)
    assert accuracy_loss(faulty, accuracy) == ""
    assert accuracy_loss(worse(accuracy, 1.0, 1.4), accuracy, paired=True) == ""


@pytest.mark.parametrize("magnitude", [1e-3, 1e3])
def test_sides_that_compared_worst_at_other_magnitudes_differ_by_their_errors_and_not_by_the_magnitude(
    accuracy: Accuracy, magnitude: float
) -> None:
    names = ("rms_error", "max_error", "split_rms_error", "split_max_error")
    scaled = msgspec.structs.replace(accuracy, **{name: getattr(accuracy, name) * magnitude for name in names})
    assert accuracy_loss(accuracy, scaled, paired=True) == ""
    assert "max error" in accuracy_loss(worse(accuracy, 1.0, 3.0), scaled, paired=True)


def test_the_same_inputs_need_no_allowance_for_the_draw(accuracy: Accuracy) -> None:
    few = msgspec.structs.replace(accuracy, elements=3072)
    assert accuracy_loss(worse(few, 1.2), few, paired=True)
    assert accuracy_loss(worse(few, 1.2), few) == ""


def test_an_exact_kernel_that_is_exact_no_more_fails(accuracy: Accuracy) -> None:
    exact = msgspec.structs.replace(accuracy, rms_error=0.0, split_rms_error=0.0, max_error=0.0)
    assert accuracy_loss(exact, exact, paired=True) == ""
    assert "inf x the baseline's" in accuracy_loss(accuracy, exact)


def test_a_faster_kernel_that_nobody_checked_is_not_an_improvement_yet(accuracy: Accuracy) -> None:
    verdict = with_accuracy(FASTER, None, accuracy)
    assert verdict.kind is VerdictKind.UNDECIDED
    assert "was not checked" in verdict.reason
    assert with_accuracy(SAME, None, accuracy) is SAME
    assert with_accuracy(FASTER, accuracy, None) is FASTER


def outputs(
    accuracy: Accuracy, floor: float = 0.0, unit: str = "channel", rounding: float | None = None, **errors: tuple[float, float]
) -> Accuracy:
    """`accuracy` with these outputs: by name, the kernel's error and the split chain's."""
    found = tuple(
        OutputError(name=name, unit=unit, rms=own, split_rms=split, floor=floor, rounding=rounding) for name, (own, split) in errors.items()
    )
    return msgspec.structs.replace(accuracy, outputs=found)


def test_growth_is_that_of_the_output_that_grew_most_whichever_compares_worst(accuracy: Accuracy) -> None:
    """q may lose a third of its accuracy while k, no better than the split chain before and after, compares worst."""
    old = outputs(accuracy, q=(0.7e-3, 1.0e-3), k=(1.0e-3, 1.0e-3))
    new = outputs(accuracy, q=(0.95e-3, 1.0e-3), k=(1.0e-3, 1.0e-3))
    assert accuracy_growth(new, old) == pytest.approx(0.95 / 0.7)
    assert accuracy_loss(new, old).startswith(
        "accuracy: rms error of output 'q' relative to the split chain's is 1.36 x the baseline's; 1.1"
    )
    assert accuracy_growth(old, new) == 1.0


def test_a_loss_that_the_split_chain_shares_is_seen(accuracy: Accuracy) -> None:
    old, new = outputs(accuracy, rounding=0.7e-3, y=(0.8e-3, 1.0e-3)), outputs(accuracy, rounding=0.7e-3, y=(1.6e-3, 2.0e-3))
    assert accuracy_growth(new, old) == pytest.approx(2.0)
    assert accuracy_loss(new, old).startswith("accuracy: rms error of output 'y' is 2.00 x the baseline's")


def test_errors_of_results_that_need_no_rounding_are_compared_as_they_are(accuracy: Accuracy) -> None:
    old, new = outputs(accuracy, rounding=0.0, y=(1.0e-7, 1.0e-7)), outputs(accuracy, rounding=0.0, y=(1.5e-7, 1.5e-7))
    assert accuracy_growth(new, old) == pytest.approx(1.5)
    assert accuracy_loss(new, old).startswith("accuracy: rms error of output 'y' is 1.50 x the baseline's")


def test_draws_whose_results_round_otherwise_are_no_loss(accuracy: Accuracy) -> None:
    """One draw of four in which the only position that a table is read at was planted with zeros: exact, whoever computes it."""
    lucky, usual = outputs(accuracy, rounding=1.42e-3, y=(1.43e-3, 1.43e-3)), outputs(accuracy, rounding=1.64e-3, y=(1.66e-3, 1.66e-3))
    assert accuracy_growth(usual, lucky) < 1.02
    older = outputs(accuracy, y=(1.43e-3, 1.43e-3))
    assert accuracy_growth(usual, older) == 1.0


def test_a_loss_on_draws_that_round_less_is_seen(accuracy: Accuracy) -> None:
    old, new = outputs(accuracy, rounding=1.6e-3, y=(1.7e-3, 1.7e-3)), outputs(accuracy, rounding=1.2e-3, y=(1.7e-3, 1.7e-3))
    assert accuracy_growth(new, old) == pytest.approx(1.7 / (1.7**2 - 1.6**2 + 1.2**2) ** 0.5)
    assert accuracy_loss(new, old).startswith(
        "accuracy: rms error of output 'y', allowing for how these draws round, is 1.28 x the baseline's"
    )


@pytest.mark.parametrize(("before", "now"), [(1.0e-3, 1.4e-3), (1.0e-9, 3.0e-8), (0.0, 1.0e-9), (1.0e-9, 0.0)])
def test_what_a_kernel_adds_to_rounding_does_not_follow_how_draws_round(accuracy: Accuracy, before: float, now: float) -> None:
    """Errors in multiples of rounding's would grow or shrink by 1.4, and by 30 where next to no result needs rounding."""
    added = 8.0e-3
    old, same, twice = (
        outputs(accuracy, rounding=rounding, y=((rounding**2 + (factor * added) ** 2) ** 0.5, added))
        for rounding, factor in ((before, 1), (now, 1), (now, 2))
    )
    assert accuracy_growth(same, old) == pytest.approx(1.0)
    assert not accuracy_loss(same, old)
    assert accuracy_growth(twice, old) > 1.9
    assert accuracy_loss(twice, old)


def test_results_that_needed_no_rounding_before_may_be_rounded_now(accuracy: Accuracy) -> None:
    exact, rounded = outputs(accuracy, rounding=0.0, y=(0.0, 0.0)), outputs(accuracy, rounding=1.0e-3, y=(1.0e-3, 1.0e-3))
    assert accuracy_growth(rounded, exact) == accuracy_growth(exact, rounded) == 1.0
    assert accuracy_loss(outputs(accuracy, rounding=0.0, y=(1.0e-6, 0.0)), exact).startswith("accuracy: rms error of output 'y' is inf x")


def test_what_is_granted_to_float32_is_no_error_however_few_of_its_results_are_rounded(accuracy: Accuracy) -> None:
    """Sums of two 16-bit numbers are nearly all exact in float32: what rounding makes of the others is luck."""
    sides = [outputs(accuracy, floor=2.0e-7, rounding=rounding, y=(5.0e-8, 5.0e-8)) for rounding in (1.0e-10, 1.0e-9)]
    assert [accuracy_growth(new, old) for new in sides for old in sides] == pytest.approx([1.0] * 4, rel=1e-4)
    worse = outputs(accuracy, floor=2.0e-7, rounding=1.0e-9, y=(4.0e-7, 4.0e-7))
    assert [accuracy_growth(worse, old) for old in sides] == pytest.approx([2.0, 2.0], rel=1e-4)


def test_what_the_contract_grants_a_float32_output_counts_as_no_error(accuracy: Accuracy) -> None:
    old = outputs(accuracy, floor=1.2e-7, y=(0.3e-7, 0.4e-7))
    assert accuracy_growth(outputs(accuracy, floor=1.2e-7, y=(0.9e-7, 0.4e-7)), old) == 1.0
    assert accuracy_growth(outputs(accuracy, floor=1.2e-7, y=(2.4e-7, 0.4e-7)), old) == pytest.approx(2.0)


def test_figures_in_other_units_and_older_records_are_compared_by_what_both_hold(accuracy: Accuracy) -> None:
    channels, values = outputs(accuracy, y=(1.0e-3, 1.0e-3)), outputs(accuracy, unit="value", y=(5.0e-3, 1.0e-3))
    assert accuracy_growth(values, channels) == 1.0
    assert accuracy_growth(channels, accuracy) == 1.0
    assert accuracy_growth(worse(channels, 1.3), accuracy) == pytest.approx(1.3)
