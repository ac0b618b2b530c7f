from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import Result

from fusebench.store.run_folder import read_run


@pytest.mark.usefixtures("project_folder")
def test_show_without_baselines_says_so(fusebench: Callable[..., Result]) -> None:
    result = fusebench("baseline", "show")
    assert (result.exit_code, "no baselines in" in result.stdout) == (0, True)
    assert json.loads(fusebench("baseline", "show", "--json").stdout) == []


@pytest.mark.usefixtures("drawn")
def test_a_promoted_run_is_kept_with_report_and_plot(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path
) -> None:
    keep(run_id="r1")
    assert fusebench("baseline", "promote", "latest").exit_code == 0
    folder = project_folder / "results" / "baselines" / "nvidia_h200"
    tables = ["cases.parquet", "kernels.parquet", "report.md", "results.parquet"]
    assert sorted(path.name for path in folder.iterdir()) == [*tables, "run.json", "samples.parquet", "speedup.png"]
    (row,) = json.loads(fusebench("baseline", "show", "--json").stdout)
    assert (row["device"], row["run"], row["objections"]) == ("NVIDIA H200", "r1", [])
    assert row["weighted_speedup"]["qknorm_rope"] == pytest.approx(1.898, abs=0.001)
    assert "qknorm_rope 1.898x" in fusebench("baseline", "show").stdout


def test_the_stored_baselines_are_shown_in_120_columns(fusebench: Callable[..., Result]) -> None:
    shown = fusebench("baseline", "show", "--results", str(Path(__file__).parents[2] / "results"))
    heading, _, *rows = shown.stdout.splitlines()[:4]
    assert len(rows) == 2
    assert all(re.search(r"\d\.\d\dx to \d\.\d\dx, \d+ suites", row) for row in rows), shown.output
    assert max(len(line) for line in (heading, *rows)) <= 120


def test_a_refusal_names_a_few_losses_on_lines_of_their_own_and_counts_the_others(
    keep: Callable[..., Path], fusebench: Callable[..., Result], synthetic: ModuleType
) -> None:
    keep(run_id="r1")
    fused = [kernel for kernel, (role, *_) in synthetic.KERNELS.items() if role == "fused"]
    where = [(case, kernel) for case in synthetic.CASES for kernel in fused]
    keep(run_id="r2", slow=dict.fromkeys(where[1:], 1.06), errors={where[0]: 1.4})
    assert fusebench("baseline", "promote", "r1").exit_code == 0
    first, *named, rest, do = fusebench("baseline", "promote", "r2").stderr.splitlines()
    assert first.endswith(f"would replace the baseline r1 and hide {len(where)} of its regressions:")
    assert (len(named), rest, do) == (8, f"  and {len(where) - 8} more", "Mend them, or say why they are accepted: --reason TEXT")
    assert named[0].startswith(f"  {where[0][1]} on qknorm_rope:flux_1024: accuracy: rms error"), "a loss of accuracy is no change of time"
    accepted = fusebench("baseline", "promote", "r2", "--reason", "a test").stderr.splitlines()
    assert sum(line.startswith("accepted: ") for line in accepted) == 9


def test_force_promotes_and_prints_what_speaks_against_it(keep: Callable[..., Path], fusebench: Callable[..., Result]) -> None:
    keep(run_id="r1", complete=False)
    refused = fusebench("baseline", "promote", "r1")
    assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
    forced = fusebench("baseline", "promote", "r1", "--force")
    assert (forced.exit_code, "warning: promoted although it is incomplete" in forced.stderr) == (0, True)
    assert "incomplete" in fusebench("baseline", "show").stdout


