"""Verdicts under the noise of real machines, simulated: the false-alarm rate of A/A comparisons, and the detection rate.

Every count is held against a binomial bound that a verdict of the stated rate exceeds once in a thousand seeds; the seeds are fixed.  The
slowest of these tests takes about 2 s: 2 000 comparisons of raw samples, each with its confirmation.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy.stats import binom

from fusebench.schema import VerdictKind
from fusebench.stats.paired import ratio_estimate, trimmed_mean
from fusebench.stats.rates import visible_effect
from fusebench.stats.sequential import Plan
from fusebench.verdict.calibration import summarise
from fusebench.verdict.conclusion import PROCESSES
from helpers import operating_characteristics as characteristics
from helpers import simulate
from helpers.matrices import few

NAMES = ["drift", "bimodal processes", "placement bias", "32 ns ticks", "outliers", "throttling", "heavy tails"]
FEW = ("bimodal processes", "placement bias", "heavy tails")
COMPARISONS = 2000
PLAN = Plan()
PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


def noise(name: str, **changes: float) -> object:
    found = next(one for one in (*simulate.DURATIONS, simulate.TYPICAL, *simulate.NOISES) if one.name == name)
    return msgspec.structs.replace(found, **changes)


def most(rate: float, total: int = COMPARISONS) -> float:
    """More than this many of `total` speaks against `rate`."""
    return float(binom.ppf(0.999, total, rate))


@pytest.mark.parametrize("name", few(NAMES, *FEW))
def test_equal_kernels_are_not_accused(name: str) -> None:
    found = simulate.compare(noise(name), 0.0, COMPARISONS, seed=21)
    assert found.count(VerdictKind.REGRESSION) <= most(characteristics.false_alarm_bound(PLAN, PROCESSES))
    assert found.count(VerdictKind.IMPROVEMENT) <= most(characteristics.false_alarm_bound(PLAN, PROCESSES))


@pytest.mark.parametrize("name", few([name for name in NAMES if name != "bimodal processes"], "placement bias", "heavy tails"))
def test_the_first_stage_keeps_its_level_at_the_worst_true_change(name: str) -> None:
    """A change equal to the margin, and no scatter between processes, which is the confirmation's to bear: the level is exact there, so
    a test that spends a little more than it says is seen."""
    model = noise(name, process=0.0)
    found = simulate.compare(model, PLAN.margin_at(model.time_us), COMPARISONS, seed=22)
    assert found.count_first(VerdictKind.REGRESSION) <= most(PLAN.alarm_level)
    assert found.count_first(VerdictKind.PASS) <= most(PLAN.pass_level)
    assert found.count(VerdictKind.REGRESSION) <= most(characteristics.false_alarm_bound(PLAN, PROCESSES))


def test_processes_with_modes_deceive_the_first_stage_and_not_the_verdict() -> None:
    found = simulate.compare(noise("bimodal processes"), 0.0, COMPARISONS, seed=23)
    assert found.count_first(VerdictKind.REGRESSION) > 10 * most(PLAN.alarm_level), "the model is there to deceive"
    assert found.count(VerdictKind.REGRESSION) <= most(characteristics.false_alarm_bound(PLAN, PROCESSES))


@pytest.mark.parametrize("name", few(NAMES, *FEW))
def test_twice_the_smallest_visible_effect_is_found(name: str) -> None:
    model = noise(name)
    margin = PLAN.margin_at(model.time_us)
    trials = []
    for place, factor in enumerate((1.25, 1.5, 2.0, 3.0, 5.0)):
        trials += simulate.compare(model, margin * factor, 200, seed=30 + place).trials()
    visible = visible_effect(summarise(trials).classes[0].found)
    assert visible is not None
    found = simulate.compare(model, 2 * visible, COMPARISONS, seed=24)
    assert found.count(VerdictKind.REGRESSION) >= 0.95 * COMPARISONS
    assert found.count(VerdictKind.PASS) == 0


@pytest.mark.parametrize(
    ("name", "planted"), few([("2.8 us", 0.02), ("6 us", 0.02), ("12 us", 0.01), ("125 us", 0.01)], ("2.8 us", 0.02), ("12 us", 0.01))
)
def test_the_targets_hold_at_the_largest_scatter_measured(name: str, planted: float) -> None:
    model = noise(name)
    changed = simulate.compare(model, planted, 1000, seed=25)
    assert changed.count(VerdictKind.REGRESSION) >= 950
    equal = simulate.compare(model, 0.0, 1000, seed=26)
    assert equal.count(VerdictKind.REGRESSION) <= 1
    assert float(np.mean([finding.replicates for finding in equal.first])) < PLAN.looks[-1] * 0.75


def test_the_durations_scatter_as_was_measured() -> None:
    for name, scatter in (("2.8 us", 0.012), ("12 us", 0.0056), ("125 us", 0.0035)):
        machine = simulate.Machine(noise(name, process=0.0), 200, 0.0, np.random.default_rng(1))
        assert float(np.std(machine.replicates(np.arange(200), 40))) == pytest.approx(scatter, rel=0.06)


def test_the_simulation_deceives_rules_that_deserve_it() -> None:
    """Planted defects.  If these rules passed, the tests above would prove nothing: a fixed t interval on the rounds of one placement
    takes iterations for evidence, one over the replicates of one process takes the process for the kernel."""
    model = noise("placement bias")
    machine = simulate.Machine(model, 200, 0.0, np.random.default_rng(3))
    samples = machine.samples(np.arange(200), 1)[:, 0]
    limit = 1 + PLAN.margin
    on_rounds = sum(ratio_estimate([[t] for t in one[:, 1]], [[t] for t in one[:, 0]], 0.0, 0.99).low > limit for one in samples)
    assert on_rounds > most(PLAN.alarm_level, 200)
    machine = simulate.Machine(noise("bimodal processes"), 200, 0.0, np.random.default_rng(4))
    logs = machine.replicates(np.arange(200), 64)
    on_one_process = sum(ratio_estimate([[math.exp(x)] for x in one], [[1.0]] * 64, 0.0, 0.99).low > limit for one in logs)
    assert on_one_process > most(PLAN.alarm_level, 200)


def test_every_noise_acts() -> None:
    """A model whose noise did nothing would pass every test."""
    calm = noise("none of these", placement=0.0, process=0.0, jitter=0.0)

    def samples(**changes: float) -> np.ndarray:
        return np.asarray(
            simulate.Machine(msgspec.structs.replace(calm, **changes), 40, 0.0, np.random.default_rng(1)).samples(np.arange(40), 8)
        )

    assert np.ptp(samples()) == 0.0
    assert np.ptp(samples(drift=0.05).mean(axis=(0, 2, 3))) > 0.03 / 8
    assert np.allclose(np.diff(samples(drift=0.05), axis=-1).mean(axis=2), 0.0, atol=1e-6), "balanced orders cancel it"
    assert np.ptp(samples(modes=0.006), axis=(1, 2)).max() == 0.0
    assert np.ptp(samples(modes=0.006)) == pytest.approx(12 * 0.006, rel=0.01)
    assert np.mean(samples(slow_placement=0.012) > 12.1) == pytest.approx(0.2, abs=0.05)
    assert np.allclose(samples(jitter=0.01, tick_us=0.032) / 0.032 % 1, 0.0, atol=1e-6) or np.allclose(
        np.abs(samples(jitter=0.01, tick_us=0.032) / 0.032 - np.round(samples(jitter=0.01, tick_us=0.032) / 0.032)), 0.0, atol=1e-6
    )
    assert np.mean(samples(outliers=0.03) > 12.5) == pytest.approx(0.03, abs=0.01)
    assert np.mean(samples(throttled=0.3) > 14.9) == pytest.approx(0.15, abs=0.05)
    heavy = np.log(samples(placement=0.0025, degrees=2.0) / 12.0)
    assert np.abs(heavy).max() > 8 * np.median(np.abs(heavy))


def test_the_simulation_uses_the_shipped_trimmed_mean() -> None:
    samples = np.random.default_rng(5).gamma(3.0, 1.0, (4, simulate.ROUNDS, 2))
    shipped = [[trimmed_mean(one[:, arm].tolist(), simulate.TRIM) for arm in (0, 1)] for one in samples]
    assert np.allclose(simulate.trimmed_means(samples, simulate.TRIM), shipped)


def test_the_guides_tables_are_this_simulations() -> None:
    """A few rows of each table, simulated again with other seeds, agree with what is printed."""
    rows = {
        cells[0]: [float(cell.rstrip(" %")) / (100 if cell.endswith("%") else 1) for cell in cells[1:]]
        for line in PAGE.read_text().splitlines()
        if len(cells := re.split(r"\s*\|\s*", line.strip("| "))) == len(characteristics.COLUMNS)
        and all(re.fullmatch(r"[\d.]+( %)?", cell) for cell in cells[1:])
        and cells[-1].endswith("%")
    }
    assert set(rows) == {one.name for one in (*simulate.DURATIONS, simulate.TYPICAL, *simulate.NOISES)}
    for name in ("12 us", "throttling"):
        again = characteristics.row(name, 300, 150, seed=77)
        printed = dict(zip(characteristics.COLUMNS[1:], rows[name], strict=True))
        assert printed["false regressions"] <= most(characteristics.false_alarm_bound(PLAN, PROCESSES), 4000)
        for column, total in (("undecided", 300), *((column, 150) for column in characteristics.COLUMNS[5:])):
            spread = math.sqrt(max(printed[column] * (1 - printed[column]), 0.01) / total)
            assert again[column] == pytest.approx(printed[column], abs=4 * spread), f"{name}: {column}"
