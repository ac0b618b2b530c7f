"""`fusebench calibrate`: its options, and one whole calibration of the CPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.cli import calibrate_command
from fusebench.device import resolve_device
from fusebench.errors import DeviceUnfitError, UsageError
from fusebench.runner.calibrate import targets as subjects
from fusebench.runner.calibrate.command import CalibrationRequest
from fusebench.runner.calibrate.visit import VisitWork
from fusebench.runner.workers.process import WorkerProcess
from fusebench.schema import ExitCode
from fusebench.stats.sequential import Plan
from fusebench.store.calibration_note import calibration_file
from fusebench.store.calibrations import CalibrationRecord, load_calibration, read_calibration, write_calibration
from fusebench.verdict import conclusion

Fusebench = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One size, one fresh process and few replicates: a calibration of seconds."""
    monkeypatch.setattr(conclusion, "PROCESSES", 1)
    monkeypatch.setattr(subjects, "CPU_ELEMENTS", (2**12,))
    monkeypatch.setattr(calibrate_command, "TRUTH_REPLICATES", 4)


@pytest.mark.usefixtures("few")
def test_the_whole_pipeline_on_a_cpu_and_what_reports_then_say(toy_project: Path, fusebench: Fusebench) -> None:
    """With forked processes: new interpreters in their place are tested by `ab` and `run`, which start them alike."""
    result = fusebench("calibrate", "--device", "cpu", "--quick", "--identical", "2", "--planted", "1", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["comparisons"] == 4
    assert (document["quick"], document["session"].startswith("a quick look, on 4 A/A comparisons and ")) == (True, True)
    file = Path(document["file"])
    assert file.is_relative_to(toy_project / "results" / "calibration")
    record = read_calibration(file)
    assert record is not None
    assert {trial.place.injection for trial in record.trials} == {"identical", "rows", "delay"}
    assert len(record.components) == 2

    ran = fusebench("run", "--suite", "scale", "--device", "cpu", "--cache", "warm", "--replicates", "2", "--rounds", "2")
    assert "of 4 A/A comparisons called slower" in ran.stdout, ran.output


@pytest.mark.parametrize(
    ("device", "sizes", "slowdowns"),
    [("cpu", 2**16, calibrate_command.CPU_SLOWDOWNS[-2:]), ("cuda", 6_250_000, calibrate_command.GPU_SLOWDOWNS[-2:])],
)
@pytest.mark.usefixtures("toy_project", "with_gpu")
def test_a_quick_look_makes_few_comparisons_and_each_as_strictly_as_the_whole(
    fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, device: str, sizes: int, slowdowns: tuple[float, ...]
) -> None:
    requests: list[CalibrationRequest] = []

    def planted(request: CalibrationRequest, _: object) -> None:
        requests.append(request)
        raise UsageError("planted: nothing is to be measured")

    monkeypatch.setattr("fusebench.runner.calibrate.command.measure_calibration", planted)
    Path("suites/calibration.toml").write_text(Path("suites/scale.toml").read_text().replace('"scale"', '"calibration"', 1))
    for options in (["--quick"], []):
        assert "planted" in fusebench("calibrate", "--device", device, *options).stderr
    quick, whole = requests
    assert [target.case.name for target in quick.targets] == [f"rows_{sizes}", f"delay_{sizes}"]
    assert (quick.options.slowdowns, quick.options.passes, quick.options.identical, quick.options.injected) == (slowdowns, 1, 8, 1)
    assert len(whole.targets) > len(quick.targets)
    for strict in ("looks", "plan", "processes"):
        assert getattr(quick.options, strict) == getattr(whole.options, strict)
    fusebench("calibrate", "--device", device, "--quick", "--built-in", "delay", "--identical", "3", "--planted", "2")
    assert [target.case.name for target in requests[-1].targets] == [f"delay_{sizes}"]
    assert (requests[-1].options.identical, requests[-1].options.injected) == (3, 2)


@pytest.mark.usefixtures("few")
def test_a_device_that_proves_unfit_ends_with_3_and_keeps_what_was_measured(
    toy_project: Path, fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    measure = VisitWork.measure

    def first_only(self: VisitWork, seconds: float | None) -> None:
        if made:
            raise DeviceUnfitError("planted")
        made.append(self)
        measure(self, seconds)

    monkeypatch.setattr(VisitWork, "measure", first_only)
    result = fusebench("calibrate", "--device", "cpu", "--quick", "--identical", "2", "--planted", "1")
    assert "a quick look, on " in result.stdout
    assert "too few for a claim" in result.stdout
    assert (result.exit_code, "after 1 of 2 visits, which are kept: planted" in " ".join(result.stderr.split())) == (3, True), result.output
    (file,) = (toy_project / "results" / "calibration").glob("*.json")
    record = read_calibration(file)
    assert record is not None
    assert record.trials


@pytest.mark.usefixtures("toy_project")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--built-in", "none"], "nothing to calibrate with"),
        (["--kernel", "x*"], "add --suite NAME or --op NAME"),
        (["--timer", "cupty"], "did you mean 'cupti'?"),
        (["--timer", "cuda_graph"], "times a GPU"),
        (["--suite", "scal"], "did you mean 'scale'?"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_measured(fusebench: Fusebench, arguments: list[str], said: str) -> None:
    result = fusebench("calibrate", "--device", "cpu", *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True), result.output
    assert not Path("results").exists()


@pytest.mark.parametrize("add", [[], ["--add"]])
def test_a_stored_calibration_that_cannot_be_read_is_found_before_anything_is_measured(
    toy_project: Path, fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, add: list[str]
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(WorkerProcess, "ask", lambda *task: asked.append(task))
    file = calibration_file(toy_project / "results", resolve_device("cpu").name)
    file.parent.mkdir(parents=True)
    file.write_text('{"version": 1, "no')
    result = fusebench("calibrate", "--device", "cpu", "--quick", *add)
    assert (result.exit_code, f"{file}: not a calibration" in result.stderr, asked) == (2, True, []), result.output
    assert file.read_text() == '{"version": 1, "no'


def test_a_stored_calibration_on_more_comparisons_is_not_replaced_by_fewer(
    toy_project: Path, fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, committed: Path
) -> None:
    """Planted defect: a quick look of 16 comparisons replaced a calibration of thousands."""
    stored = load_calibration(committed.parents[1], "NVIDIA H200")
    assert stored is not None
    device = resolve_device("cpu").name
    environment = msgspec.structs.replace(stored.environment, device_name=device)
    write_calibration(toy_project / "results", msgspec.structs.replace(stored, environment=environment))
    file = calibration_file(toy_project / "results", device)
    before = file.read_bytes()
    begun: list[bool] = []

    def hold(*_: object, **__: object) -> None:
        begun.append(True)
        raise DeviceUnfitError("planted: it would measure")

    monkeypatch.setattr("fusebench.runner.calibrate.command.hold", hold)
    result = fusebench("calibrate", "--device", "cpu", "--quick")
    said = " ".join(result.stderr.split())
    assert (result.exit_code, begun, file.read_bytes()) == (ExitCode.USAGE, [], before), result.output
    assert f"stands on {stored.note.comparisons} A/A comparisons, and this calibration would replace it by 16: nothing was measured" in said
    assert "--add" in said
    assert "--force" in said
    assert fusebench("calibrate", "--device", "cpu", "--quick", "--force").exit_code == 3
    assert fusebench("calibrate", "--device", "cpu", "--quick", "--identical", str(stored.note.comparisons)).exit_code == 3
    assert begun == [True, True]


@pytest.mark.parametrize("place", ["results", "results/calibration"])
def test_a_folder_that_takes_no_calibration_is_found_before_anything_is_measured(
    toy_project: Path, fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A link to a disk that is not there: it holds no calibration that could be read, and none can be written."""
    asked: list[object] = []
    monkeypatch.setattr(WorkerProcess, "ask", lambda *task: asked.append(task))
    link = toy_project / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(toy_project / "absent" / "disk")
    result = fusebench("calibrate", "--device", "cpu", "--quick")
    assert (result.exit_code, str(toy_project / "results" / "calibration") in result.stderr, asked) == (2, True, []), result.output
    assert "--out" not in result.stderr, "calibrate has no such option"
    assert not (toy_project / "absent").exists()


def test_planted_slowdowns_lie_beyond_the_margin_that_passes() -> None:
    assert Plan().margin < min(calibrate_command.GPU_SLOWDOWNS)


@pytest.fixture
def committed() -> Path:
    """The calibration of an H200 that lies in this repository."""
    return calibration_file(Path(__file__).parents[2] / "results", "NVIDIA H200")


def test_a_calibration_made_elsewhere_is_put_into_the_stored_one_once(toy_project: Path, fusebench: Fusebench, committed: Path) -> None:
    made_elsewhere = load_calibration(committed.parents[1], "NVIDIA H200")
    assert made_elsewhere is not None
    first = fusebench("calibrate", "--join", str(committed))
    assert first.exit_code == 0, first.output
    assert f"{len(made_elsewhere.trials)} comparisons in {len(made_elsewhere.sessions)} sessions; calibration: " in first.stdout
    stored = load_calibration(toy_project / "results", "NVIDIA H200")
    assert _plain(stored) == _plain(made_elsewhere)
    again = fusebench("calibrate", "--join", str(committed))
    assert (again.exit_code, "already; its trials would count twice" in again.stderr) == (ExitCode.USAGE, True)
    assert load_calibration(toy_project / "results", "NVIDIA H200") == stored


def test_a_folder_that_takes_no_calibration_is_named_and_nothing_is_joined(
    toy_project: Path, fusebench: Fusebench, committed: Path
) -> None:
    link = toy_project / "results" / "calibration"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(toy_project / "absent" / "disk")
    outcome = fusebench("calibrate", "--join", str(committed))
    assert (outcome.exit_code, f"{link}: nothing can be written there" in outcome.stderr) == (ExitCode.USAGE, True), outcome.output


def test_sessions_come_after_those_that_are_stored(toy_project: Path, fusebench: Fusebench, committed: Path, tmp_path: Path) -> None:
    whole = load_calibration(committed.parents[1], "NVIDIA H200")
    assert whole is not None
    last = len(whole.sessions) - 1

    def part(numbers: range) -> Path:
        """A record of these sessions alone, as another machine would have written it."""
        alone = msgspec.structs.replace(
            whole,
            sessions=tuple(whole.sessions[number] for number in numbers),
            trials=tuple(_moved(one, numbers[0]) for one in whole.trials if one.place.session in numbers),
            ground_truths=tuple(_moved(one, numbers[0]) for one in whole.ground_truths if one.place.session in numbers),
            components=tuple(
                msgspec.structs.replace(one, session=one.session - numbers[0]) for one in whole.components if one.session in numbers
            ),
        )
        return write_calibration(tmp_path / f"from {numbers[0]}", alone)

    outcome = fusebench("calibrate", "--join", str(part(range(last))), "--join", str(part(range(last, last + 1))))
    assert outcome.exit_code == 0, outcome.output
    assert _plain(load_calibration(toy_project / "results", "NVIDIA H200")) == _plain(whole)


def _plain(record: CalibrationRecord | None) -> str:
    """The whole record, with its warnings as today's code writes them: before 0.3.0 they held `0.5%`."""
    return re.sub(r"(?<=\d)%", " %", msgspec.json.encode(record).decode())


def _moved(one: Any, earlier: int) -> Any:
    return msgspec.structs.replace(one, place=msgspec.structs.replace(one.place, session=one.place.session - earlier))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--join", "absent.json"], "there is no file absent.json"),
        (["--join", "absent.json", "--quick", "--device", "cpu"], "--join measures nothing, so --device, --quick cannot stand beside it"),
        (["--join", "pyproject.toml"], "invalid character (byte 0); name the results/calibration/<device>.json of another checkout"),
    ],
)
@pytest.mark.usefixtures("toy_project")
def test_what_cannot_be_joined_is_refused(fusebench: Fusebench, arguments: list[str], said: str) -> None:
    outcome = fusebench("calibrate", *arguments)
    assert (outcome.exit_code, said in outcome.stderr) == (ExitCode.USAGE, True), outcome.output
