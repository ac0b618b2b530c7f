"""`fusebench history` as a user meets it: options, exit codes, JSON and pictures."""

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

from fusebench.store.run_folder import RUN_FILE, write_run

Fusebench = Callable[..., Result]
Nights = Callable[..., list[Path]]


CASE = "flux_1024"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, synthetic: ModuleType) -> Callable[..., list[Path]]:
    """As `nights`, in a folder that no test changes; a history of the same arguments is written once."""
    known: dict[str, list[Path]] = {}

    def write(count: int, steps: Any, **fields: Any) -> list[Path]:
        key = repr((count, list(steps), sorted(fields.items())))
        if key not in known:
            parent = tmp_path_factory.mktemp("history")
            runs = synthetic.make_history(count, {(CASE, synthetic.FUSED): steps}, **fields)
            known[key] = [write_run(parent, run, []) for run in runs]
        return known[key]

    return write


@pytest.fixture
def nights(project_folder: Path, written: Callable[..., list[Path]], synthetic: ModuleType) -> Nights:
    """`nights(count, steps, **fields)`: a history of two cases under results/runs, in which the fused kernel of one takes these steps."""

    def write(count: int, steps: Any = (), **fields: Any) -> list[Path]:
        fields = {"cases": (CASE, "zimage_1024"), "kernels": (synthetic.BASELINE, synthetic.FUSED), **fields}
        parent = project_folder / "results" / "runs"
        return [Path(shutil.copytree(folder, parent / folder.name)) for folder in written(count, steps, **fields)]

    return write


@pytest.mark.parametrize(
    ("history", "code", "said"),
    [
        ((40, [(20, 1.03)]), 1, "slower than the one before by more than 1.0 % for qknorm_rope/fused_triton@2 on flux_1024"),
        ((40, [(20, 1 / 1.03)]), 0, "no newest level is slower"),
        ((60, [(20, 1.04), (40, 1 / 1.04)]), 0, "no newest level is slower"),
        ((40, []), 0, "no newest level is slower"),
        ((9, []), 4, "9 comparable runs, too few to divide"),
        ((0, []), 4, "0 comparable runs"),
    ],
)
def test_the_gate_says_what_the_newest_level_is(
    nights: Nights, fusebench: Fusebench, history: tuple[int, list[tuple[int, float]]], code: int, said: str
) -> None:
    nights(*history)
    judged, told = fusebench("history", "--gate"), fusebench("history")
    assert (judged.exit_code, told.exit_code) == (code, 0), judged.output
    assert said in judged.stdout
    assert judged.stdout == told.stdout


def test_a_step_of_the_newest_four_runs_is_not_seen_yet(nights: Nights, fusebench: Fusebench) -> None:
    """Which is what `fusebench gate` is for."""
    nights(40, [(36, 1.05)])
    assert fusebench("history", "--gate").exit_code == 0
    nights(
        12,
        [(0, 1.05)],
        seed=2,
        each={place: {"run_id": f"m{place}", "created": f"2026-09-{place + 1:02}T00:00:00Z"} for place in range(12)},
    )
    assert fusebench("history", "--gate").exit_code == 1


