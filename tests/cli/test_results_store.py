"""`--results URL`: a run is measured here and published there; what a store does wrong loses nothing and has its own message."""

from __future__ import annotations

import gc
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.schema import ExitCode
from fusebench.store.remote.files import ATTEMPTS, Store
from fusebench.store.run_folder import RUN_FILE
from helpers import run_bench
from helpers import s3_server as bench
from helpers.run_bench import QUICK, FakeWorkers, only_run
from helpers.s3_server import BUCKET, Server, dropped, read_only

Fusebench = Callable[..., Any]
project, workers = run_bench.project, run_bench.workers
s3_server, s3 = bench.s3_server, bench.s3
URL = f"s3://{BUCKET}/nightly"
AT = ["--results", URL]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("s3")
def test_a_run_is_judged_promoted_compared_and_shown_from_the_store(
    fusebench: Fusebench, keep: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no command leaves the folder that it downloads records into."""
    (tmp_path / "downloads").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "downloads"))
    first, second = (keep(run_id=name, created=f"2026-07-0{day}T03:00:00Z") for day, name in enumerate(("one", "two"), 1))
    published = fusebench("catalogue", "publish", str(first), *AT)
    assert f"published: {URL}/runs/{first.name}" in published.stderr
    gate = fusebench("gate", "latest", *AT)
    assert gate.exit_code == ExitCode.UNDECIDED
    assert "no baseline" in gate.stderr
    promoted = fusebench("baseline", "promote", "latest", "--force", *AT)
    assert promoted.exit_code == 0, promoted.output
    assert f"{URL}/baselines/nvidia_h200/0001_{first.name}" in promoted.stdout
    (shown,) = json.loads(fusebench("baseline", "show", "--json", *AT).stdout)
    assert (shown["run"], shown["folder"]) == ("one", f"{URL}/baselines/nvidia_h200")
    fusebench("catalogue", "publish", str(second), *AT)
    gate = fusebench("gate", "latest", *AT, "--json")
    assert (json.loads(gate.stdout)["run"], json.loads(gate.stdout)["baseline"]) == ("two", "one")
    assert gate.exit_code == fusebench("gate", "latest", "--baseline", "one", *AT).exit_code
    compared = fusebench("compare", "one", "latest", *AT)
    assert compared.exit_code == 0, compared.output
    assert "qknorm_rope" in fusebench("report", "two", *AT).stdout
    (row,) = json.loads(fusebench("catalogue", "show", "--json", *AT).stdout)
    assert (row["runs"], row["newest_run"]) == (2, "two")
    counted = fusebench("catalogue", "query", "SELECT count(DISTINCT run) AS runs FROM results", "--json", *AT)
    assert json.loads(counted.stdout) == [{"runs": 2}]
    del gate, promoted, compared  # which hold the frames of their commands
    gc.collect()
    assert list((tmp_path / "downloads").iterdir()) == []
    assert "0 files merged" in fusebench("catalogue", "merge", *AT).stdout
    Store(URL).write("runs/20260101T000000Z_half/results.parquet", b"half")
    rebuilt = fusebench("catalogue", "rebuild", *AT)
    assert rebuilt.exit_code == ExitCode.USAGE
    assert "2 runs in the catalogue" in rebuilt.stdout
    assert "20260101T000000Z_half" in rebuilt.stderr
    half = fusebench("report", "20260101", *AT)
    assert half.exit_code == ExitCode.USAGE
    assert "uploaded last" in half.stderr


@pytest.mark.usefixtures("workers")
def test_a_run_that_cannot_be_published_is_kept_and_the_named_command_publishes_it(fusebench: Fusebench, project: Path, s3: Server) -> None:
    s3.spoil(dropped, path="/runs/", times=3 * ATTEMPTS)
    done = fusebench(*QUICK, *AT)
    assert done.exit_code == ExitCode.USAGE
    folder = only_run(project)
    assert (folder / RUN_FILE).is_file()
    (command,) = re.findall(r"publish it later with: fusebench (.*)", done.stderr)
    assert command == f"catalogue publish {folder} --results {URL}"
    s3.spoil()
    assert Store(URL).names("catalogue") == []
    again = fusebench(*command.split())
    assert again.exit_code == 0, again.output
    assert Store(URL).names("runs") == [folder.name]
    assert "1 run in" in fusebench("catalogue", "rebuild", *AT).stdout


def test_nothing_is_measured_for_a_store_that_takes_nothing(
    fusebench: Fusebench, workers: FakeWorkers, project: Path, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    s3.spoil(read_only, times=99)
    said.append(fusebench(*QUICK, *AT))
    s3.spoil()
    said.append(fusebench(*QUICK, "--results", "s3://absent/x"))
    said.append(fusebench(*QUICK, "--results", "nosuch://x/y"))
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv(bench.ENDPOINT, "http://127.0.0.1:9")
        said.append(fusebench(*QUICK, *AT))
    monkeypatch.delenv(bench.KEY)
    monkeypatch.delenv(bench.SECRET)
    said.append(fusebench(*QUICK, *AT))
    assert [one.exit_code for one in said] == [ExitCode.USAGE] * 5
    words = ("is read-only", "no such bucket", "this kind of store cannot be reached", "the store cannot be reached", "wants credentials")
    for one, expected in zip(said, words, strict=True):
        assert expected in one.stderr
        assert "Traceback" not in one.stderr
    assert said[3].stderr.index("waiting: s3://") < said[3].stderr.index("error: s3://"), "a wait of 15 s says what for"
    assert not any("waiting:" in said[number].stderr for number in (0, 1, 2, 4)), "these are certain at once"
    assert not workers.tasks
    assert not (project / "results" / "runs").exists()


def test_a_folder_of_results_stands_in_for_the_projects_own(
    fusebench: Fusebench, keep: Callable[..., Path], project_folder: Path, tmp_path: Path
) -> None:
    keep(run_id="one")
    (project_folder / "results").rename(tmp_path / "elsewhere")
    elsewhere = ["--results", str(tmp_path / "elsewhere")]
    assert "1 run in" in fusebench("catalogue", "rebuild", *elsewhere).stdout
    (row,) = json.loads(fusebench("catalogue", "show", "--json", *elsewhere).stdout)
    assert row["runs"] == 1
    assert fusebench("baseline", "promote", "latest", "--force", *elsewhere).exit_code == 0
    assert len(json.loads(fusebench("baseline", "show", "--json", *elsewhere).stdout)) == 1
    wrong = fusebench("catalogue", "publish", str(tmp_path / "elsewhere" / "runs"), *elsewhere)
    assert wrong.exit_code == ExitCode.USAGE
    assert "expected the URL" in wrong.stderr
    for command in (["catalogue", "rebuild"], ["baseline", "show"], ["history"], ["gate", "latest"]):
        absent = fusebench(*command, "--results", str(tmp_path / "mistyped"))
        assert absent.exit_code == ExitCode.USAGE
        assert f"no such folder: {tmp_path / 'mistyped'}" in absent.stderr
