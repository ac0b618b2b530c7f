"""Which cases are measured again before their verdict is given, and in what order."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.schema import Role, Run, Status, VerdictKind
from fusebench.store.baselines import load_baseline, promote
from fusebench.store.history_file import read_history_file
from fusebench.store.run_folder import write_run
from fusebench.store.scatter_file import load_scatter
from fusebench.verdict.baseline.compare_to_baseline import judge_run
from fusebench.verdict.baseline.judgement import Judgement, results_by_place
from fusebench.verdict.margins.call_classes import call_class
from fusebench.verdict.margins.rule import MarginRule
from fusebench.verdict.record_validation import load_valid_baseline
from helpers import gate_characteristics

FUSED, CUDA, COMPILED, SPLIT = (f"qknorm_rope/{name}" for name in ("fused_triton@2", "fused_cuda@1", "compiled@1", "split_triton@1"))
RECORDS = Path(__file__).parents[3] / "results"


def found(synthetic: ModuleType, *, code: bool = False, **changes: Any) -> list[tuple[str, str]]:
    """Case and reason of each suspect about a run with these changes."""
    old, new = synthetic.make_run(run_id="old"), synthetic.make_run(run_id="new", **changes)
    if code:
        old, new = synthetic.with_code(old), synthetic.with_code(new)
    return [(one.case.partition(":")[2], one.reason) for one in judge_run(new, old, MarginRule()).suspects]


def test_a_run_that_passes_has_no_suspects(synthetic: ModuleType) -> None:
    assert found(synthetic) == []


def test_regressions_come_first_then_what_is_undecided_then_improvements_without_a_cause(synthetic: ModuleType) -> None:
    slow = {("flux_1024", FUSED): 0.8, ("zimage_1024", CUDA): 1.025, ("batch2_medium", FUSED): 1.2, ("batch2_medium", CUDA): 1.025}
    cases = found(synthetic, slow=slow)
    assert [case for case, _ in cases] == ["batch2_medium", "zimage_1024", "flux_1024"]
    assert cases[0][1].count(" (") == 2, "all that is in doubt of a case is named"
    assert FUSED in cases[0][1]
    assert "(regression)" in cases[0][1]
    assert CUDA in cases[1][1]
    assert "(undecided)" in cases[1][1]


def test_a_case_of_the_same_name_in_another_suite_is_no_suspect(synthetic: ModuleType) -> None:
    def both(run_id: str, slow: dict[tuple[str, str], float]) -> Run:
        """A run over two suites that hold a case of one name, of which the first one's kernels take `slow` times as long."""
        one = synthetic.make_run(run_id=run_id, slow=slow)
        other = synthetic.make_run(run_id=run_id, suite="models/some", cases=["flux_1024"])
        merged: Run = msgspec.structs.replace(one, cases=[*one.cases, *other.cases], results=[*one.results, *other.results])
        return merged

    (one,) = judge_run(both("new", {("flux_1024", FUSED): 0.8}), both("old", {}), MarginRule()).suspects
    assert one.case == "qknorm_rope:flux_1024"


def test_an_improvement_that_changed_code_accounts_for_is_no_suspect(synthetic: ModuleType) -> None:
    old = synthetic.with_code(synthetic.make_run(run_id="old"))
    new = synthetic.with_code(synthetic.make_run(run_id="new", slow={("flux_1024", FUSED): 0.95}), changed=[FUSED])
    assert judge_run(new, old, MarginRule()).suspects == ()


def test_identical_code_that_reads_slower_is_a_suspect(synthetic: ModuleType) -> None:
    ((case, reason),) = found(synthetic, code=True, slow={("flux_1024", FUSED): 1.04})
    assert (case, "(undecided)" in reason) == ("flux_1024", True)


def test_a_loss_of_accuracy_is_no_matter_of_the_process(synthetic: ModuleType) -> None:
    assert found(synthetic, errors={("flux_1024", FUSED): 1.4}) == []


def test_an_advisory_result_is_no_suspect(synthetic: ModuleType) -> None:
    assert found(synthetic, slow={("flux_1024", COMPILED): 1.3}) == []
    old = synthetic.change_results(synthetic.make_run(run_id="old"), role=Role.PEER)
    new = synthetic.change_results(synthetic.make_run(run_id="new", slow={("flux_1024", FUSED): 1.3}), role=Role.PEER)
    assert judge_run(new, old, MarginRule()).suspects == ()


def test_a_case_that_was_measured_in_several_processes_is_a_suspect_too(synthetic: ModuleType) -> None:
    new = synthetic.make_run(run_id="new", slow={("flux_1024", FUSED): 1.2})
    results = [
        msgspec.structs.replace(result, measurement=msgspec.structs.replace(result.measurement, processes=8)) for result in new.results
    ]
    (one,) = judge_run(msgspec.structs.replace(new, results=results), synthetic.make_run(run_id="old"), MarginRule()).suspects
    assert (one.case, one.kernels) == ("qknorm_rope:flux_1024", (FUSED,))


