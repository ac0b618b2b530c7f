"""How often a gate between days is right, on stored nightlies and by simulation: the tables of docs/statistics.md.

Run it from the repository with the package importable; it prints the tables as markdown in a minute:

    PYTHONPATH=tests python -m helpers.gate_characteristics

No stored pair helps to judge itself: the scatter between runs is estimated without the boards of the pair.  Machine code is left out of the
records that are judged, so that times alone decide; it only says which kernels are equal.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np

from fusebench.schema import ClassScatter, Estimate, Measurement, Reference, Result, Run, RunScatter, VerdictKind
from fusebench.stats.scatter import DEGREES
from fusebench.stats.student import quantile
from fusebench.store.history_file import read_history_file
from fusebench.store.scatter_file import load_scatter
from fusebench.verdict.baseline.joined import join_runs
from fusebench.verdict.baseline.judgement import Judgement, judge_each
from fusebench.verdict.baseline.run_scatter import scatter_between
from fusebench.verdict.identical_code import equal_code
from fusebench.verdict.margins.call_classes import DURATION_CLASSES_US, call_class, class_words, launches_of
from fusebench.verdict.margins.rule import TARGETS, MarginRule

RESULTS = Path(__file__).parents[2] / "results"

Place = tuple[str, str]
"""Key of a case, and a kernel."""
Class = tuple[bool, int]
"""As `call_class`."""


class Tally(msgspec.Struct):
    """Comparisons of equal code in one class of calls, and the same with an injected slowdown."""

    covered: int = 0
    """Those whose 95 % interval holds no change."""
    equal: Counter[VerdictKind] = msgspec.field(default_factory=Counter)
    injected: Counter[VerdictKind] = msgspec.field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.covered += other.covered
        self.equal += other.equal
        self.injected += other.injected

    @property
    def count(self) -> int:
        return self.equal.total()

    def share(self, counted: Counter[VerdictKind], kind: VerdictKind) -> float:
        return counted[kind] / counted.total() if counted else math.nan


Tallies = dict[Class, Tally]


@cache
def stored() -> tuple[Run, ...]:
    files = sorted((RESULTS / "history").glob("nvidia_h200*.parquet"))
    return tuple(sorted((run for file in files for run in read_history_file(file)), key=lambda run: run.created))


def nightlies() -> list[Run]:
    """Eight of one process with a yardstick that reads as much as it writes, and five with that of the op's own mix, one of one process and
    four of two."""
    return [run for run in stored() if run.plan.precision is None]


@cache
def eight_processes() -> Run:
    """Four nightlies of two processes, each on a board of its own and all of one code: a baseline that no later kernel changes."""
    return join_runs([run for run in nightlies() if run.environment.git_commit.startswith("f3d79e9")])


def same_yardstick(one: Run, other: Run) -> bool:
    return {summary.stream_shape for summary in one.cases} == {summary.stream_shape for summary in other.cases}


def without_boards(boards: Collection[str]) -> RunScatter:
    """The scatter between the stored runs of other boards."""
    return _without_boards(frozenset(boards))


@cache
def _without_boards(boards: frozenset[str]) -> RunScatter:
    found = scatter_between([run for run in stored() if run.environment.device_uuid not in boards])
    assert found is not None
    return found


def pairs(most: int | None = None) -> dict[bool, Tallies]:
    """Every nightly against every older one, by whether both are of one board.  Pairs whose class has no scatter left are not counted."""
    found: dict[bool, Tallies] = {True: {}, False: {}}
    for older, newer in [pair for pair in combinations(nightlies(), 2) if same_yardstick(*pair)][:most]:
        boards = {older.environment.device_uuid, newer.environment.device_uuid}
        merge(found[len(boards) == 1], compare(newer, older, MarginRule(scatter=without_boards(boards))))
    return found


def joined(heads: Sequence[Run] | None = None) -> Tallies:
    """Each nightly against the baseline that all others with its yardstick make."""
    found: Tallies = {}
    for head in nightlies() if heads is None else heads:
        scatter = without_boards({head.environment.device_uuid})
        others = [run for run in nightlies() if run is not head and same_yardstick(run, head)]
        merge(found, compare(head, join_runs(others), MarginRule(scatter=scatter)))
    return found


def merge(into: Tallies, more: Mapping[Class, Tally]) -> None:
    for which, tally in more.items():
        into.setdefault(which, Tally()).add(tally)


def compare(head: Run, base: Run, rule: MarginRule, *, processes: int = 1) -> Tallies:
    """Equal kernels by class, as measured and with the class's target slowdown; those that `head` timed in at least so many processes."""
    places = equal_places(head, base, processes)
    new, old = without_code(head), without_code(base)
    found: dict[Class, Tally] = defaultdict(Tally)
    judged = by_place(judge_each(new, old, rule), places)
    for place, one in judged.items():
        change = one.verdict.change
        if one.reference is not Reference.MACHINE or change is None:
            continue
        found[places[place]].equal[one.verdict.kind] += 1
        found[places[place]].covered += change.low <= 1 <= change.high
    for which, slowdown in TARGETS.items():
        these = {place for place in judged if places[place] == which}
        for place, one in by_place(judge_each(slowed(new, slowdown, these), old, rule), these).items():
            if one.reference is Reference.MACHINE:
                found[places[place]].injected[one.verdict.kind] += 1
    return dict(found)


