"""`fusebench model`: a whole run of a tiny model, and every way to ask for what does not exist."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.errors import UsageError
from fusebench.models import command
from fusebench.schema import ExitCode
from fusebench.store.baselines import load_baseline
from fusebench.store.model_folder import write_model
from helpers.synthetic_records import model_record

pytest.importorskip("diffusers")

REPOSITORY = Path(__file__).parents[2]
TINY = ("flux1_dev", "--tiny", "--device", "cpu")
pytestmark = pytest.mark.usefixtures("project_folder")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measuring process is this one, which has imported diffusers already."""
    from fusebench.models.work import work

    monkeypatch.setattr(command, "_in_process", lambda task, reporter, received: command.Answer(work(task, reporter.line)))


@pytest.mark.usefixtures("here")
def test_a_whole_run(fusebench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr("fusebench.models.work.LOOP_SHARE", 6.0)  # a busy machine does not shorten the loop
    shown = fusebench("model", *TINY, "--budget", "1", "--steps", "2", "--out", str(tmp_path / "out"), "--json")
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    assert {one["variant"]: len(one["rounds_ms"]) for one in document["times"]}.keys() == {"split", "fused"}
    assert all(len(one["rounds_ms"]) >= 4 for one in document["times"])
    assert (document["tiny"], document["layers"]) == (True, {"num_layers": 2, "num_single_layers": 2})
    assert sum(one["calls"] for one in document["calls"]) == 23
    assert all(one["fallbacks"] == one["calls"] for one in document["calls"]), "a CPU runs split chains"
    assert [one["variant"] for one in document["breakdowns"]] == ["split", "fused"]
    assert len(document["drift"]["steps"]) == 2
    assert [(one["variant"], one["steps"]) for one in document["loops"]] == [("split", 2), ("fused", 2)]
    assert document["verdicts"]["fused"]["kind"] == "incomparable"
    assert (document["complete"], document["missing"]) == (True, [])
    assert [one["gpu"] for one in document["times"]] == [None, None]
    assert document["gpu_times_absent"] == "a CPU leaves no activity records of CUPTI, so step times are by wall clock alone"
    folder = Path(document["run"])
    assert folder.parent == tmp_path / "out"
    assert {"model.json", "report.md", "step.png"} == {file.name for file in folder.iterdir()}
    assert (folder / "report.md").read_text().startswith("# FLUX.1-dev")
    assert "](step.png)" in (folder / "report.md").read_text()
    assert "building FLUX.1-dev" in shown.stderr


@pytest.mark.parametrize(("more", "budget_s"), [((), 2.0), (("--budget", "7"), 7.0)])
def test_a_tiny_model_spends_little_on_times_that_say_nothing(
    fusebench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], budget_s: float
) -> None:
    def refuse(request: command.ModelRequest, reporter: object) -> None:
        raise UsageError(f"{request.task.budget_s:g} s of timing")

    monkeypatch.setattr(command, "measure_model", refuse)
    assert f"{budget_s:g} s of timing" in fusebench("model", *TINY, *more).stderr


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The folder of a stored record."""
    return write_model(tmp_path / "records", model_record())


def test_a_stored_record_is_reported(fusebench: Callable[..., Any], stored: Path) -> None:
    shown = fusebench("report", str(stored))
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    assert shown.stdout.startswith("# Toy, 64 x 64\n")
    assert "step.png" not in shown.stdout, "this folder has no picture"
    refused = fusebench("report", str(stored), "--format", "html")
    assert refused.exit_code == ExitCode.USAGE
    assert "is of `fusebench model`, whose records are rendered as md only" in refused.stderr


def test_a_stored_record_is_explained_by_the_run_that_is_stored_today(
    fusebench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    baseline = load_baseline(REPOSITORY / "results", "NVIDIA H200")
    assert baseline is not None
    folder = write_model(tmp_path, model_record(environment={"device": "cuda", "device_name": "NVIDIA H200"}))
    said = f"a step saves 2.00 ms; predicted by stored run {baseline.id} of {baseline.created}: nothing"
    assert said in fusebench("report", str(folder)).stdout
    assert fusebench("report", str(tmp_path), "--format", "pages", "--out", str(tmp_path / "pages")).exit_code == 0
    assert said in (tmp_path / "pages" / "toy.md").read_text()
    # A project without a run of that GPU model shows what the record says.
    monkeypatch.chdir(tmp_path)
    assert "predicted by stored run run 1: 1.50 ms" in fusebench("report", str(folder)).stdout


def test_a_folder_of_records_is_one_table_with_the_newest_of_each_model(fusebench: Callable[..., Any], tmp_path: Path) -> None:
    records = tmp_path / "records"
    stored = ({"complete": True}, 7), ({"title": "Older"}, 6), ({"complete": False}, 8), ({"tiny": True}, 9)
    for changes, hour in stored:
        write_model(records, model_record(id=f"abcd123{hour}", created=f"2026-07-27T0{hour}:25:47+00:00", **changes))
    shown = fusebench("report", str(records))
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    assert [line for line in shown.stdout.splitlines() if line.startswith("| Toy, 64 x 64 ")]
    assert "Older" not in shown.stdout
    assert "incomplete" not in shown.stdout, "a complete record goes before a newer incomplete one"
    made = fusebench("report", str(records), "--format", "pages", "--out", str(tmp_path / "pages"))
    assert made.exit_code == 0, made.output
    assert {file.name for file in (tmp_path / "pages").iterdir()} == {"README.md", "toy.md", "toy.png"}
    refused = fusebench("report", str(records), "--format", "csv")
    assert refused.exit_code == ExitCode.USAGE
    assert "which are rendered together as md or pages" in refused.stderr


def test_a_folder_of_tiny_records_is_no_table(fusebench: Callable[..., Any], tmp_path: Path) -> None:
    write_model(tmp_path / "records", model_record(tiny=True))
    shown = fusebench("report", str(tmp_path / "records"))
    assert (shown.exit_code, shown.stdout) == (ExitCode.USAGE, "")
    assert "holds tiny models only" in shown.stderr


def test_an_edited_record_is_told(fusebench: Callable[..., Any], stored: Path) -> None:
    file = stored / "model.json"
    file.write_text(file.read_text().replace("improvement", "regression"))
    shown = fusebench("report", str(stored))
    assert shown.exit_code == 0
    assert "warning: " in shown.stderr
    assert "model record abcd1234" in shown.stderr


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("flux1_def",), "did you mean 'flux1_dev'?"),
        ((*TINY, "--layers", "num_blocks=1"), "no stack 'num_blocks'; expected one of num_layers, num_single_layers"),
        ((*TINY, "--layers", "num_layers"), "expected STACK=N, such as num_layers=4"),
        ((*TINY, "--layers", "num_layers=3"), "num_layers=3: model 'flux1_dev' has 1 to 2 of these blocks"),
        ((*TINY, "--layers", "num_layers=0"), "num_layers=0"),
        ((*TINY, "--variant", "fastest"), "no variant 'fastest'; expected one of split, fused"),
        ((*TINY, "--weights", "."), "holds no config.json; expected a folder of FluxTransformer2DModel"),
    ],
)
def test_what_does_not_exist(fusebench: Callable[..., Any], arguments: tuple[str, ...], said: str) -> None:
    shown = fusebench("model", *arguments)
    assert (shown.exit_code, shown.stdout) == (ExitCode.USAGE, ""), shown.output
    assert said in shown.stderr
    assert not Path("results").exists()


def test_without_diffusers(fusebench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    monkeypatch.delitem(sys.modules, "fusebench.models.configurations.flux1", raising=False)
    for name in [name for name in sys.modules if name.startswith("diffusers.")]:
        monkeypatch.setitem(sys.modules, name, None)
    shown = fusebench("model", *TINY)
    assert shown.exit_code == ExitCode.USAGE, shown.output
    assert "model 'flux1_dev' needs diffusers" in shown.stderr
    assert "pip install 'fusebench[models]'" in shown.stderr


@pytest.mark.usefixtures("here")
def test_another_diffusers(fusebench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from fusebench.models.catalogue import load_model

    kind = type(load_model("flux1_dev"))
    first, *_ = kind.forward_arguments
    monkeypatch.setattr(kind, "forward_arguments", {**kind.forward_arguments, first: ("x", "mask")})
    shown = fusebench("model", *TINY)
    assert shown.exit_code == ExitCode.USAGE, shown.output
    assert f"{first.__name__}(" in shown.stderr
    assert "expected (x, mask); install diffusers 0.42" in shown.stderr
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("child", "said"),
    [
        ("import sys; sys.exit('CUDA error: an illegal instruction')", "status 1 and without an answer: CUDA error: an illegal"),
        ("import os; os.kill(os.getpid(), 9)", "status -9 and without an answer: nothing on stderr"),
    ],
)
def test_a_measuring_process_that_dies(fusebench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, child: str, said: str) -> None:
    monkeypatch.setattr(command, "CHILD", ("-c", child))
    shown = fusebench("model", *TINY)
    assert shown.exit_code == ExitCode.KERNEL_FAILED, shown.output
    assert f"the measuring process ended with {said}" in shown.stderr
    assert not Path("results").exists()
