"""Searches over simulated histories: how often `fusebench bisect` names the right commit.  The table of docs/bisect.md.

PYTHONPATH=tests python -m helpers.bisection_characteristics
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from fusebench.schema import Confirmation, ConfirmationOutcome, Finding, VerdictKind
from fusebench.stats.bisection import Search, Side, plan_of_step, side_of, size_of
from fusebench.stats.sequential import Plan
from helpers import simulate

COMMITS = 64
SIZES = (0.01, 0.02, 0.03, 0.05)


class Simulated(msgspec.Struct):
    """One search over a simulated history."""

    culprit: int | None
    """None if the last comparison did not show a slowdown, or the ends did not."""
    measured: int
    """Commits measured, both ends included."""


def search(last: int, side: Callable[[int], Side]) -> tuple[Search, list[int]]:
    """The search at its end, and the positions it asked for."""
    found, asked = Search(last), []
    while (place := found.next()) is not None:
        asked.append(place)
        found.note(place, side(place))
    return found, asked


def simulated(levels: Sequence[float], noise: simulate.Noise, seed: int) -> Simulated:
    """Search a history in which the commit at `place` takes 1 + `levels[place]` of good's time."""
    last, smallest = len(levels) - 1, Plan().margin_at(noise.time_us)

    def compared(head: int, base: int, plan: Plan) -> tuple[Finding, Confirmation | None]:
        size = (1 + levels[head]) / (1 + levels[base]) - 1
        outcome = simulate.compare(noise, size, 1, seed * 1_000_000 + 1000 * head + base, plan)
        return outcome.first[0], outcome.confirmations[0]

    ends = plan_of_step(Plan(), last)
    seen, confirmation = compared(last, 0, ends)
    if confirmation is None or not _slower(seen, confirmation):
        return Simulated(None, 2)
    step = plan_of_step(Plan(), last, size=size_of(seen, confirmation))
    found, asked = search(last, lambda place: side_of(*compared(place, 0, step), smallest))
    if found.high - found.low > 1:
        return Simulated(None, len(asked) + 2)
    return Simulated(found.high if _slower(*compared(found.high, found.low, ends)) else None, len(asked) + 2)


def _slower(finding: Finding, confirmation: Confirmation | None) -> bool:
    confirmed = confirmation is not None and confirmation.outcome is ConfirmationOutcome.CONFIRMED
    return confirmed and finding.kind is VerdictKind.REGRESSION


def share_right(noise: simulate.Noise, size: float, searches: int) -> tuple[float, int]:
    """Share of searches among 64 commits that name the right one, and the number that name a wrong one."""
    right = wrong = 0
    for number in range(searches):
        first = 1 + (number * 37) % COMMITS
        culprit = simulated([size if place >= first else 0.0 for place in range(COMMITS + 1)], noise, number).culprit
        right += culprit == first
        wrong += culprit not in (first, None)
    return right / searches, wrong


def main() -> None:
    print(f"| noise | {' | '.join(f'{100 * size:.0f} %' for size in SIZES)} | a wrong commit |")
    print("|---|" + "---|" * (len(SIZES) + 1))
    for noise in (*simulate.DURATIONS, *simulate.NOISES):
        found = [share_right(noise, size, 200) for size in SIZES]
        shares = " | ".join(f"{100 * share:.0f} %" for share, _ in found)
        wrong = sum(number for _, number in found)
        print(f"| {noise.name} | {shares} | {wrong} of {200 * len(SIZES)} |", flush=True)


if __name__ == "__main__":
    main()
