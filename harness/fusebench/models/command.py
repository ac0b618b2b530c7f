"""`fusebench model` from its request to a stored record: one process that measures all, and a fresh one that confirms the times."""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from ..config import Project
from ..device import Device, EnvironmentMonitor, environment_of
from ..errors import FusebenchError, MeasuringProcessError, UsageError
from ..runner.context import Reporter
from ..runner.session import Interruption, Outcome, ended_by, hold, signals_held
from ..schema import Estimate, ExitCode, Verdict, VerdictKind
from ..schema.models import MODEL_VERSION, Confirmation, LoopTime, ModelRecord, StepTime
from ..store.baselines import load_baseline
from ..store.files import require_writable
from ..store.finding import runs_folder
from ..store.model_folder import write_model
from .diffusion_model import DiffusionModel
from .measuring.explanation import explained
from .measuring.step_timing import ratio
from .process_main import MARK, REFUSED
from .variants import COMPILED, FUSED_COMPILED, GRAPH, parse_variant
from .work import LOOP, ModelTask, ModelWork

GAIN = 1.015
"""SGLang's rule: a change is accepted for a mean gain of 1.5 % or more."""
CHILD = ("-m", "fusebench.models.process_main")
"""Python's arguments for a measuring process."""
CONFIRMATION = "confirmation in a fresh process"
LOOK_EVERY_S = 0.1
"""Seconds between two looks at a measuring process."""
DEATH_S = 30.0
"""Seconds that a killed process may take to end: a GPU's driver frees its memory first."""
ANSWER_EXTRA_S = 1800.0
"""Seconds beyond the budget of timing after which a process counts as hung: building, compiling and drift take their time."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, where, and for how long."""

    project: Project
    model: DiffusionModel
    device: Device
    task: ModelTask
    confirm: bool = True
    wait_s: float = 0.0
    out: Path | None = None
    command: str = ""


class ModelOutcome(Outcome[ModelRecord], frozen=True, kw_only=True):
    """A record, whole or of a measurement that ended early, which is always written."""

    folder: Path


class Answer(NamedTuple):
    """What a measuring process found until it ended."""

    work: ModelWork
    interruption: Interruption | None = None
    """What ended it before it was done."""


def measure_model(request: ModelRequest, reporter: Reporter) -> ModelOutcome:
    """Measure, confirm, conclude and write; where it is ended early, conclude from what was measured and write that, marked incomplete.

    Ctrl-C and SIGTERM end the measuring process; they wait until the record is written.

    Raises:
        UsageError: what is asked for does not exist, or the folder takes no record.
        RunRecordError: the stored baseline cannot be read.
        DeviceUnfitError: the device is locked or busy.
        MeasuringProcessError: the first measuring process died before it had counted anything; its last words are in the message.
        KeyboardInterrupt: Ctrl-C or SIGTERM came before that.
    """
    began, created = time.monotonic(), datetime.now(UTC)
    parent = request.out if request.out is not None else runs_folder(request.project)
    require_writable(parent, instead="name another with --out DIR")
    cuda = request.device.kind == "cuda"
    # An unreadable baseline is found before any measurement, which it would otherwise lose.
    stored = load_baseline(request.project.results, request.device.name) if cuda else None
    environment = environment_of(request.device, request.project.root)
    with (
        hold(request.device, reporter, wait_s=request.wait_s) as warnings,
        EnvironmentMonitor(request.device) as monitor,
        signals_held() as received,
    ):
        first = _in_process(request.task, reporter, received)
        clocks = monitor.summary()
        # On a CPU, dispatch runs the split chains in the fused model too.
        confirmed = request.confirm and cuda
        confirmation, (done, interruption) = _confirmed(request, first, reporter, received) if confirmed else (None, first)
        missing = done.missing
        record = _record(request, done, confirmation, created=created)
        record = msgspec.structs.replace(
            record,
            environment=msgspec.to_builtins(environment),
            clocks=clocks,
            seconds=time.monotonic() - began,
            warnings=(*warnings, *done.notes),
            complete=not missing,
            missing=missing,
        )
        record = explained(record, stored)
        record = msgspec.structs.replace(record, exit_code=int(exit_code(record)))
        if interruption is not None:
            record = ended_by(record, interruption)
        folder = write_model(parent, record)
    if received and interruption is None:
        interruption = KeyboardInterrupt()
    kept = f"what was measured is kept, marked incomplete (missing: {', '.join(missing)})" if missing else "the whole record is kept"
    return ModelOutcome(record=record, folder=folder, interruption=interruption, kept=kept)


