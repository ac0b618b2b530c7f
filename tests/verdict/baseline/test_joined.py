from __future__ import annotations

import math
from types import ModuleType

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.schema import ClassScatter, Measurement, Reference, Run
from fusebench.verdict.baseline.joined import join_runs, partly_joined, processes_and_boards, shares, support_words
from fusebench.verdict.baseline.suite_changes import Unexplained
from fusebench.verdict.dispatch_choice import DispatchLoss
from fusebench.verdict.margins.support import board_distance, change_between, support_of
from fusebench.verdict.margins.words import own_coverage
from fusebench.verdict.record_validation import require_valid

BOARDS = ("GPU-a", "GPU-a", "GPU-b")
MANY = tuple(f"case_{number}" for number in range(12))
"""Enough cases for the drift of the streaming yardsticks."""


def runs(synthetic: ModuleType, *factors: float) -> list[Run]:
    """One run per factor, of whose times all are multiplied by it, on the boards in turn; machine code is the same in all."""
    found = []
    for number, factor in enumerate(factors):
        run = synthetic.make_run(
            run_id=f"r{number}",
            created=f"2026-07-0{number + 1}T03:00:00Z",
            cases=MANY,
            slow={(case, kernel): factor for case in MANY for kernel in synthetic.KERNELS},
            environment={"device_uuid": BOARDS[number]},
        )
        found.append(synthetic.with_code(run))
    return found


def timing(run: Run, kernel: str) -> Measurement:
    found = next(one.measurement for one in run.results if one.kernel == kernel)
    assert found is not None
    return found


def test_each_time_is_the_mean_of_the_runs(synthetic: ModuleType) -> None:
    joined = join_runs(runs(synthetic, 0.99, 1.0, 1.03))
    require_valid(joined, "baseline")
    found, newest = timing(joined, synthetic.FUSED), timing(runs(synthetic, 1, 1, 1.03)[2], synthetic.FUSED)
    assert found.time_us.value == pytest.approx(newest.time_us.value / 1.03 * (0.99 * 1.0 * 1.03) ** (1 / 3))
    assert (found.processes, found.runs, found.replicates) == (3, (0, 1, 2), 3 * newest.replicates)
    assert joined.id == "r2", "the newest one's record"
    assert [one.id for one in joined.joined] == ["r0", "r1", "r2"]
    assert processes_and_boards(joined) == (3, 2)
    assert support_words(joined).startswith("3 processes on 2 boards: too few")


def test_the_interval_is_narrower_than_that_of_one_run_only_by_what_runs_know(synthetic: ModuleType) -> None:
    """Nobody's interval holds what differs between runs: that of the joined time is over its placements."""
    one, many = timing(join_runs(runs(synthetic, 1.0)), synthetic.FUSED), timing(join_runs(runs(synthetic, 0.9, 1, 1.1)), synthetic.FUSED)
    assert math.log(many.time_us.high / many.time_us.low) < 1.5 * math.log(one.time_us.high / one.time_us.low)


def test_a_newest_run_that_was_stopped_while_suspects_were_remeasured_lacks_nothing(synthetic: ModuleType) -> None:
    older, newest = runs(synthetic, 1.0, 1.0)
    suspect = msgspec.structs.replace(newest.cases[0], suspicion="+2.0 % (undecided)")
    said = f"confirmation: 200 s was too short to remeasure these suspects as often as they may be: {suspect.case.key}"
    newest = msgspec.structs.replace(newest, complete=False, cases=[suspect, *newest.cases[1:]], warnings=[said, "the GPU was warm"])
    joined = join_runs([older, newest])
    assert joined.complete
    assert joined.warnings == ["the GPU was warm"]
    lacking = msgspec.structs.replace(
        newest, cases=newest.cases[1:], results=[one for one in newest.results if one.case != suspect.case.name]
    )
    assert not join_runs([older, lacking]).complete


