"""Figures of whole nightlies on equal code, by times alone: the targets of a gate between days, on nights that no test knows.

From the repository with the package importable.  A baseline without digests, for `fusebench run --baseline`, so that suspects are
confirmed as those of changed code are:

    PYTHONPATH=tests python -m helpers.night_figures strip results/baselines/nvidia_h200 results/runs/without_digests

and the figures of nights against the stored baseline and against each other, as markdown:

    PYTHONPATH=tests python -m helpers.night_figures show NIGHT...

A baseline that is faster by the target slowdowns, for `fusebench run --baseline`: all of its kernels are slower in such a night, whose
fresh processes may confirm it, and what its gate then says:

    PYTHONPATH=tests python -m helpers.night_figures plant results/baselines/nvidia_h200 results/runs/planted
    PYTHONPATH=tests python -m helpers.night_figures found results/runs/planted NIGHT...

No board helps to judge itself: the scatter between runs is estimated without the boards of the two runs that are compared.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from fusebench.schema import Run, VerdictKind
from fusebench.store.run_folder import read_run, write_record
from fusebench.verdict.baseline.compare_to_baseline import RunJudgement, judge_run
from fusebench.verdict.exit_status import gate_exit_code
from fusebench.verdict.margins.rule import FRESH_PROCESSES, TARGETS, MarginRule

from . import gate_characteristics as gates

STORED = gates.RESULTS / "baselines" / "nvidia_h200"


def without_digests(run: Run) -> Run:
    """The run as one of unknown machine code: its gate judges by times alone."""
    return msgspec.structs.replace(run, results=[msgspec.structs.replace(one, code=None) for one in run.results])


def planted(run: Run) -> Run:
    """The run, of unknown machine code, whose kernels of the classes of TARGETS took less by the target: equal code is slower by it."""
    places = gates.equal_places(run, run)
    for which, slowdown in TARGETS.items():
        run = gates.slowed(run, 1 / (1 + slowdown) - 1, {place for place, one in places.items() if one == which})
    return without_digests(run)


def write(run: Run, target: Path) -> None:
    """Write the record of `run` to the new folder `target`, sealed anew and without raw samples."""
    target.mkdir(parents=True)
    write_record(target, run)


def found(nights: Sequence[Run], base: Run, baseline: Run) -> list[str]:
    """Lines of markdown: what the gate says of nights against the planted `base`, where their code is that of `baseline`."""
    kinds: dict[gates.Class, Counter[VerdictKind]] = {which: Counter() for which in TARGETS}
    fresh: Counter[gates.Class] = Counter()
    classes = gates.equal_places(baseline, baseline)
    for night in nights:
        equal = gates.equal_places(night, baseline)
        rule = MarginRule(scatter=gates.without_boards({night.environment.device_uuid}))
        for result, verdict in zip(night.results, judge_run(night, base, rule).verdicts, strict=True):
            place = (result.case_key, result.kernel)
            which = classes.get(place)
            if place in equal and which in kinds and verdict is not None and result.measurement is not None:
                kinds[which][verdict.kind] += 1
                fresh[which] += result.measurement.processes > 1
    lines = ["| calls | planted | kernels | remeasured | found | undecided | passed |", "|" + "---|" * 7]
    for which, counted in kinds.items():
        if counted:
            shares = [f"{100 * counted[kind] / counted.total():.1f} %" for kind in (VerdictKind.REGRESSION, VerdictKind.UNDECIDED)]
            passed = counted[VerdictKind.PASS] + counted[VerdictKind.IMPROVEMENT]
            cells = [gates.words(which), f"{100 * TARGETS[which]:.0f} %", counted.total(), fresh[which], *shares, passed]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def against(night: Run, baseline: Run) -> list[str]:
    """One row of figures per way of judging, with digests and without."""
    boards = {night.environment.device_uuid}
    rule = MarginRule(scatter=gates.without_boards(boards))
    confirmed = sum(one.suspicion != "" for one in night.cases)
    cells = []
    for words, base in (("with", baseline), ("without", without_digests(baseline))):
        judged = judge_run(night, base, rule)
        kinds = gating(night, judged)
        compared = kinds.total() - kinds[VerdictKind.INCOMPARABLE]
        cells.append(
            f"| {night.id} | {words} | {gate_exit_code(judged.judgements, judged.shrunken, run_code=night.exit_code)} | {compared} "
            f"| {kinds[VerdictKind.UNDECIDED]} ({kinds[VerdictKind.UNDECIDED] / compared:.1%}) | {kinds[VerdictKind.REGRESSION]} "
            f"| {kinds[VerdictKind.IMPROVEMENT]} | {kinds[VerdictKind.INCOMPARABLE]} | {len(judged.suspects)} | {confirmed} |"
        )
    return cells


HEAD = (
    "| night | digests | gate's exit code | gating comparisons | undecided | regressions | improvements | incomparable | suspects left "
    "| cases confirmed |",
    "|" + "---|" * 10,
)


def gating(night: Run, judged: RunJudgement) -> Counter[VerdictKind]:
    """Final verdicts on kernels whose speed gates, by kind."""
    both = zip(night.results, judged.verdicts, strict=True)
    return Counter(verdict.kind for one, verdict in both if verdict is not None and one.speed_gates)


def compared(pairs: Sequence[tuple[Run, Run]], processes: int = 1) -> gates.Tallies:
    """Head and base of each pair, as `gate_characteristics.compare`."""
    found: gates.Tallies = {}
    for head, base in pairs:
        boards = {head.environment.device_uuid, base.environment.device_uuid, *(one.board for one in base.joined)}
        # A baseline of many stored boards would leave no scatter: it is judged by that of all other boards than the head's.
        boards = {head.environment.device_uuid} if base.joined else boards
        gates.merge(found, gates.compare(head, base, MarginRule(scatter=gates.without_boards(boards)), processes=processes))
    return found


def show(nights: Sequence[Run], baseline: Run) -> list[str]:
    """Lines of markdown: verdicts against the baseline, then coverage and injected slowdowns against it and in pairs of the nights."""
    known = {one.id for one in baseline.joined} | {baseline.id}
    unseen = [night for night in nights if night.id not in known]
    lines = [*HEAD, *(row for night in unseen for row in against(night, baseline))]
    if part := [night.id for night in nights if night.id in known]:
        lines += ["", f"The baseline was made of {', '.join(part)}, which are compared with each other alone."]
    ordered = sorted(nights, key=lambda run: run.created)
    groups = {"each night against the baseline": [(night, baseline) for night in unseen]}
    for same in (True, False):
        chosen = [
            (newer, older)
            for older, newer in combinations(ordered, 2)
            if (older.environment.device_uuid == newer.environment.device_uuid) is same and gates.same_yardstick(older, newer)
        ]
        groups[f"pairs of nights on {'one board' if same else 'two boards'}"] = chosen
    for words, pairs in groups.items():
        for processes in (1, FRESH_PROCESSES):
            if tallies := compared(pairs, processes):
                which = "all kernels" if processes == 1 else f"kernels that the newer night timed in {processes} processes or more"
                covered, count = sum(one.covered for one in tallies.values()), sum(one.count for one in tallies.values())
                lines += ["", f"{words} ({len(pairs)}), {which}: 95 % intervals hold {covered / count:.1%} of {count}", ""]
                lines += gates.table(tallies)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    stripping = commands.add_parser("strip", help="write a baseline without digests of machine code")
    stripping.add_argument("folder", type=Path)
    stripping.add_argument("target", type=Path)
    planting = commands.add_parser("plant", help="write a baseline that is faster by the target slowdowns, without digests")
    planting.add_argument("folder", type=Path)
    planting.add_argument("target", type=Path)
    finding = commands.add_parser("found", help="print what the gate says of nights against a planted baseline")
    finding.add_argument("base", type=Path)
    finding.add_argument("nights", type=Path, nargs="+")
    finding.add_argument("--baseline", type=Path, default=STORED, help="with digests")
    showing = commands.add_parser("show", help="print the figures of nights")
    showing.add_argument("nights", type=Path, nargs="+")
    showing.add_argument("--baseline", type=Path, default=STORED, help="with digests")
    chosen = parser.parse_args()
    if chosen.command == "strip":
        write(without_digests(read_run(chosen.folder)), chosen.target)
    elif chosen.command == "plant":
        write(planted(read_run(chosen.folder)), chosen.target)
    else:
        nights, baseline = [read_run(folder) for folder in chosen.nights], read_run(chosen.baseline)
        print(*(show(nights, baseline) if chosen.command == "show" else found(nights, read_run(chosen.base), baseline)), sep="\n")


if __name__ == "__main__":
    main()
