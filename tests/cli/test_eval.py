"""`fusebench eval` as a command: exit codes, the JSON document, the text for people, and bad input.

The evaluator is planted; `tests/judge` runs real ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result as Outcome

from fusebench.cli.shared.progress import PlainReporter
from fusebench.device import device_lock, resolve_device
from fusebench.judge import evaluation as module
from fusebench.schema import Accuracy, Estimate
from fusebench.schema.evaluation import CaseEvaluation, Evaluation, EvaluationStatus, IsolationMeasure, Stage

Fusebench = Callable[..., Outcome]
CODES = {"passed": 0, "unsupported": 2, "invalid": 2, "unfit": 3, "undecided": 4}
HOSTILE = "\x1b[2J::error::planted \u202egnp.exe ##[error]{}\n" * 3

WRONG = Accuracy(
    passed=False, contract="close(1.5x split)", rms_error=8e-3, max_error=2e-1, mean_error=0.0, split_rms_error=2e-3, split_max_error=2e-2,
    equal_to_split=0.5, within_loose_tolerance=True, draws=4, elements=100, seed=0, reason="error 4.0x the split chain's",
)  # fmt: skip


def document(status: EvaluationStatus = EvaluationStatus.PASSED, **changes: Any) -> Evaluation:
    """Two cases of the toy suite; the second has `status`."""
    right = CaseEvaluation(
        case="even", suite="scale", shape="64", status=EvaluationStatus.PASSED, time_us=Estimate(31.04, 30.9, 31.2),
        baseline_us=Estimate(54.0, 53.0, 55.0), speedup=Estimate(1.74, 1.72, 1.76), sol=0.923, limit_us=28.6, calls_compared=12, calls=40,
    )  # fmt: skip
    failed = status is not EvaluationStatus.PASSED
    other = msgspec.structs.replace(
        right, case="odd", status=status, speedup=None if failed else right.speedup, accuracy=WRONG if failed else None
    )
    known: dict[str, Any] = {
        "status": status, "op": "scale", "kernel": "scale/mine@1", "stage": Stage.QUICK, "device": "Toy CPU", "file": "mine.py",
        "file_sha256": "ab" * 32, "cases": (right, other), "first_failure": "scale:odd" if failed else None, "registers": 64,
        "spills": 16, "shared_bytes": 4096, "speedup": None if failed else right.speedup, "spent_s": 3.2,
        "isolation": (IsolationMeasure(name="landlock", active=False, reason="the system's kernel lacks it"),),
    }  # fmt: skip
    return Evaluation(**known | changes)


class Planted:
    """Stands in for the evaluator: answers with `answer`, and keeps what it was asked."""

    def __init__(self, answer: Evaluation) -> None:
        self.answer, self.asked, self.closed = answer, list[Any](), 0
        self.expected: list[Any] = []
        self.device: Any = None
        self.compilers = None

    def __call__(self, device: Any) -> Planted:
        self.device = device
        return self

    def __enter__(self) -> Planted:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def expect(self, *known: Any) -> None:
        self.expected.append(known)

    def evaluate(self, request: Any, reporter: Any = None) -> Evaluation:
        self.asked.append(request)
        return self.answer


@pytest.fixture
def planted(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Planted]:
    (toy_project / "mine.py").write_text("raise SystemExit('the command line must not import a candidate')\n")

    def plant(answer: Evaluation) -> Planted:
        stand_in = Planted(answer)
        monkeypatch.setattr(module, "Evaluator", stand_in)
        return stand_in

    return plant


@pytest.mark.parametrize("status", EvaluationStatus)
def test_the_exit_code_follows_from_the_status(planted: Any, fusebench: Fusebench, status: EvaluationStatus) -> None:
    stand_in = planted(document(status))
    outcome = fusebench("eval", "mine.py", "--op", "scale", "--device", "cpu")
    assert outcome.exit_code == CODES.get(status.value, 5), outcome.output
    assert outcome.stdout.startswith(f"{status.value}: scale/mine@1 on Toy CPU, stage quick")
    assert stand_in.closed == 1


def test_processes_start_before_the_op_is_known_and_end_with_a_refusal(planted: Any, fusebench: Fusebench, toy_project: Path) -> None:
    stand_in = planted(document(EvaluationStatus.PASSED))
    asked = ("eval", "mine.py", "--stage", "check", "--memory", "1GiB", "--device", "cpu")
    outcome = fusebench(*asked, "--op", "scale", "--case", "nope")
    assert (outcome.exit_code, stand_in.asked, stand_in.closed) == (2, [], 1)
    assert stand_in.expected == [((toy_project / "kernels",), Stage.CHECK, 2**30)]


@pytest.mark.parametrize("op", ["scael", "scale,scale", "", "../kernels/scale"])
def test_an_op_that_no_folder_is_named_like_starts_no_process(planted: Any, fusebench: Fusebench, op: str) -> None:
    stand_in = planted(document(EvaluationStatus.PASSED))
    outcome = fusebench("eval", "mine.py", "--op", op, "--device", "cpu")
    assert (outcome.exit_code, stand_in.expected, stand_in.closed) == (2, [], 0)


def test_nothing_starts_on_a_device_that_another_command_holds(planted: Any, fusebench: Fusebench) -> None:
    stand_in = planted(document(EvaluationStatus.PASSED))
    with device_lock(resolve_device("cpu")):
        outcome = fusebench("eval", "mine.py", "--op", "scale", "--stage", "check", "--device", "cpu")
    assert (outcome.exit_code, stand_in.expected, len(stand_in.asked)) == (0, [], 1)


def test_progress_begins_before_the_evaluation_and_ends_before_the_verdict(
    planted: Any, fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted defect: on a terminal the spinner began late and never ended, so that it stood in the verdict's first line."""
    planted(document())
    told: list[str] = []
    monkeypatch.setattr(PlainReporter, "begin", lambda _: told.append("begin"))
    monkeypatch.setattr(PlainReporter, "end", lambda _: told.append("end"))
    assert fusebench("eval", "mine.py", "--op", "scale", "--device", "cpu").exit_code == 0
    assert told == ["begin", "end"]