def test_a_share_of_sol_is_the_mean_of_the_runs_that_timed_the_kernel(synthetic: ModuleType) -> None:
    """A kernel that the newest run alone timed keeps its share there, whatever the limit took in the others."""

    def shared(run: Run, share: float, lacking: str = "") -> Run:
        kept = [one for one in run.results if one.kernel != lacking]
        timed = [msgspec.structs.replace(one, measurement=msgspec.structs.replace(one.measurement, sol=share)) for one in kept]
        return msgspec.structs.replace(run, results=timed)

    older, newest = runs(synthetic, 1.0, 1.0)
    joined = join_runs([shared(older, 0.81, lacking=synthetic.FUSED), shared(newest, 0.99)])
    assert timing(joined, synthetic.FUSED).sol == pytest.approx(0.99)
    both = join_runs([shared(older, 0.81), shared(newest, 0.99)])
    assert timing(both, synthetic.FUSED).sol == pytest.approx(math.sqrt(0.81 * 0.99))


def test_what_one_run_found_against_the_last_baseline_is_no_warning_of_the_next(synthetic: ModuleType) -> None:
    older, newest = runs(synthetic, 1.0, 1.0)
    faster = Unexplained(suite="smoke", case="small", kernel="op/fused@1", reason="-9 %")
    slower = DispatchLoss(case="smoke:small", kernel="op/fused@1", before="op/fused@2", ratio=1.2)
    newest = msgspec.structs.replace(newest, warnings=[str(faster), str(slower), "the GPU was warm"])
    assert join_runs([older, newest]).warnings == ["the GPU was warm"]


def test_what_changed_for_the_whole_machine_is_no_difference_between_runs(synthetic: ModuleType) -> None:
    slow, usual = runs(synthetic, 1.0, 1.0)
    cases = []
    for summary in slow.cases:
        assert summary.stream_us is not None
        later = msgspec.structs.replace(
            summary.stream_us, **{end: 1.1 * getattr(summary.stream_us, end) for end in ("value", "low", "high")}
        )
        cases.append(msgspec.structs.replace(summary, stream_us=later))
    slower = runs(synthetic, 1.1)[0]
    joined = join_runs([msgspec.structs.replace(slower, cases=cases), usual])
    assert timing(joined, synthetic.FUSED).time_us.value == pytest.approx(timing(usual, synthetic.FUSED).time_us.value)


def test_runs_of_other_code_or_another_shape_are_left_out_of_a_time(synthetic: ModuleType) -> None:
    old, new = runs(synthetic, 1.2, 1.0)
    joined = join_runs([synthetic.with_code(old, [synthetic.FUSED]), new])
    assert timing(joined, synthetic.FUSED) == msgspec.structs.replace(timing(new, synthetic.FUSED), runs=(1,))
    assert {one.kernel for one in partly_joined(joined)} == {synthetic.FUSED}
    other = synthetic.make_run(run_id="r0", created="2026-07-01", cases=MANY, params={"tokens": 1})
    assert len(partly_joined(join_runs([synthetic.with_code(other), new]))) == len(new.results)


def test_runs_that_cannot_be_joined_are_refused_by_name(synthetic: ModuleType) -> None:
    first, second = runs(synthetic, 1.0, 1.0)
    with pytest.raises(RunRecordError, match="runs r0 and r1 cannot be joined: timer: cuda_events -> cupti"):
        join_runs([msgspec.structs.replace(first, timer="cuda_events"), second])
    with pytest.raises(RunRecordError, match="each once"):
        join_runs([first, first])
    with pytest.raises(RunRecordError, match="expected at least one run"):
        join_runs([])
    joined = msgspec.structs.replace(join_runs([first, second]), id="j")
    with pytest.raises(RunRecordError, match=r"run r1 2 times \(in the joined baseline j\); expected each once"):
        join_runs([joined, second])


def test_boards_that_two_times_share_cancel(synthetic: ModuleType) -> None:
    several = runs(synthetic, 1.0, 1.0, 1.0)
    joined = join_runs(several)
    old = support_of(timing(joined, synthetic.FUSED), joined)
    assert old.inverse_processes == pytest.approx(1 / 3)
    assert old.boards == {"GPU-a": pytest.approx(2 / 3), "GPU-b": pytest.approx(1 / 3)}
    alone = [support_of(timing(run, synthetic.FUSED), run) for run in several]
    assert board_distance(alone[0], alone[1]) == 0
    assert board_distance(alone[0], alone[2]) == 2
    assert board_distance(alone[0], old) == pytest.approx(2 / 9)


