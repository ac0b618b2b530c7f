"""Nights whose suspects are remeasured look by look, against a baseline of H200s, with effects of boards, processes and placements.

No device ran them.  Effects are drawn from the stored scatter; uncertainty of the baseline is its own; verdicts are the shipped rule's.
It prints the tables of docs/statistics.md as markdown:

    PYTHONPATH=tests python -m helpers.simulated_looks
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache

import msgspec
import numpy as np

from fusebench.runner.run.looks import FRESH_REPLICATES, fresh_looks
from fusebench.schema import ClassScatter, Estimate, Measurement, Reference, Run, VerdictKind
from fusebench.stats.scatter import DEGREES, LEVEL
from fusebench.stats.student import quantile
from fusebench.store.baselines import load_baseline
from fusebench.store.scatter_file import load_scatter
from fusebench.verdict.margins.call_classes import DURATION_CLASSES_US, call_class, class_words
from fusebench.verdict.margins.rule import TARGETS, MarginRule
from fusebench.verdict.margins.support import change_between, own_variance, support_of

from .gate_characteristics import RESULTS, eight_processes, nightlies

Class = tuple[bool, int]
_Kernel = tuple[Measurement, ClassScatter, float]
WHOLE, THIN = range(4, 100), range(1, 4)
"""Runs behind a time that eight processes on four boards or more made, and behind one of fewer: of the first, those of `eight_processes`,
of the others those of the stored baseline."""
PLACEMENTS = 12
"""Of the stored runs whose scatter of placements is known."""


class Night(msgspec.Struct):
    """Verdicts of one class of calls."""

    first: Counter[VerdictKind]
    final: Counter[VerdictKind]
    processes: int = 0
    """Fresh processes of all its kernels."""


@cache
def _stored(runs: range) -> tuple[Run, Run, MarginRule]:
    baseline = eight_processes() if runs == WHOLE else load_baseline(RESULTS, "NVIDIA H200")
    scatter = load_scatter(RESULTS, "NVIDIA H200")
    assert baseline is not None
    assert scatter is not None
    environment = msgspec.structs.replace(nightlies()[-1].environment, device_uuid="GPU-new")
    return msgspec.structs.replace(nightlies()[-1], environment=environment), baseline, MarginRule(scatter=scatter)


def _kernels(baseline: Run, rule: MarginRule, runs: range) -> Iterator[tuple[Class, Measurement, ClassScatter]]:
    """Times of the baseline that gate, of so many joined runs, and known to no worse than 2 %: a disturbed one says nothing of the rule."""
    for result in baseline.results:
        timing = result.measurement
        if timing is None or not result.speed_gates or max(1, len(timing.runs)) not in runs or own_variance(timing) > 0.02**2:
            continue
        scatter = rule.scatter_of(timing.time_us.value, timing.kernels, Reference.MACHINE)
        if scatter is not None:
            yield call_class(timing.time_us.value, timing.kernels), timing, scatter


def simulated(
    nights: int, slowdown: str = "", *, runs: range = WHOLE, processes: int = 1, replicates: int = 6, confirm: bool = True, seed: int = 1
) -> dict[Class, Night]:
    """Nights of the baseline's kernels on another board.

    Args:
        slowdown: `target`, that of the class; `margin`, exactly the margin; empty for equal code.
        runs: numbers of joined runs behind the baseline's times.
        processes: of the first measurement, each with so many `replicates`.
    """
    head, baseline, rule = _stored(runs)
    generator = np.random.default_rng(seed)
    found: dict[Class, Night] = {}

    def draw(scale: float | None) -> float:
        return float(generator.standard_t(DEGREES)) * (scale or 0.0)

    for which, timing, scatter in list(_kernels(baseline, rule, runs)) * nights:
        if slowdown == "target" and which not in TARGETS:
            continue
        margin = rule.margin_at(timing.time_us.value, timing.kernels, Reference.MACHINE)
        change = {"": 0.0, "target": TARGETS.get(which, 0.0), "margin": margin}[slowdown]
        support = support_of(timing, baseline)
        old = sum(weight * draw(scatter.board) for weight in support.boards.values())
        old += math.sqrt(support.inverse_processes) * draw(scatter.process) + generator.normal(0.0, math.sqrt(own_variance(timing)))
        common = math.log1p(change) + draw(scatter.board) - old
        placement = scatter.placement * math.sqrt(PLACEMENTS)

        def measured(count: int, each: int, process: float | None = scatter.process, placement: float = placement) -> list[list[float]]:
            return [list(draw(process) + generator.normal(0.0, placement, each)) for _ in range(count)]

        def judged(logs: list[list[float]], looks: int, strict: MarginRule, kernel: _Kernel = (timing, scatter, common)) -> VerdictKind:
            timing, scatter, common = kernel
            log, new = _new(timing, common, logs, looks)
            change = change_between(log, (new, head), (timing, baseline), scatter, boards=("GPU-new", ""))
            assert change is not None
            return strict.judge(change, timing.time_us.value, timing.kernels, Reference.MACHINE, looks=looks)[0]

        night = found.setdefault(which, Night(Counter(), Counter()))
        logs = measured(processes, replicates)
        kind = judged(logs, 1, rule.confirming() if confirm else rule)
        night.first[kind] += 1
        if confirm and kind is not VerdictKind.PASS:
            looks = fresh_looks(processes, scatter_known=True)
            fresh: list[list[float]] = []
            for look in looks:
                fresh += measured(look - len(fresh), max(replicates, FRESH_REPLICATES))
                kind = judged(fresh, len(looks) + 1, rule)
                if kind is VerdictKind.PASS:
                    break
            night.processes += len(fresh)
        night.final[kind] += 1
    return found


def _new(timing: Measurement, common: float, logs: list[list[float]], looks: int) -> tuple[float, Measurement]:
    """The log of a change, and its new time as a record holds it, from the placements of each process."""
    every = [one for process in logs for one in process]
    units = every if len(logs) == 1 else [float(np.mean(process)) for process in logs]
    errors = [float(np.std(which, ddof=1)) / math.sqrt(len(which)) for which in (units, every)]
    half = quantile(0.5 + LEVEL / 2, len(units) - 1) * errors[0]
    log = common + float(np.mean(every))
    time = Estimate(*(timing.time_us.value * math.exp(log + end) for end in (0.0, -half, half)))
    new = msgspec.structs.replace(
        timing, time_us=time, processes=len(logs), replicates=len(every), runs=(), boards=(), looks=looks,
        placement_error=errors[1] if len(logs) > 1 else None,
    )  # fmt: skip
    return log, new


def table(nights: int, runs: range = WHOLE) -> list[str]:
    """The lines of a markdown table."""
    equal, slowed, edge = (simulated(nights, which, runs=runs) for which in ("", "target", "margin"))
    lines = [
        "| calls | undecided at first | after all looks | called slower | fresh processes per kernel | as slow as the margin, passed "
        "| injected | found | passed |",
        "|" + "---|" * 9,
    ]
    edges = [0.0, *DURATION_CLASSES_US, math.inf]
    for which in sorted(equal):
        night, count = equal[which], equal[which].final.total()
        cells = [
            class_words(edges[which[1]], edges[which[1] + 1], which[0]),
            f"{100 * (1 - night.first[VerdictKind.PASS] / count):.1f} %",
            f"{100 * night.final[VerdictKind.UNDECIDED] / count:.1f} %",
            f"{night.final[VerdictKind.REGRESSION]} of {count}",
            f"{night.processes / count:.2f}",
            f"{100 * edge[which].final[VerdictKind.PASS] / edge[which].final.total():.1f} %",
            "-", "-", "-",
        ]  # fmt: skip
        if which in slowed:
            final = slowed[which].final
            found, passed = (100 * final[kind] / final.total() for kind in (VerdictKind.REGRESSION, VerdictKind.PASS))
            cells[-3:] = [f"{100 * TARGETS[which]:.0f} %", f"{found:.1f} %", f"{passed:.1f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    total = sum(one.final.total() for one in equal.values())
    left = sum(one.final[VerdictKind.UNDECIDED] for one in equal.values())
    passed = sum(one.final[VerdictKind.PASS] for one in edge.values()) / sum(one.final.total() for one in edge.values())
    lines.append(f"\nundecided after all looks: {100 * left / total:.1f} % of {total}; as slow as the margin, passed: {100 * passed:.1f} %")
    return lines


if __name__ == "__main__":
    print("times of eight processes on four boards or more", *table(8), sep="\n")
    print("\nother times", *table(8, THIN), sep="\n")
