"""Dispatch tables made of runs: which times count, ties, merging, and how well a table does for cases that it lacks."""

from __future__ import annotations

from types import ModuleType

import msgspec
import pytest

from fusebench.schema import CacheState, Run, SamplingPlan
from fusebench.schema.dispatch import DispatchKey, DispatchTable, TableEntry
from fusebench.verdict.tuned_tables import refused_run, table_ratios, tuned_cases, tuned_table

OP = "qknorm_rope"
ORDER = [f"{OP}/fused_triton@2", f"{OP}/fused_triton@1", f"{OP}/fused_cuda@1"]


def keys(run: Run) -> dict[str, DispatchKey]:
    return {one.case.key: DispatchKey({"rows": 64 << place}, {"dtype": "bfloat16"}) for place, one in enumerate(run.cases)}


def made(*runs: Run, before: DispatchTable | None = None, order: list[str] = ORDER) -> DispatchTable:
    return tuned_table(OP, runs, [case for run in runs for case in tuned_cases(run, OP, keys(run), order)], order=order, before=before)


def entries(table: DispatchTable) -> list[TableEntry]:
    (group,) = table.groups
    return list(group.entries)


def test_an_entry_holds_the_fused_kernels_the_fastest_first(synthetic: ModuleType) -> None:
    table = made(synthetic.make_run())
    first, *_ = entries(table)
    assert [time.kernel for time in first.times] == ["fused_triton@2", "fused_cuda@1", "fused_triton@1"]
    assert (first.case, first.sizes, first.runs) == ("qknorm_rope:flux_1024", {"rows": 64}, ("r1",))
    assert first.times[0].us == pytest.approx(26.0 * 1.08, abs=1e-3)
    assert first.times[0].low < first.times[0].us < first.times[0].high
    assert (table.gpu, table.triton, table.runs["r1"].commit) == ("NVIDIA H200", "3.6", "0123456789abcdef")
    assert len(entries(table)) == 5


@pytest.mark.parametrize(("slower", "first"), [(1.005, "fused_triton@2"), (1.02, "fused_cuda@1")])
def test_of_equal_kernels_the_first_in_the_default_order_is_taken(synthetic: ModuleType, slower: float, first: str) -> None:
    equal = 1.11 / 1.08 * slower
    run = synthetic.make_run(slow={("flux_1024", ORDER[0]): equal})
    assert entries(made(run))[0].times[0].kernel == first


