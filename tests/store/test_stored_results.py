"""The records that the source tree keeps: these and nothing else, small, and of one another's runs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from fusebench.models.catalogue import MODELS
from fusebench.models.stored import EAGER_FILE, explained_today, read_eager
from fusebench.schema import Role
from fusebench.store.baselines import load_baseline, objections
from fusebench.store.history_file import read_history_file
from fusebench.store.model_folder import newest_models
from fusebench.store.run_folder import TABLE_FILES, read_run
from fusebench.verdict.baseline.joined import join_runs, support_words

RESULTS = Path(__file__).parents[2] / "results"
BASELINE = RESULTS / "baselines" / "nvidia_h200"
H100 = "nvidia_h100_80gb_hbm3"
HISTORY = RESULTS / "history" / "nvidia_h200.parquet"
NEWER = RESULTS / "history" / "nvidia_h200.op_mix.parquet"
"""Runs with the streaming yardstick of the op's own mix, whose shares do not compare with those of older runs."""


def stored() -> list[Path]:
    return [file for file in RESULTS.rglob("*") if file.is_file() and file.relative_to(RESULTS).parts[0] != "runs"]


def test_results_hold_baselines_calibration_scatter_evidence_counters_a_history_and_models_and_nothing_else() -> None:
    found = {file.relative_to(RESULTS).as_posix() for file in stored()}
    record = {f"baselines/{gpu}/{name}" for gpu in ("nvidia_h200", H100) for name in ("run.json", "promotions.json", *TABLE_FILES)}
    static = {name for name in found if name.startswith("baselines/static/")}
    counters = {name for name in found if name.startswith("counters/")}
    models = {name for name in found if name.startswith("models/")}
    selections = [f"{folder}/{gpu}" for folder in ("random", "choices") for gpu in ("nvidia_h200", "nvidia_h200_pipelined")]
    selections.append("random/nvidia_h200_seed_9")
    random = {f"{folder}/{name}" for folder in selections for name in ("run.json", *TABLE_FILES)}
    peers = {f"peers/nvidia_h200/{name}" for name in ("run.json", *TABLE_FILES)}
    (trials,) = {name for name in found if name.startswith("calibration/") and name.endswith(".parquet")}
    assert found == record | static | counters | models | random | peers | {
        trials,
        "calibration/nvidia_h200.json",
        "calibration/nvidia_h200.scatter.json",
        f"calibration/{H100}.scatter.json",
        f"interference/{H100}_vm.json",
        "history/nvidia_h200.parquet",
        "history/nvidia_h200.op_mix.parquet",
    }
    assert models <= {f"models/{name}/model.json" for name in MODELS} | {f"models/{EAGER_FILE}"}
    assert {Path(name).suffix for name in static} == {".parquet"}


def test_results_are_small() -> None:
    assert sum(file.stat().st_size for file in stored()) < 5_100_000
    assert (
        sum(file.read_bytes().count(b"\n") for file in stored() if file.suffix != ".parquet") < 24_000
    )  # nine models' steps are about 1300 lines each, and so is the head of a nightly with its warnings
    assert (BASELINE / "run.json").stat().st_size < 60_000


def test_the_stored_baseline_is_joined_from_enough_processes_and_boards_and_fit_to_judge_by() -> None:
    run = load_baseline(RESULTS, "NVIDIA H200")
    assert run is not None
    assert objections(run, BASELINE) == []
    assert support_words(run).startswith("29 processes on 24 boards")
    shares = [one.measurement.sol for one in run.results if one.measurement is not None and one.measurement.sol is not None]
    # Two runs on two boards agree that 512 tokens of 48 heads of 128 are turned 1.0 and 1.5 % faster than a launch streams their bytes.
    assert max(shares) <= 1.015


def test_a_gating_kernel_whose_code_the_older_runs_timed_stands_on_eight_processes() -> None:
    """Others began anew: their machine code is another than in the four runs of two processes."""
    run = load_baseline(RESULTS, "NVIDIA H200")
    assert run is not None
    older = {run.id: run for run in read_history_file(NEWER)}[run.joined[0].id]
    known = {(one.case_key, one.kernel): one.code for one in older.results if one.measurement is not None and one.speed_gates}
    same = [one for one in run.results if one.code is not None and known.get((one.case_key, one.kernel)) == one.code]
    assert len(same) > 250
    assert min(one.measurement.processes for one in same if one.measurement is not None) >= 8


