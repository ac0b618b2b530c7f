from __future__ import annotations

from types import ModuleType

import msgspec
import pytest

from fusebench.schema import Accuracy, Estimate, Verdict, VerdictKind
from fusebench.stats.accuracy_change import accuracy_loss, with_accuracy

FASTER = Verdict(kind=VerdictKind.IMPROVEMENT, reason="-9.0%: faster", change=Estimate(0.91, 0.90, 0.92))
SAME = Verdict(kind=VerdictKind.PASS, reason="+0.0%", change=Estimate(1.0, 0.99, 1.01))


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