def test_a_digest_does_not_speak_for_a_kernel_whose_times_differ_beyond_noise() -> None:
    """By more than the margin, 1.4 % there; within it a twentieth of all unchanged kernels do."""
    (night,) = [run for run in read_history_file(RECORDS / "history" / "nvidia_h200.op_mix.parquet") if run.id == "2aac7247"]
    baseline, scatter = load_baseline(RECORDS, "NVIDIA H200"), load_scatter(RECORDS, "NVIDIA H200")
    assert baseline is not None
    rule = MarginRule(scatter=scatter)

    def passing(one: Judgement) -> bool:
        """With times that pass too, of 10 to 50 us and one launch, where the margin is 1.4 %."""
        timing = results_by_place(night)[one.suite, one.case, one.kernel].measurement
        short = timing is not None and call_class(timing.time_us.value, timing.kernels) == (False, 2)
        return short and one.kind_by_times is VerdictKind.PASS and one.verdict.gating

    chosen = next(one for one in judge_run(night, baseline, rule).judgements if passing(one))
    assert chosen.verdict.change is not None
    place = (f"{chosen.suite}:{chosen.case}", chosen.kernel)
    for change, suspected in ((1.0, False), (1.012, False), (1.02, True)):
        changed = gate_characteristics.slowed(night, change / chosen.verdict.change.value - 1, {place})
        judged = judge_run(changed, baseline, rule)
        (kind,) = {
            one.verdict.kind for one in judged.judgements if (one.suite, one.case, one.kernel) == (chosen.suite, chosen.case, chosen.kernel)
        }
        assert kind is VerdictKind.PASS
        assert any(one.case == place[0] and place[1] in one.kernels for one in judged.suspects) is suspected


def test_of_cases_of_the_same_work_the_one_that_was_measured_is_named_once(synthetic: ModuleType) -> None:
    slow = {("flux_1024", FUSED): 1.2, ("zimage_1024", FUSED): 1.2}
    new = synthetic.make_run(run_id="new", slow=slow)
    taking = [
        msgspec.structs.replace(summary, same_as="qknorm_rope:flux_1024") if summary.case.name == "zimage_1024" else summary
        for summary in new.cases
    ]
    (one,) = judge_run(msgspec.structs.replace(new, cases=taking), synthetic.make_run(run_id="old"), MarginRule()).suspects
    assert one.case == "qknorm_rope:flux_1024"
    assert one.reason.count(FUSED) == 1


def test_of_a_case_that_takes_the_results_of_one_that_is_not_in_the_run_its_own_key_is_named(synthetic: ModuleType) -> None:
    """As in a run that goes on with a part of the cases of one that was stopped."""
    new = synthetic.make_run(run_id="new", slow={("zimage_1024", FUSED): 1.2})
    taking = [
        msgspec.structs.replace(summary, same_as="elsewhere:flux_1024") if summary.case.name == "zimage_1024" else summary
        for summary in new.cases
    ]
    (one,) = judge_run(msgspec.structs.replace(new, cases=taking), synthetic.make_run(run_id="old"), MarginRule()).suspects
    assert one.case == "qknorm_rope:zimage_1024"


def test_a_case_whose_baseline_kernel_has_failed_cannot_be_measured_again(synthetic: ModuleType) -> None:
    new = synthetic.make_run(run_id="new", slow={("flux_1024", FUSED): 1.2, ("zimage_1024", FUSED): 1.2})
    results = [
        msgspec.structs.replace(result, status=Status.CRASHED, reason="planted crash", measurement=None)
        if (result.case, result.kernel) == ("flux_1024", SPLIT)
        else result
        for result in new.results
    ]
    (one,) = judge_run(msgspec.structs.replace(new, results=results), synthetic.make_run(run_id="old"), MarginRule()).suspects
    assert one.case == "qknorm_rope:zimage_1024"


def test_without_a_stored_baseline_there_are_no_suspects(synthetic: ModuleType, tmp_path: Path) -> None:
    run: Run = synthetic.make_run(run_id="new", slow={("flux_1024", FUSED): 1.2})
    device = run.environment.device_name
    assert judge_run(run, load_valid_baseline(tmp_path, device), MarginRule()).suspects == ()
    base = synthetic.make_run(run_id="base")
    promote(write_run(tmp_path / "runs", base, synthetic.make_samples(base)), tmp_path)
    assert [one.case for one in judge_run(run, load_valid_baseline(tmp_path, device), MarginRule()).suspects] == ["qknorm_rope:flux_1024"]


def test_of_the_stored_nightly_in_which_one_process_was_slow_that_case_alone_is_a_suspect() -> None:
    """Two kernels of one case took 4 % longer in one process of an H200, with the machine code of the baseline of then."""
    runs = {run.id: run for run in read_history_file(RECORDS / "history" / "nvidia_h200.parquet")}
    (one,) = judge_run(runs["1e35dc64"], runs["e36305e9"], MarginRule()).suspects
    assert one.case == "residual_gate_norm_scale_shift:bench_1024x4096"
    assert one.reason.count("(undecided)") == 2


@pytest.mark.parametrize("factor", [1.01, 0.99])
def test_changes_inside_the_margin_leave_no_suspects(synthetic: ModuleType, factor: float) -> None:
    assert found(synthetic, slow={("flux_1024", FUSED): factor}) == []