def test_the_stored_baseline_is_near_what_its_older_runs_in_the_history_join_to() -> None:
    """The newest runs' own records are not kept: of one launch, they move no mean by more than 2 %, and none below 3 us by 3 %.

    Each record is at the machine state of its newest run, so times count relative to their case's streaming yardstick.
    """
    baseline = load_baseline(RESULTS, "NVIDIA H200")
    assert baseline is not None
    runs = {run.id: run for run in read_history_file(NEWER)}
    older = [place for place, one in enumerate(baseline.joined) if one.id in runs]
    assert len(older) == 4
    again = join_runs([runs[baseline.joined[place].id] for place in older])
    times = {(one.case_key, one.kernel): one.measurement.time_us.value for one in again.results if one.measurement is not None}
    then, now = ({one.case.key: one.stream_us.value for one in run.cases if one.stream_us is not None} for run in (again, baseline))
    found = {
        (one.case_key, one.kernel): one.measurement.time_us.value
        for one in baseline.results
        if one.measurement is not None and {*older} < {*one.measurement.runs} and one.measurement.kernels == 1
    }
    assert len(found) > 100
    for place, time_us in found.items():
        state = now[place[0]] / then[place[0]]
        assert time_us == pytest.approx(state * times[place], rel=0.03 if time_us < 3 else 0.02), place


def test_the_history_names_board_commit_and_time_of_every_run() -> None:
    runs = read_history_file(HISTORY)
    assert [run.created for run in runs] == sorted(run.created for run in runs)
    assert all(run.environment.device_uuid.startswith("GPU-") and len(run.environment.git_commit) == 40 for run in runs)
    replicates = [one for run in runs for one in run.replicates]
    assert len(replicates) > 10_000
    assert min(one.span_ns for one in replicates) > 0


def test_the_guide_to_peers_says_what_the_stored_run_measured() -> None:
    run = read_run(RESULTS / "peers" / "nvidia_h200")
    timed = [(one, one.measurement.time_us.value) for one in run.results if one.measurement is not None]
    best: dict[str, float] = {}
    for one, time_us in timed:
        if one.role is Role.FUSED:
            best[one.case_key] = min(time_us, best.get(one.case_key, time_us))
    whole, outside = defaultdict(list), defaultdict(int)
    for one, time_us in timed:
        if one.role is Role.PEER and one.outside_contract:
            outside[one.kernel] += 1
        elif one.role is Role.PEER and not one.covers:
            whole[one.kernel].append(time_us / best[one.case_key])
    guide = (RESULTS.parent / "docs" / "peers.md").read_text()
    for kernel, ratios in whole.items():
        figures = (len(ratios), *(f"{one:.2f}x" for one in (min(ratios), median(ratios), max(ratios))), outside[kernel])
        assert f"| {' | '.join(map(str, figures))} |\n" in guide, (kernel, figures)
    ahead = [one for kernel, ratios in whole.items() if "sglang" in kernel for one in ratios]
    assert f"ahead on {sum(one < 1 for one in ahead)} of {len(ahead)} cases" in guide
    assert all(one > 1 for kernel, ratios in whole.items() if "sglang" not in kernel for one in ratios)


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".png"])
def test_generated_files_stay_out_of_textual_diffs(suffix: str) -> None:
    attributes = (RESULTS.parent / ".gitattributes").read_text()
    assert "linguist-generated" in attributes
    assert any(suffix in line and "-diff" in line for line in attributes.splitlines())


def test_eager_times_are_of_the_stored_baseline_and_of_every_stored_model() -> None:
    """Another baseline needs `python -m fusebench.models.eager_times results`."""
    baseline, eager = load_baseline(RESULTS, "NVIDIA H200"), read_eager(RESULTS)
    records = {name: record for name, (_, record) in newest_models(RESULTS / "models").items()}
    assert baseline is not None
    assert eager is not None
    assert eager.stored == baseline.id
    assert eager.models.keys() == records.keys()
    predicted = {
        name for name, one in explained_today(records, RESULTS).items() if one.explanation and one.explanation.chains_us is not None
    }
    assert {"flux1_dev", "flux2_dev", "qwen_image", "qwen_image_edit_2511", "z_image_turbo", "hunyuan_video"} <= predicted
