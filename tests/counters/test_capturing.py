"""One capture, by an Nsight Compute that is a script: what is asked of it, what is read, and how each failure is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fusebench.counters.capturing import (
    CaptureOutcome,
    CounterReportError,
    NcuError,
    PermissionDeniedError,
    Settings,
    capture,
    listed_metrics,
    read_report,
)
from fusebench.counters.metric_sets import ALWAYS, SETS, MetricSet
from fusebench.counters.records import CaptureStatus
from fusebench.errors import DeviceUnfitError
from fusebench.schema import Case

CASE = Case(suite="scale", name="even", op="scale", params={"size": 8})
KERNEL = "scale/fast@2"


def settings(fake_ncu: Any, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "ncu": str(fake_ncu.path),
        "metric_set": "quick",
        "metrics": SETS[MetricSet.QUICK],
        "cache_control": "all",
        "silence_s": 30.0,
        "permission_remedy": "ask the administrator",
        "visible_device": "GPU-1234",
    }
    return Settings(**values | changes)


def captured(fake_ncu: Any, tmp_path: Path, *, steps: list[str] | None = None, **changes: Any) -> CaptureOutcome:
    return capture(
        CASE,
        KERNEL,
        roots=[tmp_path],
        kernel_roots=[tmp_path],
        settings=settings(fake_ncu, **changes),
        report=tmp_path / "one.ncu-rep",
        on_step=(steps if steps is not None else []).append,
    )


def test_a_capture_keeps_the_report_and_the_values_that_were_asked_for(fake_ncu: Any, tmp_path: Path) -> None:
    steps: list[str] = []
    outcome = captured(fake_ncu, tmp_path, steps=steps)
    assert (outcome.status, outcome.reason, outcome.warnings) == (CaptureStatus.CAPTURED, "", ())
    assert (tmp_path / "one.ncu-rep").is_file()
    (launch,) = outcome.launches
    assert set(launch.metrics) == {*SETS[MetricSet.QUICK], *ALWAYS}
    assert launch.metrics["launch__registers_per_thread"] == 96
    assert steps[-1] == "reading the report"


def test_a_chain_keeps_its_launches_in_order(fake_ncu: Any, tmp_path: Path) -> None:
    fake_ncu.behave(kernels={KERNEL: {"rows": [3, 4]}})
    assert [launch.name for launch in captured(fake_ncu, tmp_path).launches] == ["_modulated_norm", "_select01"]


def test_what_is_asked_of_nsight_compute(fake_ncu: Any, tmp_path: Path) -> None:
    captured(fake_ncu, tmp_path)
    profile, read = fake_ncu.calls
    arguments = profile["arguments"]
    assert profile["visible"] == "GPU-1234", "the process sees the one GPU"
    for option, value in (("--profile-from-start", "off"), ("--clock-control", "none"), ("--cache-control", "all")):
        assert arguments[arguments.index(option) + 1] == value
    assert arguments[arguments.index("--metrics") + 1] == ",".join(SETS[MetricSet.QUICK])
    assert "--set" not in arguments
    assert arguments[-3:-1] == ["-m", "fusebench.counters.child"]
    assert read["arguments"] == ["--import", str(tmp_path / "one.ncu-rep"), "--page", "raw", "--csv", "--print-units", "base"]


def test_the_full_set_adds_nsight_computes_own(fake_ncu: Any, tmp_path: Path) -> None:
    captured(fake_ncu, tmp_path, metric_set="full", metrics=SETS[MetricSet.FULL], cache_control="none")
    arguments = fake_ncu.calls[0]["arguments"]
    assert arguments[arguments.index("--set") + 1] == "full"
    assert arguments[arguments.index("--cache-control") + 1] == "none"


def test_a_metric_without_a_value_is_a_warning_that_names_it(fake_ncu: Any, tmp_path: Path) -> None:
    names = ("gpu__time_duration.sum", "lts__t_requests.sum")
    outcome = captured(fake_ncu, tmp_path, metric_set="named", metrics=names)
    assert outcome.status is CaptureStatus.CAPTURED
    assert outcome.warnings == ("scale/fast@2 on scale:even: launch 1 (_select01) has no value of lts__t_requests.sum",)


def test_a_kernel_that_raises_fails_with_its_own_words(fake_ncu: Any, tmp_path: Path) -> None:
    fake_ncu.behave(kernels={KERNEL: {"raises": "ValueError: no such thing (fast.py, line 8)"}})
    outcome = captured(fake_ncu, tmp_path)
    assert (outcome.status, outcome.reason) == (CaptureStatus.FAILED, "ValueError: no such thing (fast.py, line 8)")


def test_a_process_that_dies_fails_with_what_it_was_doing(fake_ncu: Any, tmp_path: Path) -> None:
    fake_ncu.behave(kernels={KERNEL: {"dies": True}})
    outcome = captured(fake_ncu, tmp_path)
    assert outcome.status is CaptureStatus.FAILED
    assert "ended while compiling and calling it for the first time" in outcome.reason
    assert "exit code 139" in outcome.reason


@pytest.mark.parametrize(
    ("when", "said"), [("after", "while compiling and calling it"), ("before", "did not start the process.*lock file in TMPDIR")]
)
def test_a_silence_is_told_with_what_was_waited_for(fake_ncu: Any, tmp_path: Path, when: str, said: str) -> None:
    fake_ncu.behave(kernels={KERNEL: {"hangs": when}})
    outcome = captured(fake_ncu, tmp_path, silence_s=0.5)
    assert outcome.status is CaptureStatus.FAILED
    assert re.search(said, outcome.reason), outcome.reason
    assert "--kernel-timeout" in outcome.reason


def test_errors_of_nsight_compute_itself_are_its_own(fake_ncu: Any, tmp_path: Path) -> None:
    fake_ncu.behave(kernels={KERNEL: {"fails": "Failed to prepare kernel for profiling"}})
    outcome = captured(fake_ncu, tmp_path)
    assert (outcome.status, outcome.reason) == (CaptureStatus.FAILED, "Nsight Compute failed: Failed to prepare kernel for profiling")


def test_a_call_that_launches_nothing_is_said_to(fake_ncu: Any, tmp_path: Path) -> None:
    fake_ncu.behave(kernels={KERNEL: {"no_launch": True}})
    assert captured(fake_ncu, tmp_path).status is CaptureStatus.NO_LAUNCH


def test_a_report_that_cannot_be_read_fails_the_capture(fake_ncu: Any, tmp_path: Path) -> None:
    fake_ncu.behave(kernels={KERNEL: {"truncated": True}})
    outcome = captured(fake_ncu, tmp_path)
    assert outcome.status is CaptureStatus.FAILED
    assert "not an Nsight Compute report" in outcome.reason


def test_a_refusal_by_the_driver_ends_everything_with_the_remedy(fake_ncu: Any, tmp_path: Path) -> None:
    fake_ncu.behave(forbidden=True)
    with pytest.raises(PermissionDeniedError, match=r"ERR_NVGPUCTRPERM.*ask the administrator") as caught:
        captured(fake_ncu, tmp_path)
    assert isinstance(caught.value, DeviceUnfitError)


def test_a_file_that_is_no_report_is_refused(fake_ncu: Any, tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("# not a report\n")
    with pytest.raises(CounterReportError, match=r"README.md: not an Nsight Compute report.*not an Nsight Compute profiler report"):
        read_report(str(fake_ncu.path), file, ())
    with pytest.raises(CounterReportError, match="no such file"):
        read_report(str(fake_ncu.path), tmp_path / "gone.ncu-rep", ())


def test_the_gpus_own_metrics_are_listed(fake_ncu: Any) -> None:
    assert "lts__t_requests" in listed_metrics(settings(fake_ncu))
    fake_ncu.behave(query_error="No supported GPU")
    with pytest.raises(NcuError, match="No supported GPU"):
        listed_metrics(settings(fake_ncu))


def test_nothing_is_left_in_the_temporary_folder(fake_ncu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    captured(fake_ncu, tmp_path)
    assert list(scratch.iterdir()) == []
