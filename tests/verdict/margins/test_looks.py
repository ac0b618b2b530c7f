"""Several looks at a suspect, on nights that no device ran: what they decide, what they accuse, and how often they pass a true slowdown."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fusebench.schema import VerdictKind
from fusebench.verdict.margins import rule as rules
from helpers.simulated_looks import Class, Night, simulated

NIGHTS = 4


def share(nights: Mapping[Class, Night], kind: VerdictKind) -> float:
    """Of all final verdicts."""
    return sum(one.final[kind] for one in nights.values()) / sum(one.final.total() for one in nights.values())


def test_a_change_as_large_as_the_margin_passes_at_any_look_no_more_often_than_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share(simulated(NIGHTS, "margin"), VerdictKind.PASS) <= 0.05
    monkeypatch.setattr(rules, "LOOKS_PASS_LEVEL", rules.PASS_LEVEL)
    assert share(simulated(NIGHTS, "margin"), VerdictKind.PASS) > 0.065, "the level of a single look does not do for several"


def test_looks_decide_most_of_what_few_placements_leave_open_and_accuse_nobody() -> None:
    """The floors are the shares that today's stored scatter and baseline give: each run that joins leaves less open at first."""
    thin, looked = simulated(NIGHTS, confirm=False), simulated(NIGHTS)
    assert share(thin, VerdictKind.UNDECIDED) > 0.014
    assert share(looked, VerdictKind.UNDECIDED) < 0.7 * share(thin, VerdictKind.UNDECIDED), "what is left are calls of 50 us and more"
    assert share(looked, VerdictKind.REGRESSION) <= 0.001


def test_an_injected_slowdown_is_found_after_all_looks_and_passes_at_none() -> None:
    found = simulated(NIGHTS, "target")
    assert share(found, VerdictKind.PASS) <= 0.002
    for which, least in (((False, 1), 0.80), ((False, 2), 0.95), ((False, 3), 0.90)):
        assert share({which: found[which]}, VerdictKind.REGRESSION) >= least
    assert share(simulated(NIGHTS, "target", confirm=False), VerdictKind.REGRESSION) < share(found, VerdictKind.REGRESSION)