def test_json_is_the_document_alone(planted: Any, fusebench: Fusebench) -> None:
    planted(document(output_tail=HOSTILE, reason=HOSTILE))
    outcome = fusebench("eval", "mine.py", "--op", "scale", "--device", "cpu", "--json")
    read = json.loads(outcome.stdout)
    assert list(read) == [field.name for field in msgspec.structs.fields(Evaluation)]
    assert read["next_command"] == "fusebench eval mine.py --op scale --stage final"


def test_what_is_asked_reaches_the_evaluator(planted: Any, fusebench: Fusebench) -> None:
    stand_in = planted(document())
    fusebench(
        "eval", "mine.py", "--op", "scale", "--case", "even", "--stage", "check", "--budget", "7", "--memory", "2GiB", "--device", "cpu"
    )
    (asked,) = stand_in.asked
    assert ([case.name for case in asked.cases], asked.stage, asked.seconds, asked.memory_bytes) == (["even"], "check", 7.0, 2**31)


def test_the_text_fits_80_columns_and_says_what_failed(planted: Any, fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusebench.cli.shared.output.UNLIMITED_WIDTH", 80)
    planted(document(EvaluationStatus.WRONG, remarks=("16 bytes of registers are spilled a thread, which costs memory traffic " * 2,)))
    text = fusebench("eval", "mine.py", "--op", "scale", "--device", "cpu").stdout
    assert max(len(line) for line in text.splitlines() if not line.startswith("next: ")) <= 80
    flat = " ".join(text.split())
    assert "first failing case: scale:odd (64): wrong" in flat
    assert "error 4.00x (rms 8.00e-03, split 2.00e-03; max 2.00e-01, split 2.00e-02); contract close(1.5x split)" in flat
    assert "1.74x [1.72, 1.76]" in flat
    assert "64 registers a thread, 16 bytes spilled, 4096 bytes of shared memory a block" in flat
    assert "isolation not available: landlock (the system's kernel lacks it)" in flat
    assert "next: fusebench eval mine.py --op scale --case scale:odd --stage quick" in flat


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_text_of_a_hostile_file_is_escaped_and_bounded(planted: Any, fusebench: Fusebench, option: tuple[str, ...]) -> None:
    answer = document(EvaluationStatus.CRASHED, reason=HOSTILE * 1000, output_tail=HOSTILE * 1000, remarks=(HOSTILE * 1000,) * 500)
    hostile = tuple(msgspec.structs.replace(case, reason=HOSTILE * 1000) for case in answer.cases)
    planted(msgspec.structs.replace(answer, cases=hostile, kernel=HOSTILE * 1000))
    shown = fusebench("eval", "mine.py", "--op", "scale", "--device", "cpu", *option).stdout
    assert len(shown) < 40_000
    assert not set("\x1b\u202e") & set(shown)
    assert "##[" not in shown
    assert not any(line.lstrip().startswith("::") for line in shown.splitlines())
    assert "planted" in shown


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no candidate: pass FILE --op NAME"),
        (("mine.py",), "--op is missing; pass the op that the file declares, one of scale"),
        (("gone.py", "--op", "scale"), "gone.py: found no such file"),
        (("kernels", "--op", "scale"), "kernels: found a folder"),
        (("/dev/null", "--op", "scale"), "/dev/null: found a pipe or a device"),
        (("mine.py", "--op", "scael"), "did you mean 'scale'?"),
        (("mine.py", "--op", "scale,scale"), "found several ops"),
        (("mine.py", "--op", "scale", "--case", "nope"), "unknown case 'nope'"),
        (("mine.py", "--op", "scale", "--memory", "lots"), "--memory lots: expected a number of bytes"),
        (("mine.py", "--op", "scale", "--memory", "12"), "expected at least 64MiB"),
        (("mine.py", "--serve"), "leave FILE out"),
        (("--mcp", "--serve"), "start two processes"),
    ],
)
def test_bad_input_is_one_line_with_the_next_step(fusebench: Fusebench, arguments: tuple[str, ...], said: str) -> None:
    outcome = fusebench("eval", *arguments)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("error: ")
    assert outcome.stderr.count("\n") == 1
    assert said in outcome.stderr