def test_doubtful_times_do_not_count(synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    results = [msgspec.structs.replace(one, suspicious="too fast") if one.kernel == ORDER[0] else one for one in run.results]
    cases = [msgspec.structs.replace(run.cases[0], not_cold="warm"), msgspec.structs.replace(run.cases[1], same_as="s:c"), *run.cases[2:]]
    table = made(msgspec.structs.replace(run, results=results, cases=cases))
    assert len(entries(table)) == 3
    assert {time.kernel for entry in entries(table) for time in entry.times} == {"fused_cuda@1", "fused_triton@1"}


def test_a_kernel_that_is_gone_is_left_out(synthetic: ModuleType) -> None:
    table = made(synthetic.make_run(), order=ORDER[1:])
    assert {time.kernel for entry in entries(table) for time in entry.times} == {"fused_cuda@1", "fused_triton@1"}


def test_a_new_run_replaces_its_entries_and_keeps_the_others(synthetic: ModuleType) -> None:
    before = made(synthetic.make_run(run_id="old"))
    table = made(synthetic.make_run(run_id="new", cases=("flux_1024",)), before=before)
    assert [entry.runs for entry in entries(table)] == [("new",), *[("old",)] * 4]
    assert set(table.runs) == {"old", "new"}
    assert set(made(synthetic.make_run(run_id="new"), before=before).runs) == {"new"}, "no run without an entry"


def test_a_run_whose_folder_holds_another_one_now_is_kept_by_the_table_alone(synthetic: ModuleType) -> None:
    def stored(run: Run, folder: str, before: DispatchTable | None = None) -> DispatchTable:
        return tuned_table(OP, [run], tuned_cases(run, OP, keys(run), ORDER), order=ORDER, before=before, records={run.id: folder})

    before = stored(synthetic.make_run(run_id="old"), "results/random/h200")
    ended_early = synthetic.make_run(run_id="new", cases=("flux_1024",))
    table = stored(ended_early, "results/random/h200", before)
    assert {name: one.record for name, one in table.runs.items()} == {"new": "results/random/h200", "old": ""}
    elsewhere = stored(ended_early, "results/other", before)
    assert {name: one.record for name, one in elsewhere.runs.items()} == {"new": "results/other", "old": "results/random/h200"}


def test_times_of_equal_keys_are_averaged_over_the_runs_that_timed_most_kernels(synthetic: ModuleType) -> None:
    slower = synthetic.make_run(run_id="slower", slow={("flux_1024", ORDER[0]): 1.21})
    table = made(synthetic.make_run(run_id="new"), slower, synthetic.make_run(run_id="lacks", kernels=[*ORDER[1:], f"{OP}/split_torch@1"]))
    first = entries(table)[0]
    assert first.runs == ("new", "slower")
    times = {time.kernel: time for time in first.times}
    assert times["fused_triton@2"].us == pytest.approx(26.0 * 1.08 * 1.1, rel=1e-3), "the geometric mean"
    assert times["fused_triton@2"].high >= 26.0 * 1.08 * 1.21, "the spread holds both runs"
    assert first.times[0].kernel == "fused_cuda@1"
    assert set(table.runs) == {"new", "slower"}


def test_an_entry_of_more_kernels_or_that_holds_the_run_already_stays(synthetic: ModuleType) -> None:
    two = [synthetic.make_run(run_id=name) for name in ("a", "b")]
    before = made(*two)
    assert entries(made(two[0], before=before))[0].runs == ("a", "b")
    lacks = synthetic.make_run(run_id="lacks", kernels=[*ORDER[1:], f"{OP}/split_torch@1"])
    assert entries(made(lacks, before=before))[0].runs == ("a", "b")
    assert entries(made(synthetic.make_run(run_id="c"), before=before))[0].runs == ("c",)


def test_a_kernel_that_only_a_smaller_run_timed_is_added_by_the_ratio_of_those_that_both_timed(synthetic: ModuleType) -> None:
    newer = f"{OP}/fused_cuda@2"
    order = [newer, *ORDER]

    def smaller(*kernels: str) -> Run:
        """A run of one case on a board that is slower by 10 %, whose ORDER[2] is `newer`."""
        slow = {("flux_1024", kernel): 1.1 for kernel in ORDER}
        run = synthetic.make_run(run_id="small", cases=("flux_1024",), kernels=[*kernels, f"{OP}/split_torch@1"], slow=slow)
        results = [msgspec.structs.replace(one, kernel=newer) if one.kernel == ORDER[2] else one for one in run.results]
        return msgspec.structs.replace(run, results=results)

    before, small = made(synthetic.make_run(run_id="most"), order=order), smaller(*ORDER[1:])
    first, *others = entries(made(small, before=before, order=order))
    kept = {time.kernel: time.us for time in entries(before)[0].times}
    found = {time.kernel: time.us for time in first.times}
    assert first.runs == ("most", "small")
    assert found == {**kept, "fused_cuda@2": pytest.approx(kept["fused_cuda@1"], rel=1e-3)}, "without the 10 % of the board"
    assert [entry.runs for entry in others] == [("most",)] * 4
    assert entries(made(small, before=made(small, before=before, order=order), order=order))[0] == first, "once"
    assert entries(made(small, synthetic.make_run(run_id="most"), order=order))[0] == first, "of two runs, too"
    assert made(smaller(ORDER[2]), before=before, order=order).groups == before.groups, "one kernel alone"


def test_a_case_of_one_kernel_of_several_compares_nothing(synthetic: ModuleType) -> None:
    alone = synthetic.make_run(kernels=[ORDER[0], f"{OP}/split_torch@1"])
    assert tuned_cases(alone, OP, keys(alone), ORDER) == []
    assert len(tuned_cases(alone, OP, keys(alone), ORDER[:1])) == 5


def test_the_time_of_a_kernel_that_declines_the_case_today_does_not_count(synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    found = tuned_cases(run, OP, keys(run), ORDER, {run.cases[0].case.key: {ORDER[0]: "too wide"}})
    assert [len(one.entry.times) for one in found] == [2, 3, 3, 3, 3]
    assert ORDER[0].partition("/")[2] not in {time.kernel for time in found[0].entry.times}


def test_choices_are_judged_on_the_table_and_with_each_entry_left_out(synthetic: ModuleType) -> None:
    odd = synthetic.make_run(slow={("zimage_1024", ORDER[0]): 1.5})
    table = made(odd)
    assert table_ratios(table, left_out=False) == [1.0] * 5
    left_out = table_ratios(table, left_out=True)
    assert left_out[3] == pytest.approx(1.5 * 1.08 / 1.11, rel=1e-3), "its neighbours cannot know"
    assert left_out[0] == 1.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"environment": {"device": "cpu", "device_name": "EPYC"}}, "measured on EPYC, and tables are for GPUs"),
        ({"plan": SamplingPlan(replicates=2, rounds=2, cache=CacheState.WARM, trim=0.1)}, "its cache was warm"),
    ],
)
def test_a_run_of_warm_times_or_of_a_cpu_makes_no_table(synthetic: ModuleType, changes: dict[str, object], why: str) -> None:
    assert why in refused_run(synthetic.make_run(**changes))
    assert bool(why) == bool(refused_run(synthetic.make_run(**changes)))