def equal_places(head: Run, base: Run, processes: int = 1) -> dict[Place, Class]:
    """The class of every gating kernel and case that both runs timed with equal code, `head` in at least so many processes.

    Cases that repeat another one's work are left out."""
    old = {(one.case_key, one.kernel): one for one in base.results}
    repeated = {summary.case.key for summary in head.cases if summary.same_as}
    found = {}
    for new in head.results:
        then = old.get((new.case_key, new.kernel))
        if then is None or new.measurement is None or then.measurement is None or new.case_key in repeated:
            continue
        if new.measurement.processes >= processes and new.speed_gates and not new.covers and equal_code(new, then, head, base):
            found[new.case_key, new.kernel] = call_class(new.measurement.time_us.value, launches_of(new.measurement, then.measurement))
    return found


def by_place(judged: Iterable[Judgement], places: Collection[Place]) -> dict[Place, Judgement]:
    found = {(f"{one.suite}:{one.case}", one.kernel): one for one in judged}
    return {place: found[place] for place in places}


def without_code(run: Run) -> Run:
    return msgspec.structs.replace(run, results=[msgspec.structs.replace(one, code=None, accuracy=None) for one in run.results])


def slowed(run: Run, share: float, places: Collection[Place]) -> Run:
    """The run with these kernels slower by this share."""

    def slower(result: Result) -> Result:
        timing = result.measurement
        if timing is None or (result.case_key, result.kernel) not in places:
            return result
        time = Estimate(*((1 + share) * end for end in (timing.time_us.value, timing.time_us.low, timing.time_us.high)))
        return msgspec.structs.replace(result, measurement=msgspec.structs.replace(timing, time_us=time))

    return msgspec.structs.replace(run, results=[slower(result) for result in run.results])


class Simulated(msgspec.Struct):
    """Verdicts after confirmation, and how many kernels one process left as suspects."""

    tallies: Tallies
    suspects: Counter[Class]


def simulated(nights: int, boards: int, processes: int = 8, seed: int = 1) -> Simulated:
    """Nights on a board of their own against a joined baseline, with times drawn from the stored scatter; suspects take eight processes.

    Each component is drawn from the distribution that the rule assumes.  The rule's code judges runs that `join_runs` joined.
    """
    scatter = load_scatter(RESULTS, "NVIDIA H200")
    assert scatter is not None
    template = without_code(nightlies()[-1])
    rule = MarginRule(scatter=scatter)
    classes = {(one.several_launches, bisect(one.low_us)): one for one in scatter.classes if one.reference is Reference.MACHINE}
    found = Simulated({}, Counter())
    for night in range(nights):
        machine = Machines(template, classes, seed + night)
        base = join_runs([machine.run(f"base{number}", number % boards, 1) for number in range(processes)])
        head, again = machine.run("head", boards, 1), machine.run("again", boards, 8)
        places = {place: which for place, which in equal_places(head, base).items() if which in classes}
        for slowdown in (False, True):
            counted = places if not slowdown else {place: which for place, which in places.items() if which in TARGETS}
            runs = [slowed_by_target(run, counted) if slowdown else run for run in (head, again)]
            first, second = (by_place(judge_each(run, base, rule), counted) for run in runs)
            for place, which in counted.items():
                one = first[place] if first[place].verdict.kind is VerdictKind.PASS else second[place]
                tally = found.tallies.setdefault(which, Tally())
                (tally.injected if slowdown else tally.equal)[one.verdict.kind] += 1
                change = one.verdict.change
                tally.covered += not slowdown and change is not None and change.low <= 1 <= change.high
                found.suspects[which] += not slowdown and one is not first[place]
    return found


