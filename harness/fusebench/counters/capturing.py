"""Captures one kernel on one case under Nsight Compute: a process, a report file, and the values in it."""

from __future__ import annotations

import csv
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from ..device import Device
from ..device.nsight import NsightProbe, denies_permission, permission_remedy
from ..device.triton_programs import assembler_environment
from ..errors import DeviceUnfitError, FusebenchError, UsageError
from ..schema import CacheState, Case, ExitCode
from .command import Ended, capture_command, import_command, query_command, run_watched
from .metric_sets import missing, wanted
from .raw_csv import CounterTableError, parse_raw_page
from .records import CaptureStatus, Launch
from .task import Called, CaptureTask, Doing, Message, Raised, read_messages

IMPORT_SILENCE_S = 120.0
"""Reading a report takes a second or two; a cold network disk takes longer."""


class CounterReportError(UsageError):
    """The file is no Nsight Compute report, or this version cannot read it."""


class NcuError(FusebenchError):
    """Nsight Compute ended without the requested result."""

    exit_code = ExitCode.KERNEL_FAILED


class PermissionDeniedError(DeviceUnfitError):
    """The driver does not let this process read performance counters."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics to read of every kernel, and the conditions."""

    ncu: str
    metric_set: str
    metrics: tuple[str, ...]
    cache_control: str
    silence_s: float
    """Seconds without a sign of life after which a capture is ended."""
    permission_remedy: str
    visible_device: str
    """Value of CUDA_VISIBLE_DEVICES, so that the process sees one GPU; empty leaves the variable as it is."""
    device: str = "cuda:0"


def settings_for(
    device: Device, probe: NsightProbe, *, metric_set: str, metrics: tuple[str, ...], cache: CacheState, silence_s: float
) -> Settings:
    """Settings for captures on `device` with the probe's program; with a cold cache Nsight Compute flushes it before every pass."""
    return Settings(
        ncu=probe.path,
        metric_set=metric_set,
        metrics=metrics,
        cache_control="all" if cache is CacheState.COLD else "none",
        silence_s=silence_s,
        permission_remedy=permission_remedy(probe),
        visible_device=device.uuid,
    )


class CaptureOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one capture."""

    status: CaptureStatus
    reason: str = ""
    launches: tuple[Launch, ...] = ()
    warnings: tuple[str, ...] = ()


def capture(
    case: Case,
    kernel: str,
    *,
    roots: Sequence[Path],
    kernel_roots: Sequence[Path],
    settings: Settings,
    report: Path,
    excluded: Mapping[str, str] | None = None,
    on_step: Callable[[str], None] = lambda what: None,
) -> CaptureOutcome:
    """Profile one call of `kernel` on `case`, and read its counters.

    Args:
        roots: kernels folders that define the op.
        kernel_roots: kernels folders that hold the kernel.
        excluded: files that are not imported, each with the reason.
        report: the `.ncu-rep` file to write; it stays whenever Nsight Compute wrote one.
        on_step: called with the name of each step when it begins.

    Raises:
        PermissionDeniedError: the driver refuses to read counters; the message has the remedy.
    """
    with tempfile.TemporaryDirectory(prefix="fusebench_ncu_") as scratch:
        diary, file = Path(scratch) / "diary", Path(scratch) / "task.json"
        task = CaptureTask(
            case=case,
            kernel=kernel,
            roots=tuple(map(str, roots)),
            kernel_roots=tuple(map(str, kernel_roots)),
            device=settings.device,
            seed=secrets.randbits(31),
            diary=str(diary),
            excluded=dict(excluded or {}),
        )
        file.write_bytes(msgspec.json.encode(task))
        command = capture_command(
            settings.ncu,
            report=report,
            metric_set=settings.metric_set,
            metrics=settings.metrics,
            cache_control=settings.cache_control,
            task=file,
        )

        def listen() -> int:
            messages = read_messages(diary)
            on_step(_doing(messages))
            return len(messages)

        ended = run_watched(command, _environment(settings), silence_s=settings.silence_s, signs_of_life=listen)
        messages = read_messages(diary)
    if denies_permission(ended.said):
        raise PermissionDeniedError(f"Nsight Compute may not read performance counters (ERR_NVGPUCTRPERM); {settings.permission_remedy}")
    failure = _failure(ended, messages, settings)
    if failure:
        return CaptureOutcome(status=CaptureStatus.FAILED, reason=failure)
    if not report.is_file():
        return _without_report(ended)
    on_step("reading the report")
    return _read(report, settings, kernel, case)


def read_report(ncu: str, report: Path, metrics: Sequence[str]) -> tuple[Launch, ...]:
    """The launches in a report, with the available ones of `metrics`.

    Raises:
        CounterReportError: the file is missing, or is no report that this `ncu` reads.
        CounterTableError: Nsight Compute printed the report in an unknown form.
    """
    if not report.is_file():
        raise CounterReportError(f"{report}: no such file; expected a .ncu-rep file that `fusebench ncu` or `ncu --export` wrote")
    ended = run_watched(import_command(ncu, report), os.environ, silence_s=IMPORT_SILENCE_S)
    if ended.code != 0:
        raise CounterReportError(
            f"{report}: not an Nsight Compute report that {ncu} can read: {_complaints(ended.said) or _how(ended)}; "
            "expected a .ncu-rep file that `fusebench ncu` or `ncu --export` wrote, with no newer version"
        )
    return parse_raw_page(ended.said, lambda name: wanted(name, metrics))


def listed_metrics(settings: Settings) -> frozenset[str]:
    """Names of the GPU's counters, without suffixes.

    Raises:
        NcuError: Nsight Compute does not list them.
        PermissionDeniedError: the driver refuses to read counters.
    """
    ended = run_watched(query_command(settings.ncu), _environment(settings), silence_s=settings.silence_s)
    if denies_permission(ended.said):
        raise PermissionDeniedError(f"Nsight Compute may not read performance counters (ERR_NVGPUCTRPERM); {settings.permission_remedy}")
    names = frozenset(row[0] for row in csv.reader(ended.said.splitlines()) if len(row) > 1 and "__" in row[0])
    if ended.code != 0 or not names:
        said = _complaints(ended.said) or _how(ended)
        raise NcuError(f"Nsight Compute does not list this GPU's metrics: {said}; run `{settings.ncu} --query-metrics` by hand to see why")
    return names


def _read(report: Path, settings: Settings, kernel: str, case: Case) -> CaptureOutcome:
    try:
        launches = read_report(settings.ncu, report, settings.metrics)
    except (CounterReportError, CounterTableError) as error:
        return CaptureOutcome(status=CaptureStatus.FAILED, reason=str(error))
    if not launches:
        return CaptureOutcome(status=CaptureStatus.NO_LAUNCH, reason="the report holds no launch")
    warnings = tuple(
        f"{kernel} on {case.key}: launch {number} ({launch.name}) has no value of {', '.join(absent)}"
        for number, launch in enumerate(launches, start=1)
        if (absent := missing(settings.metrics, launch.metrics))
    )
    return CaptureOutcome(status=CaptureStatus.CAPTURED, launches=launches, warnings=warnings)


def _failure(ended: Ended, messages: Sequence[Message], settings: Settings) -> str:
    """The reason why the profiled process or Nsight Compute failed; empty if both ended well."""
    if ended.code is None:
        started = "Nsight Compute gave no result" if messages else "Nsight Compute did not start the process"
        lock = "" if messages else " (another Nsight Compute may hold the lock file in TMPDIR)"
        return f"{started} within {settings.silence_s:g} s while {_doing(messages)}{lock}; raise --kernel-timeout if it is only slow"
    last = messages[-1] if messages else None
    if isinstance(last, Raised):
        return last.reason
    if not isinstance(last, Called):
        return f"the process ended while {_doing(messages)}: {_complaints(ended.said) or _how(ended)}"
    errors = _complaints(ended.said)
    if ended.code != 0:
        return f"Nsight Compute failed: {errors or _how(ended)}"
    return f"Nsight Compute failed: {errors}" if errors else ""


def _without_report(ended: Ended) -> CaptureOutcome:
    if "No kernels were profiled" in ended.said:
        return CaptureOutcome(status=CaptureStatus.NO_LAUNCH, reason="the call launched nothing on the GPU")
    return CaptureOutcome(status=CaptureStatus.FAILED, reason=f"Nsight Compute wrote no report: {_complaints(ended.said) or _how(ended)}")


def _doing(messages: Sequence[Message]) -> str:
    return next((message.what for message in reversed(messages) if isinstance(message, Doing)), "starting under Nsight Compute")


def _complaints(said: str) -> str:
    """Nsight Compute's own errors, on one line."""
    errors = [line.removeprefix("==ERROR==").strip() for line in said.splitlines() if line.startswith("==ERROR==")]
    return " ".join(errors)


def _how(ended: Ended) -> str:
    last = " ".join(re.sub(r"^==\w+==.*$", "", ended.said, flags=re.MULTILINE).split())[-300:]
    words = f"; it last said: {last}" if last else ""
    return f"it ended with exit code {ended.code}{words}" if ended.code is not None else f"it fell silent{words}"


def _environment(settings: Settings) -> dict[str, str]:
    environment = {**os.environ, **assembler_environment()}
    if settings.visible_device:
        environment["CUDA_VISIBLE_DEVICES"] = settings.visible_device
    return environment
