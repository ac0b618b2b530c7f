"""Shards of a run, measured apart, and the one record that `join` makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.errors import UsageError
from fusebench.fleet.joining import MOST_AHEAD_S, join_shards
from fusebench.fleet.planning import parse_shard
from fusebench.schema import ExitCode, Run
from fusebench.store.baselines import promote
from fusebench.store.run_folder import read_run, sample_values, write_run
from helpers import run_bench
from helpers.run_bench import FakeWorkers, measured

Fusebench = Callable[..., Any]
CASES = 5
COMMAND = ["run", "--suite", "many", "--device", "cpu", "--cache", "warm", "--replicates", "2", "--rounds", "2"]
workers = run_bench.workers


@pytest.fixture
def project(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy project with a suite of six cases, the last of which is the same work as the first."""
    run_bench.add_kernel(toy_project, "plain")
    lines = ['[suite]\nname = "many"\ndescription = "for shards"\n']
    sizes = [64 * (one + 1) for one in range(CASES)] + [64]
    lines += [f'[[case]]\nname = "c{one}"\nop = "scale"\nparams = {{ size = {size} }}\n' for one, size in enumerate(sizes)]
    (toy_project / "suites" / "many.toml").write_text("\n".join(lines))
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123456789abcdef")
    monkeypatch.setattr("fusebench.report.run.pages.write_views", lambda *_: None)
    return toy_project


@pytest.fixture
def measure(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> Callable[..., Path]:
    """`measure("1/2", …)`: the folder of a run of that shard."""

    def run(shard: str, *options: str) -> Path:
        outcome = fusebench(*COMMAND, *(["--shard", shard] if shard else []), *options)
        assert outcome.exit_code == ExitCode.PASS, outcome.output
        return Path(outcome.stdout.rstrip().rpartition("run: ")[2])

    return run


def names(run: Run) -> set[str]:
    return {one.case.name for one in run.cases}


def test_shards_hold_every_case_once_and_join_to_the_whole_run(fusebench: Fusebench, project: Path, measure: Callable[..., Path]) -> None:
    whole = read_run(measure(""))
    folders = [measure(f"{number}/3") for number in (1, 2, 3)]
    shards = [read_run(folder) for folder in folders]
    assert [one.shard for one in shards] == ["1/3", "2/3", "3/3"]
    assert sum(len(one.cases) for one in shards) == CASES + 1
    (together,) = [one for one in shards if "c0" in names(one)]
    assert "c5" in names(together), "the same work is measured once"
    outcome = fusebench("join", *(str(folder) for folder in reversed(folders)))
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    folder = Path(outcome.stdout.rstrip().rpartition("run: ")[2])
    joined = read_run(folder)
    assert names(joined) == names(whole)
    assert (joined.shard, joined.complete, [one.id for one in joined.parts]) == ("", True, [one.id for one in shards])
    assert {(one.case_key, one.kernel): one.measurement for one in joined.results} == {
        (one.case_key, one.kernel): one.measurement for one in whole.results
    }
    assert joined.suites[0].weighted_speedup == pytest.approx(whole.suites[0].weighted_speedup)
    assert len(sample_values(folder)) == sum(len(sample_values(one)) for one in folders)


def test_the_whole_is_judged_by_the_baseline_and_a_shard_by_its_own_part(
    fusebench: Fusebench, project: Path, measure: Callable[..., Path], workers: FakeWorkers
) -> None:
    promote(measure(""), project / "results", force=True)
    workers.timed = lambda task: measured(task, 3.0 if task.case.name == "c2" else 2.0)
    codes, folders = [], []
    for shard in ("1/2", "2/2"):
        outcome = fusebench(*COMMAND, "--shard", shard, "--no-evidence", "--no-confirm")
        codes.append(outcome.exit_code)
        folders.append(outcome.stdout.rstrip().rpartition("run: ")[2])
        assert not [text for text in read_run(Path(folders[-1])).warnings if "cases" in text and "lost" in text]
    assert sorted(codes) == [ExitCode.PASS, ExitCode.REGRESSION]
    outcome = fusebench("join", *folders)
    assert outcome.exit_code == ExitCode.REGRESSION, outcome.output
    assert "scale/plain@1" in outcome.stdout


def test_shards_are_of_equal_length_by_measured_seconds(project: Path, measure: Callable[..., Path]) -> None:
    folder = measure("")
    run = read_run(folder)
    assert all(one.seconds is not None and one.seconds > 0 for one in run.cases), "a run keeps how long its cases took"
    seconds = {"c0": 1.0, "c1": 10.0, "c2": 1.0, "c3": 2.0, "c4": 6.0, "c5": 1.0}
    cases = [msgspec.structs.replace(one, seconds=seconds[one.case.name]) for one in run.cases]
    promote(
        write_run(folder.parent / "kept", msgspec.structs.replace(run, cases=cases), sample_values(folder)), project / "results", force=True
    )
    assert [names(read_run(measure(f"{number}/2"))) for number in (1, 2)] == [{"c1"}, {"c0", "c2", "c3", "c4", "c5"}]


def test_a_stopped_shard_goes_on_as_that_shard(
    fusebench: Fusebench, project: Path, measure: Callable[..., Path], workers: FakeWorkers
) -> None:
    expected = names(read_run(measure("1/2")))

    def stop(task: Any) -> Any:
        if len(workers.measurements) > 1:
            raise KeyboardInterrupt
        return measured(task, 2.0)

    workers.tasks.clear()
    workers.timed = stop
    assert fusebench(*COMMAND, "--shard", "1/2").exit_code == 130
    workers.timed = lambda task: measured(task, 2.0)
    folders = sorted((project / "results" / "runs").iterdir(), key=lambda one: one.stat().st_mtime)
    outcome = fusebench("run", "--resume", str(folders[-1]), "--shard", "2/2")
    assert outcome.exit_code == ExitCode.USAGE
    assert "--shard 1/2 -> 2/2" in outcome.stderr
    outcome = fusebench("run", "--resume", str(folders[-1]))
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    run = read_run(Path(outcome.stdout.rstrip().rpartition("run: ")[2]))
    assert (run.shard, run.complete, names(run)) == ("1/2", True, expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("two", "expected I/N, such as 2/4"),
        ("0/2", "there is no such part; the parts are 1/2 to 2/2"),
        ("3/2", "there is no such part; the parts are 1/2 to 2/2"),
        ("1/9", "the selection holds 5 different cases"),
    ],
)
def test_an_unknown_shard_is_refused(fusebench: Fusebench, project: Path, text: str, said: str) -> None:
    outcome = fusebench(*COMMAND, "--shard", text)
    assert outcome.exit_code == ExitCode.USAGE
    assert said in outcome.stderr


