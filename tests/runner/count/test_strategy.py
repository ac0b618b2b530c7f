"""What `ncu` captures, what it leaves, and which failures are this project's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.counters.capturing import CaptureOutcome, Settings
from fusebench.counters.records import Capture, CaptureStatus, Launch
from fusebench.device import Device, resolve_device
from fusebench.device import nvml as nvml_backend
from fusebench.registry import Collection, load_collection
from fusebench.runner.context import Context
from fusebench.runner.count import strategy as counting
from fusebench.runner.count.strategy import CountingOptions, CountingStrategy, captured_by_default, describe_capture, report_name
from fusebench.runner.engine import Engine
from fusebench.schema import Case, ExitCode, Role

TOY_PROJECT = Path(__file__).parents[2] / "toy_project"
Counting = Engine[Case, Any, Any, Any]
CASE = Case(suite="scale", name="even", op="scale", params={"size": 8})

KERNELS = """
from fusebench import kernel


@kernel("scale", "chain", version=1, role="split", language="triton")
def chain(x, *, factor=2.0): ...


@kernel("scale", "theirs", version=1, role="peer", language="cuda")
def theirs(x, *, factor=2.0): ...


@kernel("scale", "compiled", version=1, role="compiled", language="torch")
def compiled(x, *, factor=2.0): ...


@kernel("scale", "absent", version=1, role="fused", language="triton", requires=("no_such_module",))
def absent(x, *, factor=2.0): ...
"""


class Silent:
    """A reporter that keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, bool]] = []
        self.notes: list[str] = []

    def begin(self) -> None: ...
    def case(self, number: int, cases: int, case: Case, shape: str) -> None: ...
    def step(self, text: str, done: int = 0, total: int = 0) -> None: ...
    def result(self, result: object) -> None: ...
    def end(self) -> None: ...

    def line(self, text: str, *, failed: bool = False) -> None:
        self.lines.append((text, failed))

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    root = tmp_path / "kernels"
    shutil.copytree(TOY_PROJECT / "kernels", root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "scale" / "more.py").write_text(KERNELS)
    return load_collection([root], entry_points=False)


@pytest.fixture
def device(fake_gpu: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Device:
    monitor = fake_gpu()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml_backend, "open_monitor", lambda: monitor)
    return resolve_device("cuda")


@pytest.fixture
def engine(collection: Collection, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Counting]:
    """`engine({"scale/fast@2": outcome}, kernel="*")`: captures end as told, and are made otherwise."""

    def make(outcomes: dict[str, CaptureOutcome] | None = None, *, kernel: str | None = None) -> Counting:
        made = CaptureOutcome(status=CaptureStatus.CAPTURED, launches=(Launch(name="f", grid=(1, 1, 1), block=(32, 1, 1), metrics={}),))
        monkeypatch.setattr(counting, "capture", lambda case, kernel, **_: (outcomes or {}).get(kernel, made))
        settings = Settings(
            ncu="ncu", metric_set="quick", metrics=("gpu__time_duration.sum",), cache_control="all", silence_s=1.0, permission_remedy="",
            visible_device="",
        )  # fmt: skip
        options = CountingOptions(settings=settings, ncu_version="2025.3.1.0", kernel=kernel)
        context = Context(device, tmp_path, Silent())
        return Engine(CountingStrategy(context, collection, options, reports=tmp_path))

    return make


def statuses(engine: Counting) -> dict[str, CaptureStatus]:
    return {capture.kernel: capture.status for capture in engine.record().captures}


def test_by_default_the_projects_own_device_code_is_captured(collection: Collection) -> None:
    chosen = {str(kernel.id) for kernel in collection.kernels.values() if captured_by_default(kernel)}
    assert chosen == {"scale/fast@2", "scale/chain@1", "scale/absent@1"}


def test_a_library_that_is_missing_is_a_status_and_no_failure(engine: Callable[..., Counting]) -> None:
    one = engine()
    one.run([CASE])
    assert statuses(one) == {
        "scale/absent@1": CaptureStatus.NOT_RUNNABLE,
        "scale/chain@1": CaptureStatus.CAPTURED,
        "scale/fast@2": CaptureStatus.CAPTURED,
    }
    assert one.strategy.exit_code is ExitCode.PASS
    assert one.record().complete


def test_what_is_named_is_captured_whatever_it_is(engine: Callable[..., Counting]) -> None:
    one = engine(kernel="*")
    one.run([CASE])
    assert set(statuses(one)) == {f"scale/{name}" for name in ("absent@1", "chain@1", "compiled@1", "fast@2", "split@1", "theirs@1")}


@pytest.mark.parametrize(("kernel", "code"), [("scale/fast@2", ExitCode.KERNEL_FAILED), ("scale/theirs@1", ExitCode.PASS)])
@pytest.mark.parametrize("status", [CaptureStatus.FAILED, CaptureStatus.NO_LAUNCH])
def test_another_librarys_failure_is_not_this_projects(
    engine: Callable[..., Counting], kernel: str, code: ExitCode, status: CaptureStatus
) -> None:
    one = engine({kernel: CaptureOutcome(status=status, reason="planted")}, kernel="*")
    one.run([CASE])
    assert one.strategy.exit_code is code
    reporter = one.strategy.context.reporter
    assert isinstance(reporter, Silent)
    assert [text for text, failed in reporter.lines if failed] == [f"{kernel}  {status.value}  (planted)"]


def test_a_case_without_anything_to_capture_is_noted(engine: Callable[..., Counting]) -> None:
    one = engine(kernel="split@1")
    one.run([CASE])
    assert one.record().warnings == ()
    one = engine()
    one.strategy._chosen = lambda kernel: False  # type: ignore[method-assign]
    one.run([CASE])
    assert one.record().warnings == ("case scale:even: no kernel of scale is captured by default; name some with --kernel",)
    assert not one.begun


def test_names_of_reports_hold_nothing_that_a_file_system_minds(collection: Collection) -> None:
    case = Case(suite="s", name="a b/ü", op="scale", params={})
    assert report_name(3, case, collection.kernel("scale/fast@2"), "base") == "03_a_b___fast_v2_base.ncu-rep"


def test_a_capture_is_one_line() -> None:
    launch = Launch(name="f", grid=(1, 1, 1), block=(32, 1, 1), metrics={"gpu__time_duration.sum": 1500.0})
    one = Capture(
        case="c", suite="s", op="scale", kernel="scale/a@1", role=Role.FUSED, shape="8", revision="base", status=CaptureStatus.CAPTURED,
        minimum_bytes=64, launches=(launch, launch), seconds=3.4,
    )  # fmt: skip
    assert describe_capture(one) == "scale/a@1 (base)  captured  2 launches  3.00 us  in 3 s"