def test_a_joined_run_of_two_boards_counts_by_the_board_of_each_case(synthetic: ModuleType) -> None:
    first, second, third = runs(synthetic, 1.0, 1.0, 1.0)
    boards = {case: "GPU-b" if place % 2 else "GPU-a" for place, case in enumerate(MANY)}
    cases = [msgspec.structs.replace(one, board=boards[one.case.name]) for one in first.cases]
    environment = msgspec.structs.replace(first.environment, device_uuid="GPU-a,GPU-b")
    joined = join_runs([msgspec.structs.replace(first, environment=environment, cases=cases), second, third])
    assert [one.board for one in joined.joined] == ["GPU-a,GPU-b", "GPU-a", "GPU-b"]
    for result in joined.results:
        assert result.measurement is not None
        own = boards[result.case]
        shares = {board: (1 + (board == own)) / 3 for board in ("GPU-a", "GPU-b")}
        assert support_of(result.measurement, joined).boards == pytest.approx(shares)


def test_the_interval_of_a_change_holds_processes_and_boards(synthetic: ModuleType) -> None:
    same, also, other = runs(synthetic, 1.0, 1.0, 1.0)
    scatter = ClassScatter(
        reference=Reference.MACHINE,
        several_launches=False,
        low_us=10.0,
        high_us=50.0,
        process=0.003,
        board=0.006,
        placement=0.002,
        same_board=9,
        other_board=9,
    )

    def width(new: Run, old: Run, known: ClassScatter) -> float:
        change = change_between(0.0, (timing(new, synthetic.FUSED), new), (timing(old, synthetic.FUSED), old), known)
        return math.inf if change is None else math.log(change.high)

    joined = join_runs([same, also])
    assert width(also, joined, scatter) < width(also, same, scatter) < width(other, joined, scatter) < width(other, same, scatter)
    one_board = msgspec.structs.replace(scatter, board=None)
    assert width(also, same, one_board) == width(also, same, scatter)
    assert math.isinf(width(other, same, one_board)), "boards differ by an amount that nobody has measured"
    two_boards = msgspec.structs.replace(scatter, process=None)
    assert width(also, same, two_boards) == width(other, same, two_boards), "another process may be as far off as another board"


def test_a_run_says_what_its_own_intervals_cover(synthetic: ModuleType) -> None:
    run = runs(synthetic, 1.0)[0]
    assert own_coverage(run) == "intervals cover this process only"
    several = [msgspec.structs.replace(one, measurement=msgspec.structs.replace(one.measurement, processes=8)) for one in run.results]
    assert own_coverage(msgspec.structs.replace(run, results=several)).startswith("intervals cover these processes only: the next run")
    mixed = own_coverage(msgspec.structs.replace(run, results=[*several[1:], run.results[0]]))
    assert "of cases that one process measured, this process only" in mixed


def test_each_run_says_how_many_times_it_joins_and_why_not_the_others(synthetic: ModuleType) -> None:
    old, new = runs(synthetic, 1.0, 1.0)
    assert shares([new, old]) == []
    assert "fewer" not in support_words(join_runs([old, new]))
    changed = synthetic.with_code(old, [synthetic.FUSED])
    (told,) = shares([changed, new])
    timed = sum(one.measurement is not None for one in new.results)
    assert told == f"run r0 joins {timed - len(MANY)} of {timed} times; {len(MANY)}: other machine code"
    assert f"2 processes on 1 board ({len(MANY)} of {timed} times on fewer, the least on 1)" in support_words(join_runs([changed, new]))


def test_without_digests_runs_of_two_commits_do_not_join_and_the_commits_are_named(synthetic: ModuleType) -> None:
    made = [
        synthetic.make_run(run_id=f"r{n}", created=f"2026-07-0{n}T03:00:00Z", cases=MANY, environment={"git_commit": str(n) * 40})
        for n in (1, 2)
    ]
    (told,) = shares(made)
    assert "joins 0 of" in told
    assert "as on a CPU" in told
    assert "(111111111111, 222222222222)" in told