def test_a_slower_run_is_promoted_only_with_a_reason_that_is_kept(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path, synthetic: ModuleType
) -> None:
    planted = {("flux_1024", synthetic.FUSED): 1.05}
    for name, slow in (("r1", {}), ("r2", planted), ("r3", planted)):
        keep(run_id=name, slow=slow)
    assert fusebench("baseline", "promote", "r1").exit_code == 0
    for force in ((), ("--force",)):
        refused = fusebench("baseline", "promote", "r2", *force)
        assert refused.exit_code == 1
        assert "hide 1 of its regressions: qknorm_rope/fused_triton@2 on qknorm_rope:flux_1024 +5" in refused.stderr
        assert "--reason TEXT" in refused.stderr
    assert fusebench("baseline", "promote", "r2", "--reason", "  ").exit_code == 1, "a blank is no reason"
    (row,) = json.loads(fusebench("baseline", "show", "--json").stdout)
    assert (row["run"], row["reason"]) == ("r1", ""), "refused, and nothing was replaced"
    accepted = fusebench("baseline", "promote", "r2", "--reason", "needed for correctness, see #12")
    assert (accepted.exit_code, "accepted: qknorm_rope/fused_triton@2" in accepted.stderr) == (0, True)
    assert "needed for correctness, see #12" in fusebench("baseline", "show").stdout
    assert fusebench("baseline", "promote", "r3").exit_code == 0, "no slower than the last promoted"
    (entry,) = json.loads((project_folder / "results" / "baselines" / "nvidia_h200" / "promotions.json").read_text())
    assert (entry["run"], entry["replaced"], entry["reason"]) == ("r2", "r1", "needed for correctness, see #12")
    assert json.loads(fusebench("baseline", "show", "--json").stdout)[0]["reason"] == "", "the reason was r2's"


def test_a_slowdown_that_no_interval_decides_and_one_of_accuracy_need_a_reason_too(
    keep: Callable[..., Path], fusebench: Callable[..., Result], synthetic: ModuleType
) -> None:
    where = ("flux_1024", synthetic.FUSED)
    keep(run_id="r1", half=0.02)
    keep(run_id="wide", half=0.02, slow={where: 1.03})
    keep(run_id="wrong", half=0.02, errors={where: 1.4})
    keep(run_id="faster", half=0.02, slow={where: 0.8})
    assert fusebench("baseline", "promote", "r1").exit_code == 0
    undecided = fusebench("baseline", "promote", "wide")
    assert (undecided.exit_code, "(undecided)" in undecided.stderr) == (1, True), undecided.output
    assert fusebench("baseline", "promote", "wide", "--margin", "0.1").exit_code == 0
    assert fusebench("baseline", "promote", "wrong").exit_code == 1
    assert fusebench("baseline", "promote", "faster").exit_code == 0


def test_a_run_that_cannot_be_compared_with_the_baseline_needs_a_reason(
    keep: Callable[..., Path], fusebench: Callable[..., Result]
) -> None:
    keep(run_id="r1")
    keep(run_id="events", timer="cuda_events")
    assert fusebench("baseline", "promote", "r1").exit_code == 0
    refused = fusebench("baseline", "promote", "events")
    assert (refused.exit_code, "no kernel can be compared with the baseline r1" in refused.stderr) == (1, True), refused.output
    assert fusebench("baseline", "promote", "events", "--reason", "the timer is now cuda_events").exit_code == 0


def test_several_runs_are_joined_and_their_processes_and_boards_are_told(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path, synthetic: ModuleType
) -> None:
    for number in range(8):
        slow = {("flux_1024", synthetic.FUSED): 1 + 0.001 * number}
        board = {"device_uuid": f"GPU-{number // 4}"}
        keep(run_id=f"r{number}", created=f"2026-07-0{number + 1}T03:00:00Z", slow=slow, environment=board)
    promoted = fusebench("baseline", "promote", "r3", "r0", "r7", *(f"r{number}" for number in (1, 2, 4, 5, 6)))
    assert promoted.exit_code == 0, promoted.output
    assert promoted.stdout.rstrip().endswith("; 8 processes on 2 boards")
    folder = project_folder / "results" / "baselines" / "nvidia_h200"
    tables = ["cases.parquet", "kernels.parquet", "report.md", "results.parquet"]
    assert sorted(path.name for path in folder.iterdir()) == [*tables, "run.json", "speedup.png"], "samples and reports are of one run"
    (row,) = json.loads(fusebench("baseline", "show", "--json").stdout)
    assert (row["run"], row["processes"], row["boards"], row["objections"]) == ("r7", 8, 2, [])
    assert row["joined"] == [f"r{number}" for number in range(8)]
    assert "r3 is part of this baseline" in fusebench("gate", "r3").stdout
    assert not (project_folder / "results" / "calibration").exists(), "too few cases tell no scatter"
    gated = fusebench("gate", "r3")
    assert (gated.exit_code, "8 processes on 2 boards\n" in gated.stdout) == (0, True), gated.output


