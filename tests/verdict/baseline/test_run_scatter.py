"""The scatter between stored runs, and what a gate that uses it is worth: coverage, undecided comparisons, and injected slowdowns."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from types import ModuleType

import msgspec
import pytest

from fusebench.schema import ClassScatter, Reference, RunScatter, VerdictKind
from fusebench.store.scatter_file import load_scatter
from fusebench.verdict.baseline.compare_to_baseline import judge_run
from fusebench.verdict.baseline.run_scatter import scatter_between
from fusebench.verdict.margins.rule import TARGETS, MarginRule, evidence_margin
from helpers import gate_characteristics, night_figures
from helpers.gate_characteristics import Class, Tally, nightlies, without_boards


def covered(tallies: Mapping[Class, Tally]) -> float:
    return sum(one.covered for one in tallies.values()) / sum(one.count for one in tallies.values())


def undecided(tallies: Mapping[Class, Tally]) -> float:
    return sum(one.equal[VerdictKind.UNDECIDED] for one in tallies.values()) / sum(one.count for one in tallies.values())


def in_store() -> RunScatter:
    found = load_scatter(gate_characteristics.RESULTS, "NVIDIA H200")
    assert found is not None
    return found


def test_the_stored_scatter_is_that_of_the_stored_history() -> None:
    stored, found = in_store(), scatter_between(gate_characteristics.stored())
    assert found is not None
    assert (stored.runs, stored.boards, stored.created) == (46, 15, found.created)
    for mine, theirs in zip(found.classes, stored.classes, strict=True):
        assert mine.process == pytest.approx(theirs.process, abs=1e-6)
        assert mine.board == pytest.approx(theirs.board, abs=1e-6)
        assert (mine.reference, mine.same_board, mine.other_board) == (theirs.reference, theirs.same_board, theirs.other_board)


def test_a_nightly_against_a_baseline_of_eight_processes_passes_and_by_times_alone_accuses_nobody() -> None:
    """One process on a board that took no part in the baseline, nor here in the scatter."""
    (head,) = [run for run in nightlies() if run.id == "2aac7247"]
    base = gate_characteristics.eight_processes()
    rule = MarginRule(scatter=without_boards({head.environment.device_uuid}))
    judged = judge_run(head, base, rule).verdicts
    gating = Counter(verdict.kind for one, verdict in zip(head.results, judged, strict=True) if verdict is not None and one.speed_gates)
    assert gating.total() == gating[VerdictKind.PASS] + gating[VerdictKind.UNDECIDED] == 730
    assert gating[VerdictKind.UNDECIDED] <= 1, "a chain of torch launches that reads 5 % faster than cold code is on the edge"
    found = gate_characteristics.compare(head, base, rule)
    assert sum(one.count for one in found.values()) == 649
    assert sum(one.equal[VerdictKind.UNDECIDED] for one in found.values()) <= 0.025 * 649, "with confirmation 2 % are wanted"
    assert covered(found) > 0.9, "as wanted on another board; the newer runs of the baseline found their code cold, this one did not"
    for which, tally in found.items():
        assert tally.equal[VerdictKind.REGRESSION] == 0
        if which in TARGETS:
            assert tally.injected[VerdictKind.PASS] == 0
            assert tally.share(tally.injected, VerdictKind.REGRESSION) > (0.97 if which[1] > 1 else 0.66)


def test_figures_of_a_night_tell_what_digests_hide_and_what_confirmation_left() -> None:
    (head,) = [run for run in nightlies() if run.id == "2aac7247"]
    base = gate_characteristics.eight_processes()
    undecided = []
    for row, (digests, code) in zip(night_figures.against(head, base), (("with", 0), ("without", 4)), strict=True):
        found = re.fullmatch(rf"\| 2aac7247 \| {digests} \| {code} \| 730 \| (\d+) \(\d+\.\d%\) \| 0 \| .*", row)
        assert found is not None, row
        undecided.append(int(found[1]))
    assert undecided[0] == 0
    assert undecided[1] >= 10, "what digests hide"
    assert night_figures.compared([(head, base)], processes=2) == {}, "nothing of it was confirmed"


def test_kernels_are_found_slower_than_a_baseline_that_is_faster_by_the_targets() -> None:
    (head,) = [run for run in nightlies() if run.id == "2aac7247"]
    base = gate_characteristics.eight_processes()
    faster = night_figures.planted(base)
    assert all(one.code is None for one in faster.results)
    times = {(one.case_key, one.kernel): one.measurement.time_us.value for one in base.results if one.measurement is not None}
    shares = [times[one.case_key, one.kernel] / one.measurement.time_us.value - 1 for one in faster.results if one.measurement is not None]
    assert {round(share, 6) for share in shares} == {0.0, *TARGETS.values()}
    rows = night_figures.found([head], faster, base)[2:]
    cells = {row.split(" | ")[0].removeprefix("| "): row.removesuffix(" |").split(" | ") for row in rows}
    assert list(cells) == ["3 to 10 us", "10 to 50 us", "50 us and more"]
    assert [one[1] for one in cells.values()] == ["5 %", "4 %", "3 %"]
    assert [one[-1] for one in cells.values()] == ["0", "0", "0"], "none passes"
    assert [float(one[4].removesuffix(" %")) > least for one, least in zip(cells.values(), (60, 95, 95), strict=True)] == [True] * 3
    assert night_figures.found([head], night_figures.without_digests(base), base)[2:] != rows, "nothing is planted there"


def test_a_simulated_baseline_of_eight_processes_finds_the_targets_and_leaves_little_undecided() -> None:
    found = gate_characteristics.simulated(1, 8).tallies
    assert covered(found) > 0.93
    assert undecided(found) < 0.03
    for which in TARGETS:
        assert found[which].share(found[which].injected, VerdictKind.REGRESSION) > 0.88


@pytest.mark.exhaustive
def test_intervals_and_verdicts_hold_on_every_pair_of_stored_nightlies() -> None:
    for same_board, tallies in gate_characteristics.pairs().items():
        assert covered(tallies) > 0.93
        assert undecided(tallies) < (0.06 if same_board else 0.2)
        called = [tally.equal[VerdictKind.REGRESSION] for tally in tallies.values()]
        assert sum(called) <= 10, "of 14722 between boards: kernels that a process ran in a slow mode, which only a confirmation tells"
        for which in TARGETS:
            assert tallies[which].injected[VerdictKind.PASS] <= (0 if same_board else 3), "one process on either side"
    found = gate_characteristics.joined()
    assert covered(found) > 0.94
    assert sum(found[which].injected[VerdictKind.PASS] for which in TARGETS) == 0
    for boards in (2, 8):
        simulated = gate_characteristics.simulated(12, boards).tallies
        assert undecided(simulated) < (0.025 if boards == 2 else 0.02)
        for which in TARGETS:
            assert simulated[which].share(simulated[which].injected, VerdictKind.REGRESSION) > (0.87 if boards == 2 else 0.9)


def test_a_pair_of_boards_without_other_runs_gives_what_is_left() -> None:
    """Without either board of the same-board pairs, a process's part cannot be told from a board's."""
    boards = {run.environment.device_uuid for run in (nightlies()[4], nightlies()[6])}
    left = without_boards(boards)
    machine = [one for one in left.classes if one.reference is Reference.MACHINE]
    assert machine
    assert all(one.process is None and one.board is not None for one in machine if one.same_board == 0)


def test_two_records_of_one_run_are_no_two_runs() -> None:
    """A stopped record and the one that went on with it hold the same times: between them nothing scatters."""
    runs = list(nightlies()[:3])
    stopped = msgspec.structs.replace(runs[0], id="stopped", complete=False)
    resumed = msgspec.structs.replace(runs[0], resumed_from=["stopped"])
    assert scatter_between([stopped, resumed, *runs[1:]]) == scatter_between(runs)
    assert scatter_between([stopped, *runs]) != scatter_between(runs), "or this test shows nothing"


def test_too_few_runs_have_no_scatter(synthetic: ModuleType) -> None:
    assert scatter_between([]) is None
    assert scatter_between([synthetic.make_run()]) is None


def test_a_fixed_margin_stays_fixed_and_takes_its_intervals_from_the_scatter() -> None:
    scatter = in_store()
    rule, fixed = MarginRule(scatter=scatter), MarginRule(0.03, scatter=scatter)
    assert fixed.margin_at(60.0, 1, Reference.MACHINE) == 0.03
    assert rule.margin_at(60.0, 1, Reference.MACHINE) == pytest.approx(evidence_margin(of_class(scatter, False, 50.0)))
    assert rule.margin_at(60.0) == 0.02, "no reference, no scatter"


def test_the_margin_of_a_noisier_device_is_wider_until_the_target_bounds_it() -> None:
    quiet = of_class(in_store(), False, 10.0)
    noisier = [evidence_margin(msgspec.structs.replace(quiet, process=0.001 * step)) for step in range(1, 4)]
    assert noisier == sorted(noisier)
    assert evidence_margin(msgspec.structs.replace(quiet, board=0.004)) < math.log1p(0.04)
    assert evidence_margin(msgspec.structs.replace(quiet, board=0.05)) > 0.1, "on so noisy a device the target cannot be had"


def test_a_scatter_of_another_timer_or_device_is_not_used(synthetic: ModuleType) -> None:
    rule = MarginRule(scatter=in_store())
    run = synthetic.make_run()
    assert rule.knows(run)
    assert not rule.knows(msgspec.structs.replace(run, timer="cuda_events"))
    assert not rule.knows(synthetic.make_run(environment={"device_name": "NVIDIA B200"}))
    assert not MarginRule().knows(run)


def of_class(scatter: RunScatter, several: bool, low_us: float) -> ClassScatter:
    return next(one for one in scatter.classes if (one.reference, one.several_launches, one.low_us) == (Reference.MACHINE, several, low_us))


def test_a_comparison_that_is_noisier_than_the_stored_runs_widens_its_intervals_and_says_so() -> None:
    """Every second kernel of one class is off by 3 %, up and down; its code is the same."""
    base, head = nightlies()[5], nightlies()[6]
    places = gate_characteristics.equal_places(head, base)
    longest = [place for place, which in places.items() if which == (False, 3)]
    noisy = gate_characteristics.slowed(gate_characteristics.slowed(head, 0.03, longest[::4]), -0.03, longest[2::4])
    judged = judge_run(noisy, base, MarginRule(scatter=in_store()))
    factors = {(one.several_launches, one.low_us): one.widening for one in judged.aa_spreads}
    assert factors[False, 50.0] > 1.5
    assert factors[False, 10.0] < 1.3
    (said,) = [str(one) for one in judged.aa_spreads if (one.several_launches, one.low_us) == (False, 50.0)]
    assert "intervals widened" in said
