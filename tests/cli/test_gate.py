from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import Result
from msgspec.structs import replace

from fusebench.schema import CacheState, SamplingPlan, Status, VerdictKind
from fusebench.store.baselines import promote
from fusebench.store.run_folder import read_run, write_record, write_run
from fusebench.verdict.baseline.compare_to_baseline import judge_run
from fusebench.verdict.margins.rule import MarginRule
from fusebench.verdict.record_validation import require_valid

FUSED = "qknorm_rope/fused_triton@2"
Fusebench = Callable[..., Result]
Keep = Callable[..., Path]


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory, synthetic: ModuleType) -> Path:
    """Results whose only run was promoted; each test gets a copy."""
    results = tmp_path_factory.mktemp("promoted") / "results"
    run = synthetic.make_run(run_id="base", created="2026-07-01T00:00:00Z")
    promote(write_run(results / "runs", run, synthetic.make_samples(run)), results)
    return results


@pytest.fixture
def baseline(project_folder: Path, promoted: Path) -> str:
    shutil.copytree(promoted, project_folder / "results")
    return "base"


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({}, 0, "30 pass"),
        ({"slow": 1.1}, 1, "slower beyond the 2.0 % margin"),
        ({"slow": 1.02}, 4, "measure with more replicates"),
        ({"errors": 1.3}, 1, "accuracy: rms error"),
        ({"status": (Status.CRASHED, "boom")}, 5, "crashed: boom"),
        ({"timer": "cuda_events"}, 4, "timer: cupti -> cuda_events"),
        ({"timer": "cuda_graph"}, 4, "timer: cupti -> cuda_graph"),
        ({"cases": ("flux_1024",)}, 4, "24 of the baseline's are missing"),
        ({"suite": "other"}, 4, "suite: qknorm_rope -> other"),
        ({"plan": SamplingPlan(replicates=12, rounds=40, cache=CacheState.WARM, trim=0.1)}, 4, "cache state: cold -> warm"),
        ({"exit_code": 3}, 3, "30 pass"),
    ],
)
def test_exit_code_says_what_happened(keep: Keep, fusebench: Fusebench, change: dict[str, object], code: int, said: str) -> None:
    planted = {name: {("flux_1024", FUSED): value} if name in ("slow", "errors", "status") else value for name, value in change.items()}
    keep(run_id="new", **planted)
    result = fusebench("gate", "new")
    assert (result.exit_code, said in result.stdout) == (code, True), result.output


@pytest.mark.usefixtures("baseline")
def test_what_is_incomparable_can_be_allowed(keep: Keep, fusebench: Fusebench) -> None:
    keep(run_id="new", timer="cuda_events")
    assert fusebench("gate", "new", "--allow-incomparable").exit_code == 0