def test_the_first_baseline_of_a_gpu_model_stores_the_scatter_of_its_runs_and_later_ones_keep_it(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path
) -> None:
    for number in range(4):
        cases = [f"case_{one}" for one in range(12)]
        keep(run_id=f"r{number}", created=f"2026-07-0{number + 1}T03:00:00Z", cases=cases, environment={"device_uuid": f"GPU-{number}"})
    promoted = fusebench("baseline", "promote", *(f"r{number}" for number in range(4)))
    assert promoted.exit_code == 0, promoted.output
    assert "from the scatter of 4 stored runs on 4 boards" in promoted.stderr, promoted.stderr
    scatter = project_folder / "results" / "calibration" / "nvidia_h200.scatter.json"
    kept = scatter.read_bytes()
    assert fusebench("baseline", "promote", "r3", "r0").exit_code == 0
    assert scatter.read_bytes() == kept


def test_a_baseline_of_few_processes_is_told_by_promote_and_gate(keep: Callable[..., Path], fusebench: Callable[..., Result]) -> None:
    keep(run_id="r1")
    told = "1 process on 1 board: too few to tell"
    assert told in fusebench("baseline", "promote", "r1").stdout
    gated = fusebench("gate", "r1").stdout
    assert told in gated
    assert "no scatter between runs is stored for NVIDIA H200, cupti, cold" in gated
    assert "intervals cover these processes only" in gated


def test_one_unfit_run_among_several_needs_force(keep: Callable[..., Path], fusebench: Callable[..., Result]) -> None:
    keep(run_id="r1", created="2026-07-01T03:00:00Z", complete=False)
    keep(run_id="r2", created="2026-07-02T03:00:00Z")
    refused = fusebench("baseline", "promote", "r1", "r2")
    assert (refused.exit_code, "run r1 is not fit to be a baseline: it is incomplete" in refused.stderr) == (2, True)
    assert "Leave it out, run again" in refused.stderr
    forced = fusebench("baseline", "promote", "r1", "r2", "--force")
    assert (forced.exit_code, "promoted although it is incomplete" in forced.stderr) == (0, True)


def test_a_stored_baseline_that_is_not_fit_to_grow_is_named_as_such(keep: Callable[..., Path], fusebench: Callable[..., Result]) -> None:
    keep(run_id="r1", created="2026-07-01T03:00:00Z", complete=False)
    assert fusebench("baseline", "promote", "r1", "--force").exit_code == 0
    keep(run_id="r2", created="2026-07-02T03:00:00Z")
    refused = fusebench("baseline", "promote", "r2", "--add")
    assert (refused.exit_code, "run r1 is not fit to be a baseline: it is incomplete" in refused.stderr) == (2, True)
    assert "Run r1 is the stored baseline: promote the others without it, and they replace it" in refused.stderr
    assert fusebench("baseline", "promote", "r2").exit_code == 0


def test_a_run_that_was_stopped_joins_the_baseline_which_keeps_the_cases_that_it_lacks(
    keep: Callable[..., Path], fusebench: Callable[..., Result], synthetic: ModuleType, project_folder: Path
) -> None:
    keep(run_id="r1", created="2026-07-01T03:00:00Z")
    assert fusebench("baseline", "promote", "r1").exit_code == 0
    keep(run_id="r2", created="2026-07-02T03:00:00Z", cases=synthetic.CASES[:2], complete=False)
    refused = fusebench("baseline", "promote", "r2")
    assert (refused.exit_code, "run r2 is not fit to be a baseline: it is incomplete" in refused.stderr) == (2, True)
    grew = fusebench("baseline", "promote", "r2", "--add")
    lacking = len(synthetic.CASES) - 2
    assert (grew.exit_code, f"{lacking} cases, which the newest run did not measure, keep the times of run r1" in grew.stderr) == (0, True)
    stored = read_run(project_folder / "results" / "baselines" / "nvidia_h200")
    assert [summary.case.name for summary in stored.cases] == list(synthetic.CASES)
    assert (
        f"run r2 did not measure qknorm_rope:{synthetic.CASES[2]}"
        in (project_folder / "results/baselines/nvidia_h200/report.md").read_text()
    )
    keep(run_id="r3", created="2026-07-03T03:00:00Z")
    assert fusebench("gate", "r3").exit_code == 0
    (row,) = json.loads(fusebench("baseline", "show", "--json").stdout)
    assert row["objections"] == []