def _confirmed(request: ModelRequest, first: Answer, reporter: Reporter, received: Sequence[int]) -> tuple[Confirmation | None, Answer]:
    """The speedups of a fresh process, and the first process's answer: without them, they are missing in it, and a failure where the
    fresh process died.  Nothing is confirmed where fewer than two variants run."""
    done = first.work
    ran = request.task.variants if done.missing else tuple(one.variant for one in done.times if not one.error)
    if len(ran) < 2:
        return None, first
    lacking = msgspec.structs.replace(done, missing=(*done.missing, CONFIRMATION))
    if first.interruption is not None:
        return None, Answer(lacking, first.interruption)
    reporter.line("confirming in a fresh process")
    task = msgspec.structs.replace(request.task, confirm=True, variants=ran, budget_s=request.task.budget_s / 2)
    try:
        again = _in_process(task, reporter, received)
        if again.interruption is not None:
            raise again.interruption
    except KeyboardInterrupt as error:
        return None, Answer(lacking, error)
    except FusebenchError as error:  # it must not lose the times that were measured before
        return None, Answer(msgspec.structs.replace(lacking, failures=(*done.failures, f"confirmation: {error}")))
    return Confirmation(speedups=speedups_of(again.work.times)), first


def _record(request: ModelRequest, done: ModelWork, confirmation: Confirmation | None, *, created: datetime) -> ModelRecord:
    """The record with its conclusions, without the environment, how it went and the explanation."""
    comparable = request.device.kind == "cuda"
    return ModelRecord(
        version=MODEL_VERSION,
        id=secrets.token_hex(4),
        created=created.isoformat(timespec="seconds"),
        command=request.command,
        environment={},
        model=request.model.name,
        title=request.model.title,
        tiny=request.task.tiny,
        layers={name: int(count) for name, count in done.config.items()},
        full_layers={name: int(request.model.config[name]) for name in request.model.stacks},
        shapes=msgspec.to_builtins(request.model.tiny_shapes if request.task.tiny else request.model.shapes),
        dtype=request.task.dtype,
        weights=Path(request.task.weights).name if request.task.weights else "random",
        parameters=done.parameters,
        diffusers=importlib.metadata.version("diffusers"),
        calls=done.calls,
        findings=done.findings,
        times=done.times,
        gpu_times_absent=done.gpu_times_absent,
        loops=done.loops,
        whole=done.whole,
        confirmation=confirmation,
        breakdowns=done.breakdowns,
        drift=done.drift,
        verdicts=conclude(done.times, confirmation, comparable=comparable, loops=done.loops),
        acceptance=accepted(done.times) if comparable else {},
        failures=done.failures,
    )


PAIRS = {f"{FUSED_COMPILED}{graph} against {COMPILED}{graph}": (FUSED_COMPILED + graph, COMPILED + graph) for graph in ("", GRAPH)}
"""The variants with fused ops inside torch.compile that are held against torch.compile alone, by the verdict's name."""


def speedups_of(times: Sequence[StepTime]) -> dict[str, Estimate]:
    """Each variant's speedup over `split` by its name, and those of PAIRS, paired by round."""
    found = {one.variant: one.speedup for one in times if one.speedup is not None}
    rounds = {one.variant: one.rounds_ms for one in times if one.rounds_ms}
    return found | {name: ratio(rounds[old], rounds[new]) for name, (new, old) in PAIRS.items() if new in rounds and old in rounds}


def accepted(times: Sequence[StepTime]) -> dict[str, bool]:
    """SGLang's rule by variant: whether the mean gain over the rounds, each in ABBA order, is 1.5 % or more."""
    return {one.variant: one.speedup.value >= GAIN for one in times if one.speedup is not None}


def conclude(
    times: Sequence[StepTime], confirmation: Confirmation | None, *, comparable: bool, loops: Sequence[LoopTime] = ()
) -> dict[str, Verdict]:
    """Verdicts of each variant against `split` by its name, of PAIRS, and of the denoise loop.

    The first process and the confirming one must agree; the loop runs in the first one alone.  Variants without fused ops are advisory,
    and so is the loop: their verdicts decide no exit code.

    Args:
        comparable: whether fused kernels can run on the device at all.
    """
    verdicts = {one.variant: Verdict(kind=VerdictKind.ERROR, reason=one.error) for one in times if one.error}
    found = speedups_of(times)
    if not comparable:
        reason = "on a CPU the fused model runs the split chains through dispatch, so its time tells nothing of fused kernels"
        return verdicts | {name: Verdict(kind=VerdictKind.INCOMPARABLE, reason=reason, gating=False) for name in found}
    again = confirmation.speedups if confirmation is not None else {}
    for name, speedup in found.items():
        gating = name in PAIRS or parse_variant(name).fused
        verdicts[name] = _verdict(speedup, again.get(name), gating=gating)
    for loop in loops:
        if loop.speedup is not None:
            told = _verdict(loop.speedup, None, gating=False)
            reason = f"{loop.steps} steps with {loop.variant}: {told.reason}"
            verdicts[LOOP] = msgspec.structs.replace(told, reason=reason)
    return verdicts