def test_json_is_the_only_thing_on_stdout(nights: Nights, fusebench: Fusebench) -> None:
    folders = nights(40, [(20, 1.03)])
    (folders[2] / RUN_FILE).write_text("{")
    result = fusebench("history", "--gate", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == document["exit_code"] == 1
    assert {"figure", "margin", "rate", "blind", "reason", "runs", "left_out", "series", "too_short", "suites"} <= document.keys()
    assert len(document["runs"]) == 39
    assert [Path(one["folder"]).name for one in document["unreadable"]] == [folders[2].name]
    assert [change["first"]["run"] for change in document["changes"]] == ["n020"]


def test_what_cannot_be_read_or_compared_is_named(nights: Nights, fusebench: Fusebench) -> None:
    folders = nights(14, each={5: {"timer": "cuda_events"}})
    (folders[2] / RUN_FILE).unlink()
    said = fusebench("history").stdout
    assert (
        f"skipped: {folders[2].resolve()}: not a run folder" in said.replace("results/runs", str(folders[2].parent))
        or folders[2].name in said
    )
    assert "left out: 1 run not comparable with the newest (timer: cuda_events -> cupti): n005" in said
    assert said.startswith("12 runs on NVIDIA H200")


def test_folders_globs_and_the_window_choose_the_runs(nights: Nights, fusebench: Fusebench) -> None:
    parent = nights(30)[0].parent

    def runs(*arguments: str) -> int:
        return len(json.loads(fusebench("history", "--json", *arguments).stdout)["runs"])

    assert (runs(), runs(str(parent)), runs(f"{parent}/*n01?"), runs("--last", "12")) == (30, 30, 10, 12)
    assert runs("--since", "2026-07-11") == runs("--since", "2026-07-11T03:00:00+00:00") == 20


def test_a_selection_is_of_what_the_records_hold(nights: Nights, fusebench: Fusebench) -> None:
    nights(12)

    def series(*arguments: str) -> int:
        return json.loads(fusebench("history", "--json", *arguments).stdout)["series"]

    assert series() == series("--suite", "qknorm_rope") == series("--op", "qknorm_rope") == 4
    assert series("--case", "flux*") == series("--kernel", "fused_triton@2") == series("--case", "qknorm_rope:zimage_1024") == 2
    assert series("--figure", "speedup") == 2, "the baseline has none"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--suite", "qknorm_rop"], "did you mean 'qknorm_rope'"),
        (["--op", "rope"], "unknown op 'rope'"),
        (["--kernel", "*cuda*"], "unknown kernel '*cuda*'"),
        (["--case", "flux_2048"], "did you mean 'flux_1024'"),
        (["--margin", "3"], "0.01 for 1 %"),
        (["--since", "yesterday"], "expected one such as 2026-07-01"),
        (["--plot", "a.svg"], "pictures are .png files"),
        (["nowhere"], "no such folder"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(nights: Nights, fusebench: Fusebench, arguments: list[str], said: str) -> None:
    nights(2)
    result = fusebench("history", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_raw_times_keep_to_one_driver(nights: Nights, fusebench: Fusebench) -> None:
    nights(24, each={place: {"environment": {"driver": "570.1"}} for place in range(12)})
    assert len(json.loads(fusebench("history", "--json").stdout)["runs"]) == 24
    raw = json.loads(fusebench("history", "--json", "--figure", "raw").stdout)
    assert (len(raw["runs"]), raw["left_out"][0]["reason"]) == (12, "driver: 570.1 -> 580.159")


def test_pictures_and_markdown(nights: Nights, fusebench: Fusebench, project_folder: Path) -> None:
    nights(40, [(20, 1.03)])
    result = fusebench("history", "--format", "md", "--plot", "one.png")
    assert result.stdout.startswith("# Change points\n")
    assert (project_folder / "one.png").read_bytes().startswith(b"\x89PNG")
    assert "wrote one.png" in result.stderr
    fusebench("history", "--plot", "pictures")
    assert sorted(file.name for file in (project_folder / "pictures").iterdir()) == ["history.png", "qknorm_rope_flux_1024.png"]
    (project_folder / "file").write_text("")
    assert "cannot be written" in fusebench("history", "--plot", "file/x.png").stderr


def test_runs_kept_in_one_file_have_the_same_history(nights: Nights, fusebench: Fusebench, project_folder: Path) -> None:
    nights(30, [(15, 1.03)])
    whole = fusebench("history", "--gate", "--keep", "kept/h200.parquet")
    assert (whole.exit_code, "wrote 30 runs into kept/h200.parquet" in whole.stderr) == (1, True)
    kept = fusebench("history", "kept/h200.parquet", "--gate")
    assert (kept.exit_code, kept.stdout) == (whole.exit_code, whole.stdout)
    assert fusebench("history", "--keep", "kept/h200.json").exit_code == 2
    (project_folder / "file").write_text("")
    assert "cannot be written" in fusebench("history", "--keep", "file/h.parquet").stderr


def test_a_history_needs_no_torch(nights: Nights, project_folder: Path) -> None:
    nights(12)
    probe = "import sys; from fusebench.cli.main import app; app(['history'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], cwd=project_folder, check=True, capture_output=True, text=True, timeout=60)
    modules = set(done.stdout.splitlines()[-1].split())
    assert "numpy" in modules
    assert not modules & {"torch", "triton", "matplotlib", "pandas", "scipy"}


def test_the_scatter_between_runs_is_stored_and_gates_use_it(nights: Nights, fusebench: Fusebench, project_folder: Path) -> None:
    """Of one commit and board: how far boards are apart is not known, and a run of another board is judged by the fixed margin."""
    cases = tuple(f"case_{number}" for number in range(12))
    refused = fusebench("history", "--scatter")
    assert (refused.exit_code, "found 0 runs; expected at least two" in refused.stderr) == (2, True), refused.output
    nights(6, cases=cases, environment={"git_commit": "a" * 40})
    stored = fusebench("history", "--scatter")
    assert (stored.exit_code, "nvidia_h200.scatter.json" in stored.stderr) == (0, True), stored.output
    one = json.loads((project_folder / "results/calibration/nvidia_h200.scatter.json").read_text())["classes"][0]
    assert 0.002 < one["process"] < 0.02, "nights scatter by 0.4 %, and one in thirty is disturbed by 5 %"
    assert one["board"] is None
    assert fusebench("baseline", "promote", "n000").exit_code == 0
    gated = fusebench("gate", "n001")
    assert "from the scatter of 6 stored runs on 1 board; intervals hold for the next run on a board of that model" in gated.stdout
    document = json.loads(fusebench("gate", "n001", "--json").stdout)
    assert document["margin"] is None
    assert {row["several_launches"] for row in document["margins"]} == {False, True}
    fixed = json.loads(fusebench("gate", "n001", "--json", "--margin", "0.05").stdout)
    assert (fixed["margin"], fixed["margins"]) == (0.05, [])