def test_a_baseline_grows_by_a_run_when_the_folders_of_its_own_runs_are_gone(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path, synthetic: ModuleType
) -> None:
    def kept(number: int, **fields: object) -> str:
        keep(run_id=f"r{number}", created=f"2026-07-{number + 1:02}T03:00:00Z", environment={"device_uuid": f"GPU-{number % 3}"}, **fields)
        return f"r{number}"

    first = fusebench("baseline", "promote", kept(0), "--add")
    assert (first.exit_code, "no baseline of NVIDIA H200 is stored, so these runs begin it" in first.stderr) == (0, True)
    second = fusebench("baseline", "promote", kept(1), kept(2), "--add")
    assert (second.exit_code, second.stderr) == (0, ""), "the stored run's samples go when it is joined: no objection"
    shutil.rmtree(project_folder / "results" / "runs")
    grew = fusebench("baseline", "promote", kept(3), "--add")
    assert grew.exit_code == 0, grew.output
    assert "run r3, in " in grew.stdout
    assert "4 processes on 3 boards" in grew.stdout
    (row,) = json.loads(fusebench("baseline", "show", "--json").stdout)
    assert (row["joined"], row["processes"], row["boards"], row["objections"]) == (["r0", "r1", "r2", "r3"], 4, 3, [])
    again = fusebench("baseline", "promote", "r3", "--add")
    assert (again.exit_code, "run r3 2 times (in the joined baseline r3); expected each once" in again.stderr) == (2, True)
    assert fusebench("gate", kept(4)).exit_code == 0

    folder = project_folder / "results" / "baselines" / "nvidia_h200"
    slow = {(case, synthetic.FUSED): 1.06 for case in synthetic.CASES}
    # A sixth of 6 % would be inside the margin: a run that joins is judged alone.
    refused = fusebench("baseline", "promote", kept(5, slow=slow), "--add")
    assert (refused.exit_code, f"{synthetic.FUSED} on qknorm_rope:flux_1024" in refused.stderr) == (1, True), refused.output
    assert fusebench("baseline", "promote", str(folder), "r5").exit_code == 1, "its folder among the runs means the same as --add"
    assert fusebench("baseline", "promote", str(folder), "r4").exit_code == 0
    (row,) = json.loads(fusebench("baseline", "show", "--json").stdout)
    assert row["joined"] == ["r0", "r1", "r2", "r3", "r4"]
    assert fusebench("baseline", "promote", "r5", "--add", "--reason", "the contract costs 6 %").exit_code == 0
    assert json.loads((folder / "promotions.json").read_text())[0]["replaced"] == "r4"


def test_a_kernel_that_is_gone_is_left_out_of_joined_runs(
    keep: Callable[..., Path], fusebench: Callable[..., Result], synthetic: ModuleType
) -> None:
    for number in range(3):
        keep(run_id=f"r{number}", created=f"2026-07-0{number + 1}T03:00:00Z")
    alone = fusebench("baseline", "promote", "r0", "--without", synthetic.FUSED)
    assert (alone.exit_code, "found --without and one run" in alone.stderr) == (2, True), alone.output
    assert fusebench("baseline", "promote", "r0").exit_code == 0
    added = fusebench("baseline", "promote", "r1", "--add", "--without", synthetic.FUSED)
    assert (added.exit_code, f"left out: {synthetic.FUSED}\n" in added.stderr) == (0, True), added.output
    judgements = json.loads(fusebench("gate", "r2", "--json").stdout)["judgements"]
    new = {(one["case"], one["kernel"]) for one in judgements if one["standing"] == "new"}
    assert new == {(case, synthetic.FUSED) for case in synthetic.CASES}, "what is new to a baseline is not missed when it goes"

    unknown = fusebench("baseline", "promote", "r2", "--add", "--without", "absent@1")
    assert (unknown.exit_code, "unknown kernel of these runs 'absent@1'; known: qknorm_rope/" in unknown.stderr) == (2, True)
    needed = fusebench("baseline", "promote", "r2", "--add", "--without", synthetic.BASELINE)
    assert (needed.exit_code, f"speedups are relative to {synthetic.BASELINE}" in needed.stderr) == (2, True), needed.output
