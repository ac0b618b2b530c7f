"""A stored baseline among the runs that are joined: it grows run by run to what all runs at once would make."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.schema import Estimate, Measurement, Run, Status
from fusebench.store.history_file import read_history_file
from fusebench.verdict.baseline.joined import disturbed, join_runs, partly_joined, processes_and_boards, shares, support_words
from fusebench.verdict.baseline.kept_cases import kept_cases, measured_parts
from fusebench.verdict.baseline.promotion import added_to
from fusebench.verdict.identical_code import equal_code
from fusebench.verdict.margins.support import support_of
from fusebench.verdict.record_validation import require_valid

MANY = tuple(f"case_{number}" for number in range(12))
"""Enough cases for the drift of the streaming yardsticks."""
NEWER = Path(__file__).parents[3] / "results" / "history" / "nvidia_h200.op_mix.parquet"


def runs(synthetic: ModuleType, count: int, cases: Sequence[str] = MANY) -> list[Run]:
    """Runs of equal code with intervals of several widths, of one process and of two, each on a board of its own."""
    found = []
    for number in range(count):
        run = synthetic.make_run(
            run_id=f"r{number}",
            created=f"2026-07-0{number + 1}T03:00:00Z",
            cases=cases,
            half=0.004 * (1 + number),
            noise=random.Random(number),
            environment={"device_uuid": f"GPU-{number}"},
        )
        processes = 1 + number % 2
        several = [msgspec.structs.replace(one, measurement=of(one.measurement, processes=processes)) for one in run.results]
        found.append(synthetic.with_code(msgspec.structs.replace(run, results=several)))
    return found


def of(timing: Measurement | None, **fields: object) -> Measurement:
    assert timing is not None
    return msgspec.structs.replace(timing, **fields)


def timings(run: Run) -> dict[tuple[str, str], Measurement]:
    return {(one.case_key, one.kernel): one.measurement for one in run.results if one.measurement is not None}


def grown(runs: Sequence[Run]) -> Run:
    """The runs joined one after the other."""
    record = runs[0]
    for run in runs[1:]:
        record = join_runs([record, run])
    return record


def width(estimate: Estimate) -> float:
    return math.log(estimate.high / estimate.low)


def apart(one: Run, other: Run) -> tuple[float, float]:
    """How far times, speedups and yardsticks are apart at most, and how far the widths of their intervals; both on the logarithm."""
    mine, theirs = timings(one), timings(other)
    pairs = [(mine[place].time_us, theirs[place].time_us) for place in mine]
    pairs += [(a, b) for place in mine if (a := mine[place].speedup) is not None and (b := theirs[place].speedup) is not None]
    steady = [
        (getattr(a, name), getattr(b, name)) for a, b in zip(one.cases, other.cases, strict=True) for name in ("copy_us", "stream_us")
    ]
    values = [abs(math.log(a.value / b.value)) for a, b in [*pairs, *steady] if a is not None and b is not None]
    return max(values), max(abs(math.log(width(a) / width(b))) for a, b in pairs)


def counted_once(record: Run) -> Run:
    """The planted error: a joined record whose times count as one run each."""
    timed = [one for one in record.results if one.measurement is not None]
    once = [msgspec.structs.replace(one, measurement=of(one.measurement, runs=one.measurement.runs[-1:])) for one in timed]
    return msgspec.structs.replace(record, results=once)


def test_a_baseline_that_grew_is_the_one_of_all_runs_at_once(synthetic: ModuleType) -> None:
    each = runs(synthetic, 4)
    once, by_steps = join_runs(each), grown(each)
    assert max(apart(once, by_steps)) < 1e-9
    assert once.joined == by_steps.joined
    for place, timing in timings(by_steps).items():
        other = timings(once)[place]
        assert (timing.runs, timing.boards, timing.processes, timing.replicates) == ((0, 1, 2, 3), (), 6, other.replicates)
        assert support_of(timing, by_steps) == support_of(other, once)
    assert support_words(by_steps) == support_words(once)
    values, widths = apart(once, join_runs([counted_once(join_runs(each[:3])), each[3]]))
    assert values > 1e-3, "a joined record that counts as one run gives other times"
    assert widths > 0.05


def test_the_stored_runs_joined_one_by_one_are_those_joined_at_once() -> None:
    """The drift is a median over cases, and the median of a mean is not quite the mean of medians: calls and yardsticks shift alike."""
    stored = {run.id: run for run in read_history_file(NEWER)}
    each = sorted(stored.values(), key=lambda run: run.created)[-4:]
    once, by_steps = join_runs(each), grown(each)
    values, widths = apart(once, by_steps)
    assert values < 2e-3
    assert widths < 1e-6
    assert furthest_beside_yardstick(once, by_steps) < 1e-9
    planted = join_runs([counted_once(join_runs(each[:-1])), each[-1]])
    assert furthest_beside_yardstick(once, planted) > 5e-3
    assert apart(once, planted)[1] > 0.05


def furthest_beside_yardstick(one: Run, other: Run) -> float:
    """How far times of one launch are apart at most, on the logarithm, as shares of the streaming yardsticks of their cases.

    A time that leaves out a disturbed run is not of the same runs as the yardstick beside it.
    """
    mine, theirs = timings(one), timings(other)
    limits = {a.case.key: (a.stream_us, b.stream_us) for a, b in zip(one.cases, other.cases, strict=True)}
    found = []
    for (key, kernel), timing in mine.items():
        first, second = limits[key]
        if timing.kernels == 1 and len(timing.runs) == len(one.joined) and first is not None and second is not None:
            found.append(abs(math.log(timing.time_us.value / theirs[key, kernel].time_us.value * second.value / first.value)))
    assert len(found) > 300
    return max(found)


def test_a_run_inside_the_baseline_cannot_join_it_again_and_a_joined_record_is_not_the_newest(synthetic: ModuleType) -> None:
    first, second, third = runs(synthetic, 3)
    stored = join_runs([first, second])
    for again in (first, second):
        with pytest.raises(RunRecordError, match=rf"run {again.id} 2 times \(in the joined baseline r1\)"):
            join_runs([stored, again, third])
    with pytest.raises(
        RunRecordError, match="the joined baseline r1 is newer than the other runs; the newest run decides code and accuracy"
    ):
        join_runs([stored, synthetic.make_run(run_id="old", created="2026-07-01T00:00:00Z", cases=MANY)])
    with pytest.raises(RunRecordError, match="the stored baseline r2 is newer than the runs to add; add a run made after 2026-07-03"):
        added_to(third, [second])
    together = msgspec.structs.replace(third, created=stored.created)
    assert [one.id for one in join_runs([together, stored]).joined] == ["r0", "r1", "r2"], "runs of one second: the measured one is newest"


def test_a_run_that_went_on_with_one_that_the_baseline_holds_would_count_twice(synthetic: ModuleType) -> None:
    first, second, third = runs(synthetic, 3)
    resumed = msgspec.structs.replace(third, resumed_from=["r1"])
    for joined in ([first, second, resumed], [join_runs([first, second]), resumed]):
        with pytest.raises(RunRecordError, match="run r2 went on with run r1 and holds its times, which would count twice"):
            join_runs(joined)
    assert len(join_runs([first, resumed]).joined) == 2


def test_a_kernel_of_other_code_starts_anew_and_grows_with_the_others(synthetic: ModuleType) -> None:
    first, second, third, fourth = runs(synthetic, 4)
    changed = [synthetic.with_code(run, [synthetic.FUSED]) for run in (third, fourth)]
    grew = join_runs([join_runs([first, second]), changed[0]])
    place = (f"{synthetic.OP}:case_0", synthetic.FUSED)
    assert timings(grew)[place].runs == (2,)
    assert timings(grew)[place].time_us == timings(third)[place].time_us
    assert "baseline r1 joins 60 of 72 times; 12: other machine code" in shares([join_runs([first, second]), changed[0]])
    later = join_runs([grew, changed[1]])
    assert (timings(later)[place].runs, timings(later)[place].processes) == ((2, 3), 3)
    assert max(apart(later, join_runs([first, second, *changed]))) < 1e-9


def test_a_speedup_stands_on_the_runs_that_timed_the_same_baseline_kernel(synthetic: ModuleType) -> None:
    first, second, third, fourth = runs(synthetic, 4)
    changed = [synthetic.with_code(run, [synthetic.BASELINE]) for run in (third, fourth)]
    place = (f"{synthetic.OP}:case_0", synthetic.FUSED)
    grew = join_runs([join_runs([first, second]), changed[0]])
    assert timings(grew)[place].runs == (0, 1, 2)
    found, alone = timings(grew)[place].speedup, timings(third)[place].speedup
    assert found is not None
    assert alone is not None
    assert found.value == pytest.approx(alone.value, rel=1e-12)
    assert max(apart(join_runs([grew, changed[1]]), join_runs([first, second, *changed]))) < 1e-9


def test_places_and_boards_stay_right_where_an_older_run_joins_later(synthetic: ModuleType) -> None:
    first, second, third, fourth = runs(synthetic, 4)
    boards = {case: f"GPU-{'xy'[place % 2]}" for place, case in enumerate(MANY)}
    cases = [msgspec.structs.replace(one, board=boards[one.case.name]) for one in third.cases]
    third = msgspec.structs.replace(third, environment=msgspec.structs.replace(third.environment, device_uuid="GPU-x,GPU-y"), cases=cases)
    grew = join_runs([join_runs([first, third]), second, fourth])
    assert [one.id for one in grew.joined] == ["r0", "r1", "r2", "r3"]
    assert processes_and_boards(grew) == (6, 5)
    for result in grew.results:
        assert result.measurement is not None
        assert result.measurement.runs == (0, 1, 2, 3)
        assert result.measurement.boards == ("GPU-0", "GPU-1", boards[result.case], "GPU-3")
    assert max(apart(grew, join_runs([first, second, third, fourth]))) < 1e-9


def test_runs_of_the_baseline_behind_no_time_any_more_leave_it(synthetic: ModuleType) -> None:
    each = runs(synthetic, 4)
    kernels = tuple(synthetic.KERNELS)
    later_code = {"environment": msgspec.structs.replace(each[0].environment, git_commit="1" * 40)}
    changed = [synthetic.with_code(msgspec.structs.replace(run, **later_code), kernels) for run in each[2:]]
    grew = join_runs([join_runs(each[:2]), changed[0]])
    assert [one.id for one in grew.joined] == ["r2"]
    assert partly_joined(grew) == []
    assert support_words(grew).startswith("1 process on 1 board")
    later = join_runs([grew, changed[1]])
    assert {timing.runs for timing in timings(later).values()} == {(0, 1)}


def test_times_that_were_disturbed_are_found_by_their_own_error(synthetic: ModuleType) -> None:
    (run,) = runs(synthetic, 1)
    assert disturbed(run) == []
    wide = msgspec.structs.replace(run.results[3], measurement=of(run.results[3].measurement, time_us=synthetic.near(40.0, 0.3)))
    spoilt = msgspec.structs.replace(run, results=[*run.results[:3], wide, *run.results[4:]])
    assert disturbed(spoilt) == [wide]
    assert disturbed(join_runs([spoilt, *runs(synthetic, 2)[1:]])) == [], "a joined record's times were told before"


def test_a_disturbed_time_does_not_move_the_mean_of_other_runs(synthetic: ModuleType) -> None:
    """One time of a nightly was 2.2 times as long as usual, since the host was late inside of the chain."""
    older, newest = join_runs(runs(synthetic, 3)[:2]), runs(synthetic, 3)[2]
    quiet = join_runs([older, newest])
    wrong = {
        (one.case_key, one.kernel): msgspec.structs.replace(
            one, measurement=of(one.measurement, time_us=synthetic.near(90.0, 0.5), busy_us=30.0, gap_us=60.0)
        )
        for one in newest.results
        if one.case_key == newest.results[0].case_key and one.measurement is not None
    }
    spoilt = msgspec.structs.replace(newest, results=[wrong.get((one.case_key, one.kernel), one) for one in newest.results])
    joined = timings(join_runs([older, spoilt]))
    for place, timing in timings(quiet).items():
        if place in wrong:
            assert joined[place].time_us.value == pytest.approx(timing.time_us.value, rel=0.03), "two runs in place of three"
            assert joined[place].runs == (0, 1)
            assert joined[place].processes == timing.processes - 1, "the newest run has one process"
            assert joined[place].gap_us == timings(older)[place].gap_us
        else:
            assert joined[place].runs == (0, 1, 2)


def test_a_kernel_that_only_the_newest_run_timed_gets_its_speedup_from_a_baseline_that_was_not_disturbed(synthetic: ModuleType) -> None:
    older, newest = join_runs(runs(synthetic, 3)[:2]), runs(synthetic, 3)[2]
    case = newest.cases[0]
    base = next(one for one in newest.results if one.case_key == case.case.key and one.kernel == case.baseline)
    other = next(one for one in newest.results if one.case_key == case.case.key and of(one.measurement).speedup is not None)
    late = msgspec.structs.replace(base, measurement=of(base.measurement, time_us=synthetic.near(90.0, 0.5)))
    new = msgspec.structs.replace(other, code="new", measurement=of(other.measurement, speedup=synthetic.near(9.0, 0.01)))
    replaced = {(one.case_key, one.kernel): one for one in (late, new)}
    spoilt = msgspec.structs.replace(newest, results=[replaced.get((one.case_key, one.kernel), one) for one in newest.results])
    joined = timings(join_runs([older, spoilt]))
    timing, of_base = joined[other.case_key, other.kernel], joined[base.case_key, base.kernel]
    assert timing.runs == (2,)
    assert of_base.runs == (0, 1)
    assert of(timing).speedup is not None
    assert timing.speedup.value == pytest.approx(of_base.time_us.value / timing.time_us.value)  # type: ignore[union-attr]


def part_of_it(run: Run, keys: set[str], **facts: Any) -> Run:
    """The run as if it had measured these cases alone."""
    cases = [one for one in run.cases if one.case.key in keys]
    results = [one for one in run.results if one.case_key in keys]
    return msgspec.structs.replace(run, cases=cases, results=results, **facts)


@pytest.mark.parametrize(
    "facts", [{"complete": False}, {"selected_cases": "case_?"}, {"complete": False, "selected_cases": "case_?"}], ids=str
)
def test_cases_that_the_newest_run_did_not_measure_keep_their_times(synthetic: ModuleType, facts: dict[str, Any]) -> None:
    first, second, third, fourth = runs(synthetic, 4)
    stored = join_runs([first, second])
    keys = {case.case.key for case in third.cases if len(case.case.name) == len("case_0")}
    part = part_of_it(third, keys, **facts)
    begun = next(one for one in third.results if one.case_key not in keys)
    unmeasured = msgspec.structs.replace(begun, status=Status.UNSUPPORTED, measurement=None, reason="known before it was stopped")
    grown = added_to(stored, [msgspec.structs.replace(part, results=[*part.results, unmeasured])])
    require_valid(grown)
    assert grown.id == third.id
    assert {case.case.key for case in grown.cases} == {case.case.key for case in stored.cases}
    assert (grown.complete, grown.selected_cases) == (True, stored.selected_cases)
    assert [one.id for one in grown.joined] == ["r0", "r1", "r2"]
    whole, before, now = timings(added_to(stored, [third])), timings(stored), timings(grown)
    assert len(now) == len(before)
    for place, timing in now.items():
        assert timing == (whole[place] if place[0] in keys else before[place]), place
    assert kept_cases(grown) == {key: grown.joined[1] for key, _ in before if key not in keys}
    assert f"{len(stored.cases) - len(keys)} cases keep the times of earlier runs" in grown.warnings[-1]
    assert kept_cases(added_to(stored, [third])) == kept_cases(third) == {}
    again = added_to(grown, [fourth])
    assert kept_cases(again) == {}, "the next whole run ends it"
    assert "keep the times" not in " ".join(again.warnings)
    assert {len(one.runs) for place, one in timings(again).items() if place[0] in keys} == {4}
    assert {len(one.runs) for place, one in timings(again).items() if place[0] not in keys} == {3}


def test_a_baseline_keeps_the_order_of_its_cases_while_parts_are_added(synthetic: ModuleType) -> None:
    stored, night = runs(synthetic, 2)
    part = part_of_it(night, {case.case.key for case in night.cases[2:5]}, complete=False)
    backward = msgspec.structs.replace(part, cases=part.cases[::-1], results=part.results[::-1])
    grown = added_to(stored, [backward])
    assert [one.case.key for one in grown.cases] == [one.case.key for one in stored.cases]
    assert list(dict.fromkeys(one.case_key for one in grown.results)) == [one.case.key for one in stored.cases]


def test_of_several_runs_each_adds_what_it_measured(synthetic: ModuleType) -> None:
    first, second, third = runs(synthetic, 3)
    keys = {case.case.key for case in third.cases[:3]}
    part = part_of_it(third, keys, complete=False)
    grown = added_to(first, [part, second])
    assert grown == added_to(added_to(first, [second]), [part])
    assert {len(one.runs) for place, one in timings(grown).items() if place[0] in keys} == {3}
    assert {one.runs for place, one in timings(grown).items() if place[0] not in keys} == {(0, 1)}


def test_a_part_names_the_run_and_the_commit_that_measured_it_last(synthetic: ModuleType) -> None:
    older, newer = (
        synthetic.make_run(run_id=name, created=f"2026-07-0{day}T00:00:00Z", cases=MANY, environment={"git_commit": commit})
        for name, day, commit in (("older", 1, "a" * 40), ("newer", 2, "b" * 40))
    )
    keys = {case.case.key for case in newer.cases[:3]}
    grown = added_to(older, [part_of_it(newer, keys, complete=False)])
    measured, kept = measured_parts(grown)
    assert (measured.id, measured.environment.git_commit, {case.case.key for case in measured.cases}) == ("newer", "b" * 40, keys)
    assert (kept.id, kept.created, kept.environment.git_commit) == ("older", older.created, "a" * 40)
    assert len(kept.cases) == len(older.cases) - 3
    assert measured_parts(older) == [older]
    one = next(one for one in grown.results if one.case_key not in keys and one.measurement is not None)
    same = next(other for other in older.results if (other.case_key, other.kernel) == (one.case_key, one.kernel))
    without = [msgspec.structs.replace(result, code=None) for result in (one, same)]
    assert equal_code(*without, grown, older), "of the commit that measured it"
    assert not equal_code(*without, grown, newer), "and not of the record's own"


def test_kernels_that_the_newest_run_did_not_ask_for_are_not_left_out_unseen(synthetic: ModuleType) -> None:
    first, second, third = runs(synthetic, 3)
    with pytest.raises(RunRecordError, match=r"measured kernels that match fused_\*, and the stored baseline r1 would lose the others"):
        added_to(join_runs([first, second]), [msgspec.structs.replace(third, selected_kernels="fused_*")])
