"""Times that cannot be true are doubted, and honest ones are not."""

from __future__ import annotations

import random

from fusebench.judge.crosscheck import BatchPair, believed_us, below_limit, credited_us, hidden_time, slowed_baseline, untimed_batches


def pairs(claimed_us: float, true_us: float, *, noise_us: float = 20.0, seed: int = 0) -> list[BatchPair]:
    """Twelve batches of a candidate beside a split chain of 1000 us, with the harness's own 400 us a call and a noisy clock outside."""
    rng = random.Random(seed)
    made = []
    for _ in range(12):
        own, baseline = (400.0 + abs(rng.gauss(0, noise_us)) for _ in range(2))
        made.append(BatchPair(claimed_us, true_us + own, 1000.0, 1000.0 + baseline))
    return made


def test_time_that_the_clock_outside_saw_is_not_hidden() -> None:
    for seed in range(20):
        assert hidden_time(pairs(500.0, 500.0, seed=seed), "cpu") == ""
        assert hidden_time(pairs(500.0, 500.0, noise_us=150.0, seed=seed), "cpu") == ""
        assert "says 10.0 us a call, but the judge's clock saw" in hidden_time(pairs(10.0, 1000.0, seed=seed), "cpu")
        assert hidden_time(pairs(500.0, 950.0, seed=seed), "cpu")
        assert hidden_time(pairs(990.0, 1900.0, seed=seed), "cpu")
        assert hidden_time(pairs(1100.0, 1900.0, seed=seed), "cpu") == "", "slower than the split chain by its own clock: it gains nothing"


def test_a_time_below_the_limit_is_not_believed() -> None:
    assert below_limit(9.0, 10.0, "cuda") == "9.00 us is faster than the limit of 10.00 us, the time of the case's minimum bytes"
    assert below_limit(9.9, 10.0, "cuda") == ""
    assert below_limit(1.0, None, "cuda") == ""


def test_a_candidate_that_holds_the_device_while_others_are_timed_is_doubted() -> None:
    between = pairs(500.0, 500.0)
    assert slowed_baseline([], between) == ""
    assert slowed_baseline([960.0, 1010.0, 905.0], between) == ""
    assert "took 705.0 us before them" in slowed_baseline([700.0, 705.0, 690.0], between)


def test_a_short_baseline_beside_another_program_accuses_nobody_and_earns_nothing() -> None:
    between = [BatchPair(4.0, 400.0, 9.4, 409.0)] * 12
    assert slowed_baseline([4.8, 4.7, 4.6], between) == ""
    assert credited_us([4.8, 4.7, 4.6], between) == [4.8] * 12
    assert credited_us([8.9, 9.0, 9.1], between) == [9.4] * 12
    assert credited_us([], between) == [9.4] * 12


def test_a_clock_that_lies_in_some_batches_earns_little() -> None:
    """Planted: a kernel of 1000 us claims 10 us in six of twelve batches, which no judgement on medians or on the later half sees."""
    honest, lie = BatchPair(1000.0, 1400.0, 1000.0, 1400.0), BatchPair(10.0, 1400.0, 1000.0, 1400.0)
    assert believed_us([honest] * 12) == [1000.0] * 12
    assert believed_us([lie] * 6 + [honest] * 6) == [800.0] * 6 + [1000.0] * 6
    assert believed_us([honest] * 7 + [lie] * 5) == [1000.0] * 7 + [800.0] * 5
    drifting = [BatchPair(500.0 * share, 900.0, 1000.0 * share, 1400.0) for share in (1.0, 0.7, 0.4, 1.0, 1.0, 1.0)]
    assert believed_us(drifting) == [pair.candidate_us for pair in drifting], "both are faster, as when clocks rise"
    busy = [BatchPair(500.0, 900.0, 1000.0, 1400.0)] * 5 + [BatchPair(500.0, 900.0, 9000.0, 9400.0)]
    assert believed_us(busy) == [500.0] * 6, "another program slowed the split chain"


def test_a_candidate_does_not_choose_which_batches_count() -> None:
    """Of two batches no judgement would say anything, and it is the candidate's process that says which have times."""
    assert untimed_batches([""] * 6 + ["lost"] * 6) == ""
    assert untimed_batches([""] * 5 + ["lost records"] * 7) == "5 of 12 batches could be timed: lost records"
    assert untimed_batches([""] * 3) == ""
    assert untimed_batches(["", ""]) == "2 of 2 batches could be timed: the time was too short"