@pytest.fixture
def shards(synthetic: Any) -> list[Run]:
    runs = [synthetic.make_run(cases=cases) for cases in (("a", "b"), ("c",))]
    return [
        msgspec.structs.replace(
            run,
            id=f"r{number}",
            shard=f"{number}/2",
            environment=msgspec.structs.replace(run.environment, device_uuid=f"GPU-{number}"),
        )
        for number, run in enumerate(runs, 1)
    ]


def test_every_case_names_its_board(shards: list[Run]) -> None:
    joined = join_shards(shards)
    assert [(one.case.name, one.board) for one in joined.cases] == [("a", "GPU-1"), ("b", "GPU-1"), ("c", "GPU-2")]
    assert joined.environment.device_uuid == "GPU-1,GPU-2"
    same = [msgspec.structs.replace(run, environment=shards[0].environment) for run in shards]
    assert {one.board for one in join_shards(same).cases} == {""}, "one board is the environment's"


def of_environment(**changes: Any) -> Callable[[list[Run]], list[Run]]:
    def change(runs: list[Run]) -> list[Run]:
        return [runs[0], msgspec.structs.replace(runs[1], environment=msgspec.structs.replace(runs[1].environment, **changes))]

    return change


def of_run(**changes: Any) -> Callable[[list[Run]], list[Run]]:
    return lambda runs: [runs[0], msgspec.structs.replace(runs[1], **changes)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda runs: runs[:1], r"shards 2/2 are missing; measure them with `fusebench run --shard 2/2`"),
        (lambda runs: [*runs, runs[0]], r"shard 1/2 was measured several times, in runs r1, r1"),
        (of_run(shard="2/3"), r"shards of 2 and of 3"),
        (of_run(shard=""), r"run r2 is no shard"),
        (of_environment(git_commit="other"), r"git_commit .* -> other"),
        (of_environment(git_dirty=True), r"uncommitted changes, which may differ \(`git status` names them"),
        (of_environment(triton="0.1"), r"triton .* -> 0\.1"),
        (of_environment(device_name="NVIDIA A100"), r"device_name .* -> NVIDIA A100"),
        (of_run(selected=("other",)), r"suites .*other"),
        (of_run(schema_version=2), r"schema version 3 -> 2"),
        (of_run(timer="host2"), r"timer .* -> host2"),
        (lambda runs: [runs[0], msgspec.structs.replace(runs[1], cases=runs[0].cases, results=runs[0].results)], r"2 cases are in several"),
    ],
)
def test_what_does_not_belong_together_is_refused(shards: list[Run], change: Callable[[list[Run]], list[Run]], said: str) -> None:
    with pytest.raises(UsageError, match=re.compile(said)):
        join_shards(change(shards))


def test_a_host_whose_clock_is_ahead_is_named_and_the_runs_are_kept(shards: list[Run]) -> None:
    now = datetime.now(UTC)
    made = (now + timedelta(seconds=MOST_AHEAD_S + 60)).isoformat(timespec="seconds")
    late = [shards[0], msgspec.structs.replace(shards[1], created=made)]
    with pytest.raises(UsageError, match=r"run r2 was made at .* after the clock of this host .*NTP.*the runs are kept"):
        join_shards(late, now=now)
    assert join_shards(shards, now=now).created == now.isoformat(timespec="seconds")


def test_a_stopped_shard_makes_an_incomplete_record(shards: list[Run]) -> None:
    joined = join_shards([shards[0], msgspec.structs.replace(shards[1], complete=False, exit_code=int(ExitCode.DEVICE_UNFIT))])
    assert not joined.complete
    assert joined.exit_code == ExitCode.DEVICE_UNFIT
    assert any("shard 2/2 is incomplete" in text for text in joined.warnings)


def test_the_form_of_a_shard() -> None:
    assert str(parse_shard("2/4")) == "2/4"