def _verdict(speedup: Estimate, again: Estimate | None, *, gating: bool) -> Verdict:
    found = [speedup] if again is None else [speedup, again]
    change = Estimate(1 / speedup.value, 1 / speedup.high if speedup.high else 0.0, 1 / speedup.low if speedup.low else float("inf"))
    text = f"{speedup.value:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}] in one process"
    text += f", {again.value:.3f}x [{again.low:.3f}, {again.high:.3f}] in a fresh one" if again is not None else ", not confirmed"
    if all(one.low > 1 for one in found):
        return Verdict(kind=VerdictKind.IMPROVEMENT, reason=text, change=change, gating=gating)
    if all(one.high < 1 for one in found):
        return Verdict(kind=VerdictKind.REGRESSION, reason=text, change=change, gating=gating)
    return Verdict(kind=VerdictKind.UNDECIDED, reason=text, change=change, gating=gating)


def exit_code(record: ModelRecord) -> ExitCode:
    """5 for a substitution, a variant or a part that fails, 1 for slower steps or drift, 4 for what stays undecided or is incomplete."""
    kinds = {verdict.kind for verdict in record.verdicts.values() if verdict.gating}
    drift = {record.drift.verdict.kind} if record.drift is not None else set()
    if record.findings or record.failures or VerdictKind.ERROR in kinds:
        return ExitCode.KERNEL_FAILED
    if VerdictKind.REGRESSION in kinds | drift:
        return ExitCode.REGRESSION
    return ExitCode.UNDECIDED if VerdictKind.UNDECIDED in kinds | drift or not record.complete else ExitCode.PASS


def _in_process(task: ModelTask, reporter: Reporter, received: Sequence[int]) -> Answer:
    """Have a fresh process do the task; it is ended when a signal stands in `received`.

    It has a session of its own: a Ctrl-C of the terminal is for the command alone, which ends it when its answer is no longer written.

    Raises:
        FusebenchError: it refused the task, or ended without anything to keep.
        KeyboardInterrupt: a signal came before there was anything to keep.
    """
    limit_s = task.budget_s + ANSWER_EXTRA_S
    with tempfile.TemporaryDirectory(prefix="fusebench-model-", ignore_cleanup_errors=True) as folder:
        asked, answer = Path(folder) / "task.json", Path(folder) / "answer.json"
        asked.write_bytes(msgspec.json.encode(task))
        command = [sys.executable, *CHILD, str(asked), str(answer)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        last: list[str] = []
        follower = threading.Thread(target=_follow, args=(process.stderr, reporter, last), daemon=True)
        follower.start()
        ends = time.monotonic() + limit_s
        try:
            status = process.poll()
            while status is None and not received and time.monotonic() < ends:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(LOOK_EVERY_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started, such as compilers
            with suppress(subprocess.TimeoutExpired):
                process.wait(DEATH_S)
            follower.join(timeout=5)
        said = " | ".join(last[-5:]) or "nothing on stderr"
        lacks = "a whole answer" if answer.exists() else "an answer"
        interruption: Interruption | None = None
        if received:
            interruption = KeyboardInterrupt()
        elif status is None:
            interruption = MeasuringProcessError(f"the measuring process went on for {limit_s:.0f} s without {lacks}: {said}")
        elif status:
            interruption = MeasuringProcessError(f"the measuring process ended with status {status} and without {lacks}: {said}")
        return _read(answer, interruption)


def _read(answer: Path, interruption: Interruption | None) -> Answer:
    """The answer so far; whole, whatever ended the process, when nothing is missing in it."""
    try:
        content = answer.read_bytes()
    except FileNotFoundError:
        raise interruption or MeasuringProcessError("the measuring process ended with status 0 and without an answer") from None
    found: Mapping[str, Any] = msgspec.json.decode(content)
    if REFUSED in found:
        kind = UsageError if found.get("exit_code") == ExitCode.USAGE else FusebenchError
        raise kind(found[REFUSED])
    work = msgspec.json.decode(content, type=ModelWork, strict=False)  # "inf" is a number
    if not work.missing and not isinstance(interruption, KeyboardInterrupt):
        return Answer(work)
    return Answer(work, interruption or MeasuringProcessError("the measuring process ended with status 0 and without a whole answer"))


def _follow(stream: IO[str] | None, reporter: Reporter, last: list[str]) -> None:
    for line in stream or ():
        if line.startswith(MARK):
            reporter.line(line.removeprefix(MARK).rstrip())
        else:
            last.append(line.rstrip()[:500])
            del last[:-20]