@pytest.mark.usefixtures("baseline")
def test_the_margin_can_be_widened_and_must_make_sense(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    keep(run_id="new", slow={("flux_1024", synthetic.FUSED): 1.06})
    assert fusebench("gate", "new").exit_code == 1
    wide = fusebench("gate", "new", "--margin", "0.1")
    assert (wide.exit_code, "margin 10.0 %, of calls of several launches 20.0 %" in " ".join(wide.stdout.split())) == (0, True)
    refused = fusebench("gate", "new", "--margin", "3")
    assert (refused.exit_code, "0.02 for 2 %" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("baseline")
def test_json_is_the_only_thing_on_stdout(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    keep(run_id="new", slow={("flux_1024", synthetic.FUSED): 1.1}, exit_code=3)
    result = fusebench("gate", "new", "--json")
    document = json.loads(result.stdout)
    assert (document["run"], document["baseline"], document["exit_code"]) == ("new", "base", result.exit_code)
    assert [row["kernel"] for row in document["judgements"] if row["verdict"] == "regression"] == [synthetic.FUSED]


def test_without_a_baseline_it_is_undecided_and_says_what_to_do(keep: Keep, fusebench: Fusebench) -> None:
    keep(run_id="new")
    result = fusebench("gate", "latest", "--json")
    assert (result.exit_code, json.loads(result.stdout)["exit_code"]) == (4, 4)
    assert "no baseline for NVIDIA H200" in result.stderr
    assert "fusebench baseline promote" in result.stderr


def test_any_run_can_be_the_baseline(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    keep(run_id="old", created="2026-07-01T00:00:00Z")
    keep(run_id="new", slow={("flux_1024", synthetic.FUSED): 1.1})
    assert fusebench("gate", "latest", "--baseline", "old").exit_code == 1


def test_bad_input_gets_one_line_and_exit_code_2(keep: Keep, fusebench: Fusebench) -> None:
    folder = keep(run_id="abc")
    unknown = fusebench("gate", "abd")
    assert (unknown.exit_code, unknown.stderr.count("\n"), "did you mean 'abc'" in unknown.stderr) == (2, 1, True)
    record = folder / "run.json"
    record.write_text(json.dumps({"schema_version": 99}))
    newer = fusebench("gate", "abc")
    assert (newer.exit_code, "schema version 99 is newer" in newer.stderr) == (2, True)
    record.write_text('{"schema_version": 1, "id"')
    truncated = fusebench("gate", "abc")
    assert (truncated.exit_code, "truncated or garbled" in truncated.stderr) == (2, True)


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize("version", [2, 3])
def test_reading_commands_import_nothing_heavy(keep: Keep, project_folder: Path, synthetic: ModuleType, version: int) -> None:
    """Tables need pyarrow, and numpy with it; a record of schema 2 has none."""
    folder, heavy = keep(run_id="new"), {"torch", "triton", "pandas", "matplotlib", "scipy"}
    if version == 2:
        for one in (folder, *folder.parent.glob("*_base"), Path("results/baselines/nvidia_h200")):
            synthetic.as_version_2(one)
        heavy |= {"pyarrow", "numpy"}
    script = (
        "import sys\n"
        "from fusebench.cli.main import app\n"
        "for words in (['gate', 'new'], ['compare', 'base', 'new'], ['report', 'new', '--format', 'md'], ['baseline', 'show']):\n"
        "    try:\n"
        "        app(words)\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0, (words, end.code)\n"
        f"heavy = {heavy!r} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=project_folder, timeout=60)


def test_another_gpu_model_is_incomparable(keep: Keep, fusebench: Fusebench) -> None:
    keep(run_id="old", created="2026-07-01T00:00:00Z", environment={"device_name": "NVIDIA H100"})
    keep(run_id="new")
    result = fusebench("gate", "new", "--baseline", "old")
    assert (result.exit_code, "device: NVIDIA H100 -> NVIDIA H200" in result.stdout) == (4, True)
    assert fusebench("gate", "new", "--baseline", "old", "--allow-incomparable").exit_code == 0


def _garble(record: dict[str, Any]) -> None:
    record["results"][0]["measurement"]["time_us"] = "fast"


def _too_few(record: dict[str, Any]) -> None:
    record["results"][0]["measurement"]["replicates"] = 1


def _nan(record: dict[str, Any]) -> None:
    record["results"][0]["measurement"]["time_us"]["value"] = "nan"


def _negative(record: dict[str, Any]) -> None:
    record["results"][0]["measurement"]["time_us"]["value"] = -3.0


def _empty(record: dict[str, Any]) -> None:
    record["cases"] = []


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize("where", ["run", "baseline"])
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (_garble, "does not fit"),
        (_too_few, "too few samples, 1 replicates"),
        (_nan, "time_us is nan"),
        (_negative, "time_us is -3.0"),
        (_empty, "holds 0 cases"),
    ],
)
def test_what_no_measurement_gives_is_an_error_and_nothing_is_overwritten(
    keep: Keep, fusebench: Fusebench, synthetic: ModuleType, *, where: str, plant: Callable[[dict[str, Any]], None], said: str
) -> None:
    folder = keep(run_id="new")
    record = synthetic.as_version_2(Path("results/baselines/nvidia_h200") if where == "baseline" else folder)
    content = json.loads(record.read_text())
    plant(content)
    record.write_text(json.dumps(content))
    before = {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()}
    result = fusebench("gate", "new")
    assert (result.exit_code, said in result.stderr, result.stderr.count("\n")) == (2, True, 1), result.output
    if where == "run":
        promoted = fusebench("baseline", "promote", str(folder), "--force")
        assert (promoted.exit_code, said in promoted.stderr) == (2, True), promoted.output
    assert {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("baseline")
def test_a_lucky_regression_among_many_is_held_and_says_so(keep: Keep, fusebench: Fusebench) -> None:
    keep(run_id="wide", half=0.012, created="2026-07-02T00:00:00Z")
    keep(run_id="new", half=0.012, slow={("flux_1024", FUSED): 1.053})
    result = fusebench("gate", "new", "--baseline", "wide", "--json")
    (row,) = [row for row in json.loads(result.stdout)["judgements"] if (row["case"], row["kernel"]) == ("flux_1024", FUSED)]
    assert (result.exit_code, row["verdict"]) == (4, "undecided")
    assert row["p_value"] < 0.05 < row["adjusted_p"]


@pytest.mark.usefixtures("baseline")
def test_a_shrunken_suite_and_an_unexplained_improvement_are_shown(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    keep(run_id="new", cases=synthetic.CASES[:4], slow={("flux_1024", FUSED): 0.9})
    result = fusebench("gate", "new")
    assert result.exit_code == 4
    assert "suite qknorm_rope has shrunk (33.3 % of its weight): 1 case is gone: batch2_medium" in result.stdout
    assert f"unexplained improvement  qknorm_rope:flux_1024  {FUSED}  -10.00 %" in result.stdout
    document = json.loads(fusebench("gate", "new", "--json").stdout)
    assert (document["shrunken"][0]["cases"], document["unexplained"][0]["kernel"]) == (["batch2_medium"], FUSED)


@pytest.mark.usefixtures("baseline")
def test_an_interrupted_run_says_so_and_how_it_is_finished(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    folder = keep(run_id="new", cases=synthetic.CASES[:4])
    write_record(folder, replace(read_run(folder), complete=False))
    result = fusebench("gate", "new")
    assert result.exit_code == 4
    assert "incomplete: run new ended before it had measured every case" in result.stderr
    assert "`fusebench run --resume new` finishes it on such a device" in result.stderr


@pytest.mark.usefixtures("baseline")
def test_an_accuracy_that_is_no_longer_checked_is_undecided(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    folder = keep(run_id="new")
    record = synthetic.change_results(read_run(folder), accuracy=None)
    write_record(folder, record)
    result = fusebench("gate", "new")
    assert (result.exit_code, "kernels are no longer checked" in result.stdout) == (4, True)
    assert fusebench("gate", "new", "--allow-incomparable").exit_code == 0


def test_identical_code_is_not_accused_and_its_noise_is_shown(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    base = keep(run_id="old", created="2026-07-01T00:00:00Z")
    write_record(base, synthetic.with_code(read_run(base)))
    new = keep(run_id="new", slow={("flux_1024", FUSED): 1.1})
    write_record(new, synthetic.with_code(read_run(new)))
    result = fusebench("gate", "new", "--baseline", "old")
    assert result.exit_code == 4
    assert "so what changed is not the kernel" in result.stdout
    assert "identical machine code differed by up to 10.00 % (10 to 50 us: 15 comparisons, 1 beyond the margin)" in " ".join(
        result.stdout.split()
    )
    document = json.loads(fusebench("gate", "new", "--baseline", "old", "--json").stdout)
    assert [(one["comparisons"], one["beyond"]) for one in document["identical"]] == [(15, 1), (10, 0)]
    assert document["identical"][-1]["high_us"] is None
    known = {row["kernel"]: row["same_code"] for row in document["judgements"]}
    assert (known[FUSED], known["qknorm_rope/compiled@1"]) == (True, None)
    write_record(new, synthetic.with_code(read_run(new), [FUSED]))
    changed = fusebench("gate", "new", "--baseline", "old")
    assert (changed.exit_code, "slower beyond the 2.0 % margin" in changed.stdout) == (1, True)
    rows = json.loads(fusebench("compare", "old", "new", "--json").stdout)["rows"]
    assert [row["same_code"] for row in rows if row["kernel"] == FUSED] == [False] * 5


@pytest.mark.usefixtures("baseline")
def test_the_speed_of_compiled_code_is_shown_and_advisory(keep: Keep, fusebench: Fusebench) -> None:
    """Two nightlies between which torch.compile chose otherwise, for better and for worse, and nothing else changed."""
    compiled, why = "qknorm_rope/compiled@1", "advisory: torch.compile chooses its code anew in every process"
    keep(run_id="tuned", slow={("flux_1024", compiled): 1.17, ("zimage_1024", compiled): 0.8, ("batch2_medium", compiled): 1.04})
    result = fusebench("gate", "tuned")
    said = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.output
    assert f"regression qknorm_rope:flux_1024 {compiled} relative to" in said
    assert said.count(why) == 3
    assert "27 kernel-case pairs: 27 pass; advisory, not in the exit status: 1 regression, 1 improvement, 1 undecided" in said
    assert said.endswith("gate: pass (exit code 0)")
    assert "unexplained improvement" not in said
    document = json.loads(fusebench("gate", "tuned", "--json").stdout)
    rows = [row for row in document["judgements"] if row["verdict"] != "pass"]
    assert [(row["verdict"], row["decides"], row["adjusted_p"]) for row in rows] == [
        ("regression", False, None), ("improvement", False, None), ("undecided", False, None),
    ]  # fmt: skip
    assert all(row["reason"].endswith(f"; {why}") for row in rows)
    keep(run_id="worse", slow={("flux_1024", compiled): 0.8}, errors={("flux_1024", compiled): 1.4})
    assert fusebench("gate", "worse").exit_code == 1, "less accurate is a regression, however the compiler chose"
    keep(run_id="broken", status={("flux_1024", compiled): (Status.CRASHED, "boom")})
    assert fusebench("gate", "broken").exit_code == 5


@pytest.mark.usefixtures("baseline")
def test_a_regression_beside_compiled_code_is_still_found(keep: Keep, fusebench: Fusebench) -> None:
    keep(run_id="new", slow={("flux_1024", "qknorm_rope/compiled@1"): 1.17, ("flux_1024", FUSED): 1.1})
    assert fusebench("gate", "new").exit_code == 1


def test_records_from_before_verdicts_said_whether_they_decide_are_read(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    for run_id in ("old", "new"):
        record = synthetic.as_version_2(keep(run_id=run_id, created="2026-07-01T00:00:00Z"))
        content = json.loads(record.read_text())
        for result in content["results"]:
            result["verdict"] = {"kind": "regression", "reason": "5 % slower"}
        record.write_text(json.dumps(content))
    assert all(one.gating for one in read_run(record.parent).results)
    assert fusebench("gate", "new", "--baseline", "old").exit_code == 0


def calls_of_gating(synthetic: ModuleType, cases: int) -> int:
    """Python functions that judging so many cases calls: work, counted without a clock.

    Every case holds identical code that judges the noise, and changed code that is slower and is held against it.
    """
    names = [f"case_{number}" for number in range(cases)]
    run = synthetic.with_code(synthetic.make_run(run_id="new", cases=names, slow={(name, FUSED): 1.1 for name in names}), changed=[FUSED])
    stored = synthetic.with_code(synthetic.make_run(run_id="base", cases=names))
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    rule = MarginRule()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        require_valid(run)
        judged = judge_run(run, stored, rule)
    finally:
        sys.setprofile(before)
    assert len(judged.judgements) == 6 * cases
    assert sum(spread.comparisons for spread in judged.aa_spreads) == 4 * cases
    assert sum(one.verdict.kind is VerdictKind.REGRESSION for one in judged.judgements) == cases
    return counted


def test_the_work_grows_with_the_run_and_no_faster(synthetic: ModuleType) -> None:
    calls_of_gating(synthetic, 4)  # the caches of quantiles
    once, twice = calls_of_gating(synthetic, 100), calls_of_gating(synthetic, 200)
    assert twice < 2.2 * once


def test_a_slower_choice_of_dispatch_fails_the_gate_and_is_named(
    keep: Keep, fusebench: Fusebench, project_folder: Path, synthetic: ModuleType
) -> None:
    def taking(kernel: str, run_id: str) -> Path:
        folder = keep(run_id=run_id, created="2026-07-02T00:00:00Z")
        run = read_run(folder)
        write_record(folder, replace(run, cases=[replace(one, dispatched=f"qknorm_rope/{kernel}") for one in run.cases]))
        return folder

    promote(taking("fused_triton@2", "base"), project_folder / "results", force=True)
    worse = taking("fused_triton@1", "worse")
    found = fusebench("gate", str(worse))
    assert found.exit_code == 1
    assert "regression of dispatch  dispatch takes qknorm_rope/fused_triton@1 on qknorm_rope:flux_1024, 1.16x the time" in found.stdout
    document = json.loads(fusebench("gate", str(worse), "--json").stdout)
    assert [one["case"] for one in document["dispatch_losses"]][:1] == ["qknorm_rope:flux_1024"]
    assert fusebench("gate", str(taking("fused_cuda@1", "near"))).exit_code == 0
