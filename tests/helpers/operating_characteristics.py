"""How often verdicts are wrong and what they find, by simulation: the tables of docs/statistics.md.

Run it from the repository with the package importable; it prints both tables as markdown in about a minute:

    PYTHONPATH=tests python -m helpers.operating_characteristics
"""

from __future__ import annotations

from fusebench.schema import VerdictKind
from fusebench.stats.sequential import Plan
from fusebench.verdict.calibration import summarise
from helpers import simulate

SIZES = (0.005, 0.01, 0.02, 0.05)
COLUMNS = (
    "noise",
    "first findings",
    "false regressions",
    "undecided",
    "replicates",
    *(f"finds {100 * size:.1f} %" for size in SIZES),
)


def false_alarm_bound(plan: Plan, processes: int, *, shared_shift: bool = False) -> float:
    """The largest chance that a comparison whose true change is within the margin ends as a confirmed regression.

    `alarm_level` x 2**-P, reached at a change equal to the margin.  With `shared_shift` a process may move all its replicates together, by
    any symmetrically distributed amount: the first finding then has up to an even chance and the bound is 2**-(P + 1).
    """
    first = 0.5 if shared_shift else plan.alarm_level
    return float(first * 0.5**processes)


def row(name: str, equal: int, planted: int, seed: int = 1) -> dict[str, float]:
    """One noise model: counts among `equal` comparisons of a kernel with itself, and shares found among `planted` of each size."""
    noise = next(one for one in (*simulate.DURATIONS, simulate.TYPICAL, *simulate.NOISES) if one.name == name)
    alike = simulate.compare(noise, 0.0, equal, seed)
    trials = alike.trials()
    for place, size in enumerate(SIZES):
        trials += simulate.compare(noise, size, planted, seed + 1 + place).trials()
    (summary,) = summarise(trials).classes
    return {
        "first findings": alike.count_first(VerdictKind.REGRESSION),
        "false regressions": summary.false_regressions.count,
        "undecided": summary.undecided.value,
        "replicates": summary.median_replicates,
        **{f"finds {100 * size:.1f} %": summary.found[size].value for size in SIZES},
    }


def table(names: list[str], equal: int, planted: int) -> list[str]:
    """The lines of a markdown table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for name in names:
        found = row(name, equal, planted)
        cells = [
            name,
            f"{found['first findings']:g}",
            f"{found['false regressions']:g}",
            f"{100 * found['undecided']:.1f} %",
            f"{found['replicates']:g}",
            *(f"{100 * found[column]:.1f} %" for column in COLUMNS[5:]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    for noises in (simulate.DURATIONS, (simulate.TYPICAL, *simulate.NOISES)):
        print(*table([noise.name for noise in noises], 4000, 1000), "", sep="\n")


if __name__ == "__main__":
    main()
