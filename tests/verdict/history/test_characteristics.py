"""The table of docs/history.md, which is simulated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scipy.stats import binom

from fusebench.stats.random_orders import RandomOrders
from fusebench.verdict.history.shifts import orders_needed
from helpers import history_characteristics

GUIDE = Path(__file__).parents[3] / "docs" / "history.md"
TRIALS = 60


@pytest.fixture(scope="module")
def stated() -> dict[int, list[float]]:
    """Runs of the new level, and the share found of steps of 1, 2, 3 and 5 % among thirty series."""
    table = GUIDE.read_text().partition("among 30 series")[2].partition("among 866 series")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", table, re.MULTILINE)
    return {int(after): [float(cell.strip(" %")) / 100 for cell in cells.split("|")] for after, cells in rows}


@pytest.fixture(scope="module")
def random_orders() -> RandomOrders:
    return RandomOrders(orders_needed(30))


@pytest.mark.parametrize("cell", [(5, 3, 1.05), (8, 1, 1.02), (15, 0, 1.01)], ids=str)
def test_the_guide_says_how_soon_a_step_is_seen(
    stated: dict[int, list[float]], random_orders: RandomOrders, cell: tuple[int, int, float]
) -> None:
    after, place, factor = cell
    found = history_characteristics.share_found(after, factor, 30, random_orders, trials=TRIALS)
    share = stated[after][place]
    low, high = binom.ppf([0.001, 0.999], TRIALS, [max(0.0, share - 0.03), min(1.0, share + 0.03)])
    assert low <= found * TRIALS <= high


def test_steady_suites_raise_no_alarm_beyond_the_margin() -> None:
    assert history_characteristics.share_of_alarms(10, 5, 0.01) == 0
