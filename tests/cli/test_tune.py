"""`fusebench tune`: tables from stored runs, beside their op, and requests that make none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from click.testing import Result

from fusebench.device import Device
from fusebench.registry import load_collection
from fusebench.registry.dispatching.tables import read_table
from fusebench.runner.dispatched import DispatchChoices
from fusebench.runner.run.command import RunRequest
from fusebench.runner.session import Outcome
from fusebench.schema import Case, Run, Status
from fusebench.store.run_folder import read_run, write_run

pytestmark = pytest.mark.usefixtures("forked_workers")
Fusebench = Callable[..., Result]
FILE = "nvidia_h200.triton-3.6.json"
KERNELS = """
from fusebench import kernel

@kernel("scale", "first", version=1, role="fused", language="torch")
def first(x, *, factor=2.0):
    x.mul_(factor)

@kernel("scale", "second", version=1, role="fused", language="torch")
def second(x, *, factor=2.0):
    x.mul_(factor)
"""
NAMES = {"fused_triton@1": "first@1", "fused_triton@2": "second@1", "split_triton@1": "split@1"}


@pytest.fixture
def stored(toy_project: Path, synthetic: ModuleType) -> Callable[..., Path]:
    """`stored(run_id)`: a run of the op `scale` on a GPU in results/runs, in which `second` is 1.16 times faster than `first`."""
    (toy_project / "kernels" / "scale" / "fused.py").write_text(KERNELS)

    def write(run_id: str = "r1", **fields: object) -> Path:
        return write_run(toy_project / "results" / "runs", of_scale(synthetic.make_run(run_id=run_id, **fields)), [])

    def of_scale(run: Run) -> Run:
        kernels = {f"qknorm_rope/{old}": f"scale/{new}" for old, new in NAMES.items()}
        sizes = {one.case.name: 1024 << place for place, one in enumerate(run.cases)}
        cases = [
            msgspec.structs.replace(
                one,
                case=msgspec.structs.replace(one.case, op="scale", params={"size": sizes[one.case.name]}),
                baseline="scale/split@1",
            )
            for one in run.cases
        ]
        results = [msgspec.structs.replace(one, op="scale", kernel=kernels[one.kernel]) for one in run.results if one.kernel in kernels]
        infos = [msgspec.structs.replace(one, id=kernels[one.id], op="scale") for one in run.kernels if one.id in kernels]
        return msgspec.structs.replace(run, cases=cases, results=results, kernels=infos, suites=[])

    return write


def test_a_table_is_written_beside_the_op_and_dispatch_takes_its_kernel(
    stored: Callable[..., Path], toy_project: Path, fusebench: Fusebench
) -> None:
    stored()
    file = toy_project / "kernels" / "scale" / "dispatch" / FILE
    shown = fusebench("tune", "--from", "latest", "--dry-run")
    assert (shown.exit_code, file.exists()) == (0, False), shown.stderr
    assert "scale  5 of 5            0 %, 0 %, 1.16x  100 %, 100 %, 1.00x  100 %, 100 %, 1.00x" in " ".join(shown.stdout.split("\n")), (
        shown.stdout
    )
    document = json.loads(fusebench("tune", "--from", "latest", "--json").stdout)
    (one,) = document["tables"]
    assert (document["written"], one["file"], one["entries"], one["now"]["worst"]) == (True, str(file), 5, pytest.approx(1.157, abs=1e-3))
    assert [entry.times[0].kernel for group in read_table(file).groups for entry in group.entries] == ["second@1"] * 5
    collection = load_collection([toy_project / "kernels"], entry_points=False)
    case = Case(suite="s", name="c", op="scale", params={"size": 2048})
    told: list[str] = []
    gpu = Device(kind="cuda", name="NVIDIA H200")
    assert DispatchChoices(collection, gpu, "3.6.0", told.append).kernel(case) == "scale/second@1"
    assert DispatchChoices(collection, Device(kind="cpu", name="EPYC"), "3.6.0", told.append).kernel(case) == ""
    assert told == []
    file.write_bytes(file.read_bytes().replace(b"second@1", b"first@1"))
    edited = DispatchChoices(collection, gpu, "3.6.0", told.append)
    assert [edited.kernel(case), edited.kernel(case)] == ["scale/fast@2"] * 2
    assert len(told) == 1
    assert "edited by hand" in told[0]


def test_a_later_run_keeps_the_entries_that_it_lacks_and_replaces_a_table_that_was_edited(
    stored: Callable[..., Path], toy_project: Path, fusebench: Fusebench
) -> None:
    stored("old", created="2026-07-01T00:00:00Z")
    file = toy_project / "kernels" / "scale" / "dispatch" / FILE
    assert fusebench("tune", "--from", "old").exit_code == 0
    stored("new", cases=("flux_1024",))
    assert fusebench("tune", "--from", "new").exit_code == 0
    runs = [entry.runs for group in read_table(file).groups for entry in group.entries]
    assert runs == [("new",), *[("old",)] * 4]
    file.write_bytes(file.read_bytes().replace(b"second@1", b"first@1"))
    again = fusebench("tune", "--from", "new")
    assert "its entries are not kept: its content does not fit its digest" in again.stderr
    assert [entry.runs for group in read_table(file).groups for entry in group.entries] == [("new",)]


def test_a_time_of_a_kernel_that_declines_the_case_makes_no_entry(
    stored: Callable[..., Path], toy_project: Path, fusebench: Fusebench
) -> None:
    stored()
    declines = "\n@second.supports\ndef _(params):\n    return params.size < 2048 or 'too wide'\n"
    (toy_project / "kernels" / "scale" / "fused.py").write_text(KERNELS + declines)
    assert fusebench("tune", "--from", "latest").exit_code == 0
    table = read_table(toy_project / "kernels" / "scale" / "dispatch" / FILE)
    assert [[time.kernel for time in entry.times] for group in table.groups for entry in group.entries] == [["second@1", "first@1"]]


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        ({"environment": {"device": "cpu", "device_name": "EPYC"}}, ["--from", "latest"], "tables are for GPUs; name a run of a GPU"),
        ({"kernels": ("qknorm_rope/split_triton@1",)}, ["--from", "latest"], "no cold time of a fused kernel of scale in latest"),
        ({"environment": {"triton": "3.5.1"}}, ["--from", "latest", "--from", "other"], "the runs are of several machines"),
        ({}, ["--from", "latest", "--suite", "scale"], "leave out --suite and --case, or --from"),
        ({}, ["--from", "latest", "--op", "scal"], "unknown op 'scal'"),
        ({}, ["--suite", "scale", "--device", "cpu"], "dispatch tables are for GPUs, and this is"),
        ({}, [], "no suite selected"),
    ],
)
def test_a_request_that_makes_no_table_says_why(
    stored: Callable[..., Path], fusebench: Fusebench, changes: dict[str, object], arguments: list[str], said: str
) -> None:
    if "other" in arguments:
        stored("other", created="2026-07-01T00:00:00Z")
    stored(**changes)
    found = fusebench("tune", *arguments)
    assert found.exit_code == 2
    assert said in found.stderr
    assert not Path("kernels/scale/dispatch").exists()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, 0),
        ({"complete": False}, 4),
        ({"exit_code": 3}, 3),
        ({"failed": "first@1"}, 5),
        ({"failed": "fast__wide@2"}, 0),
    ],
)
def test_a_selection_is_measured_and_then_tabled(
    stored: Callable[..., Path], fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], code: int
) -> None:
    folder = stored("measured")
    record = read_run(folder)
    if failed := fields.pop("failed", ""):
        wrong = msgspec.structs.replace(record.results[0], kernel=f"scale/{failed}", status=Status.WRONG, reason="NaN", measurement=None)
        record = msgspec.structs.replace(record, results=[*record.results, wrong], exit_code=5)
    record = msgspec.structs.replace(record, **fields)
    asked: list[RunRequest] = []

    def measure(request: RunRequest, reporter: object) -> Outcome[Run]:
        asked.append(request)
        return Outcome(record=record, folder=folder)

    monkeypatch.setattr("fusebench.device.resolve_device", lambda spec: Device(kind="cuda", name="NVIDIA H200"))
    monkeypatch.setattr("fusebench.device.toolchain.require_torch_for", lambda device: None)
    monkeypatch.setattr("fusebench.runner.run.command.measure_run", measure)
    found = fusebench("tune", "--op", "scale", "--processes", "3", "--json")
    assert found.exit_code == code, found.stderr
    (request,) = asked
    assert request.options.kernel == "scale/fast@2,scale/first@1,scale/second@1"
    assert (request.plan.processes, request.confirm, {case.op for case in request.cases}) == (3, False, {"scale"})
    assert (f"warning: scale/{failed} on qknorm_rope:flux_1024: wrong: NaN" in found.stderr) == bool(failed)
    assert (Path("kernels/scale/dispatch") / FILE).exists() == (code != 3)
    assert code == 3 or json.loads(found.stdout)["tables"][0]["measured"] == 5


def test_a_table_holds_the_sources_of_its_run_and_check_finds_a_kernel_that_changed(
    stored: Callable[..., Path], toy_project: Path, fusebench: Fusebench
) -> None:
    """The sources come from the run's commit; a later `tune` keeps them, and a run whose commit is lost says so."""
    fused = toy_project / "kernels" / "scale" / "fused.py"
    stored("lost", created="2026-07-01T00:00:00Z")
    lost = fusebench("tune", "--from", "lost")
    assert "nothing tells the source that run lost measured: " in lost.stderr
    assert fusebench("tune", "--check").exit_code == 4
    for arguments in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "kernels"]):
        subprocess.run(["git", *arguments], cwd=toy_project, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=toy_project, check=True, capture_output=True, text=True).stdout.strip()
    stored("r1", environment={"git_commit": commit, "git_dirty": False})
    fused.write_text(KERNELS.replace("x.mul_(factor)", "x.mul_(factor).add_(0)", 1))
    assert fusebench("tune", "--from", "r1").exit_code == 0
    fused.write_text(KERNELS)
    same = fusebench("tune", "--check", "--json")
    assert same.exit_code == 0, same.stdout
    fused.write_text(KERNELS.replace("x.mul_(factor)", "x.mul_(factor).add_(0)", 1))
    changed = fusebench("tune", "--check", "--json")
    assert changed.exit_code == 4
    rows = json.loads(changed.stdout)["kernels"]
    assert [(row["kernel"], row["entries"], row["other"], row["runs"]) for row in rows] == [
        ("first@1", 5, 5, ["r1"]),
        ("second@1", 5, 0, []),
    ]
    assert "first@1   5        5                         0             r1" in fusebench("tune", "--check").stdout
    assert "leave out --from" in fusebench("tune", "--check", "--from", "r1").stderr