def test_a_huge_candidate_is_refused(toy_project: Path, fusebench: Fusebench) -> None:
    (toy_project / "huge.py").write_bytes(b"#" * (2**20 + 1))
    outcome = fusebench("eval", "huge.py", "--op", "scale")
    assert (outcome.exit_code, "found over 1048576 bytes" in outcome.stderr) == (2, True)


def test_a_device_in_use_is_unfit(planted: Any, fusebench: Fusebench) -> None:
    """Another run holds this CPU; a timed evaluation waits for its budget of one second."""
    stand_in = planted(document())
    with device_lock(resolve_device("cpu")):
        outcome = fusebench("eval", "mine.py", "--op", "scale", "--device", "cpu", "--budget", "1")
        assert (outcome.exit_code, stand_in.asked) == (3, [])
        assert "is in use by another fusebench run" in outcome.stdout
        assert fusebench("eval", "mine.py", "--op", "scale", "--device", "cpu", "--stage", "check").exit_code == 0


class Absent:
    """Makes Python find no package of this name, as where it is not installed."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(("option", "package"), [("--serve", "uvicorn"), ("--mcp", "mcp")])
def test_a_server_without_its_extra_says_what_to_install(
    toy_project: Path, fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, option: str, package: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package or name.startswith("fusebench.cli.serving.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(package), *sys.meta_path])
    outcome = fusebench("eval", option, "--device", "cpu")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert f"the package {package}, which fusebench needs, is not installed" in outcome.stderr
    assert "pip install -e '.[serve]'" in outcome.stderr