def slowed_by_target(run: Run, places: Mapping[Place, Class]) -> Run:
    for which, slowdown in TARGETS.items():
        run = slowed(run, slowdown, {place for place, one in places.items() if one == which})
    return run


def bisect(low_us: float) -> int:
    return sum(low_us >= limit for limit in DURATION_CLASSES_US)


class Machines:
    """Boards with times of their own, and runs on them."""

    def __init__(self, template: Run, classes: Mapping[Class, ClassScatter], seed: int) -> None:
        self.template, self.classes = template, classes
        self.generator = np.random.default_rng(seed)
        self.boards: dict[tuple[int, Place], float] = {}
        self.created = 0

    def run(self, name: str, board: int, processes: int) -> Run:
        """A run on a board; each kernel and case in so many processes."""
        self.created += 1
        results = []
        for result in self.template.results:
            timing = result.measurement
            scatter = self.classes.get(call_class(timing.time_us.value, timing.kernels)) if timing is not None else None
            if timing is not None and scatter is not None:
                place = result.case_key, result.kernel
                shift = self.boards.setdefault((board, place), self.draw(scatter.board or 0.0))
                timing = self.measured(timing, scatter, shift, processes)
            results.append(msgspec.structs.replace(result, measurement=timing))
        environment = msgspec.structs.replace(self.template.environment, device_uuid=f"GPU-{board}")
        created = f"2026-07-{self.created:02d}T00:00:00Z"
        return msgspec.structs.replace(self.template, id=name, created=created, environment=environment, results=results)

    def measured(self, timing: Measurement, scatter: ClassScatter, shift: float, processes: int) -> Measurement:
        each = [shift + self.draw(scatter.process or 0.0) + self.generator.normal(0, scatter.placement) for _ in range(processes)]
        units, error = 12, scatter.placement
        if processes > 1:
            units, error = processes, float(np.std(each, ddof=1)) / math.sqrt(processes)
        log, half = float(np.mean(each)), quantile(0.975, units - 1) * error
        time = Estimate(*(timing.time_us.value * math.exp(log + end) for end in (0.0, -half, half)))
        return msgspec.structs.replace(timing, time_us=time, processes=processes, replicates=12 * processes)

    def draw(self, scale: float) -> float:
        return float(self.generator.standard_t(DEGREES)) * scale


COLUMNS = ("calls", "comparisons", "95 % intervals hold", "undecided", "called slower or faster", "injected", "found", "passed")


def words(which: Class) -> str:
    edges = [0.0, *DURATION_CLASSES_US, math.inf]
    several, duration = which
    return class_words(edges[duration], edges[duration + 1], several)


def table(tallies: Mapping[Class, Tally]) -> list[str]:
    """The lines of a markdown table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for which, tally in sorted(tallies.items()):
        target = TARGETS.get(which)
        called = tally.equal[VerdictKind.REGRESSION], tally.equal[VerdictKind.IMPROVEMENT]
        cells = [
            words(which),
            str(tally.count),
            f"{100 * tally.covered / tally.count:.1f} %",
            f"{100 * tally.share(tally.equal, VerdictKind.UNDECIDED):.1f} %",
            f"{called[0]}, {called[1]}",
            *(
                (
                    f"{100 * target:.0f} %",
                    f"{100 * tally.share(tally.injected, VerdictKind.REGRESSION):.1f} %",
                    str(tally.injected[VerdictKind.PASS]),
                )
                if target is not None
                else ("-", "-", "-")
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    for same_board, tallies in pairs().items():
        print(f"pairs of nightlies, {'same' if same_board else 'other'} board", *table(tallies), "", sep="\n")
    print("each nightly against all others joined", *table(joined()), "", sep="\n")
    for boards in (2, 8):
        found = simulated(12, boards)
        print(f"simulated: a baseline of 8 processes on {boards} boards, suspects confirmed", *table(found.tallies), sep="\n")
        shares = [f"{100 * (found.suspects[which] / found.tallies[which].count):.1f} %" for which in sorted(found.tallies)]
        print(f"suspects after one process, by class: {', '.join(shares)}", "", sep="\n")


if __name__ == "__main__":
    main()
