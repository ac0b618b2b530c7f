"""Shared by `eval` and its servers: from what is asked to a request, and from a request to the whole document."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from ...errors import DeviceUnfitError, FusebenchError, UsageError
from ...schema import Case
from ...schema.evaluation import Evaluation, EvaluationStatus, Stage

if TYPE_CHECKING:
    from ...device import Device
    from ...judge.compiled_code import Compilers
    from ...judge.evaluation import EvaluationRequest, Evaluator
    from ...runner.context import Reporter

MOST_SOURCE_BYTES = 2**20
"""A candidate of more than 1 MiB is refused: the largest kernel file of this repository has 20 kB."""
DEFAULT_SECONDS = {Stage.CHECK: 60.0, Stage.QUICK: 180.0, Stage.FINAL: 900.0}
"""Budget of an evaluation by stage; most end long before."""
MOST_COMPILING_S = {Stage.CHECK: 3.0, Stage.QUICK: 30.0, Stage.FINAL: 60.0}
"""Wait for a candidate's registers and spills once it is judged: most compile in a second, after the import of torch.  `check` must answer
soon, and compiles while the candidate is judged."""
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


class Judge(Protocol):
    """The part of `judge.evaluation.Evaluator` that the command and its servers need."""

    device: Device
    compilers: Compilers | None

    def evaluate(self, request: EvaluationRequest, reporter: Reporter | None = None) -> Evaluation: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class EvaluationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, as given on the command line or by a client."""

    op: str
    suite: Sequence[str] | None = None
    case: str | None = None
    stage: Stage = Stage.QUICK
    kernels: Sequence[Path] | None = None
    seconds: float | None = None
    memory_bytes: int | None = None

    def kept(self) -> tuple[str, ...]:
        """The options that the next command keeps."""
        words = [word for name in self.suite or () for word in ("--suite", name)]
        words += ["--case", self.case] if self.case is not None else []
        words += [word for folder in self.kernels or () for word in ("--kernels", str(folder))]
        return tuple(words)


class Catalogue:
    """The project's ops, loaded once for many requests; suites are read for each.  No kernel file is imported."""

    def __init__(self, kernels: Sequence[Path] | None = None) -> None:
        from .selection import load_project

        self._project, self._collection = load_project(kernels, load_kernels=False)

    @property
    def ops(self) -> list[str]:
        """Names of the ops, sorted."""
        return sorted(self._collection.ops)

    def select(self, options: EvaluationOptions) -> tuple[Case, ...]:
        """The cases that the options choose; without a suite, those of the suite of the op's name.

        Raises:
            UsageError: several ops.
            UnknownNameError: an op, suite or case that does not exist; the message names those that do.
        """
        from ...suites import load_suite, select_cases

        if "," in options.op:
            raise UsageError(f"--op {options.op}: found several ops, expected the one that the candidate declares")
        self._collection.op(options.op)
        suites = [load_suite(name, self._project, self._collection.ops) for name in options.suite or (options.op,)]
        return tuple(select_cases(suites, options.op, options.case))

    def keep(self) -> None:
        """Keep what was found out about the ops, so that the next command need not load them, and end the process that loaded them."""
        self._collection.keep()

    def request(self, file: Path, options: EvaluationOptions) -> EvaluationRequest:
        """The request for the candidate in `file`; raises as `select` does."""
        from ...judge.evaluation import EvaluationRequest

        return EvaluationRequest(
            roots=self._collection.roots,
            file=file,
            op=options.op,
            cases=self.select(options),
            stage=options.stage,
            seconds=options.seconds if options.seconds is not None else DEFAULT_SECONDS[options.stage],
            memory_bytes=options.memory_bytes,
        )


def begun_evaluator(spec: str, options: EvaluationOptions) -> Evaluator | None:
    """An evaluator whose processes start while the request is put together; None where the device or the project is not fit for one, or
    no folder has the name of the op.

    The reason is left to those who resolve them next.  Nothing starts on a device that another process of fusebench uses.
    """
    from ...config import find_project
    from ...device import device_lock, resolve_device
    from ...device.toolchain import require_torch_for
    from ...judge.evaluation import Evaluator
    from ...registry.collection import all_roots, may_define

    with suppress(FusebenchError):
        device = resolve_device(spec)
        require_torch_for(device)
        roots, _ = all_roots(find_project().kernels_with(options.kernels))
        if not any(may_define(root, options.op) for root in roots):
            return None
        evaluator = Evaluator(device)
        with suppress(DeviceUnfitError), device_lock(device):
            evaluator.expect(roots, options.stage, options.memory_bytes)
        return evaluator
    return None


def read_candidate(file: Path) -> bytes:
    """The bytes of a candidate.

    Raises:
        UsageError: there is no such file, it cannot be read, or it is too large to be one kernel.
    """
    try:
        if not file.is_file():
            found = "a folder" if file.is_dir() else "a pipe or a device" if file.exists() else "no such file"
            raise UsageError(f"{file}: found {found}, expected one Python file with a kernel; see docs/eval.md for an example")
        with file.open("rb") as stream:
            source = stream.read(MOST_SOURCE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise UsageError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error}); check its path and permissions") from error
    if len(source) > MOST_SOURCE_BYTES:
        raise UsageError(f"{file}: found over {MOST_SOURCE_BYTES} bytes, the most that a candidate may have; it is one kernel file")
    return source


def run_evaluation(
    judge: Judge, request: EvaluationRequest, options: EvaluationOptions, reporter: Reporter | None = None, *, shown: str | None = None
) -> Evaluation:
    """Judge the candidate, and complete the document: bounded texts, the next command.

    Args:
        shown: path of the candidate for the document, where `request.file` is a copy of it; empty if it has none.
    """
    from ...judge.advice import next_command
    from ...report.evaluation import bounded

    evaluation = _with_compiled_code(judge, request, reporter)
    evaluation = msgspec.structs.replace(evaluation, file=str(request.file) if shown is None else shown)
    command = next_command(evaluation, roots=request.roots, options=options.kept())
    return bounded(msgspec.structs.replace(evaluation, next_command=command))


def _with_compiled_code(judge: Judge, request: EvaluationRequest, reporter: Reporter | None) -> Evaluation:
    """The judgement, with registers and spills where the candidate came far enough."""
    from ...judge.compiled_code import JUDGED, CompiledCode, tells_itself

    began = time.monotonic()
    if request.stage is not Stage.CHECK or tells_itself(request, judge.device):  # nothing is compiled beside a clock
        evaluation = _locked(judge, request, reporter)
        if evaluation.status not in JUDGED or evaluation.registers is not None:
            return evaluation
        with CompiledCode(request, judge.device, judge.compilers) as compiled:
            return compiled.added_to(evaluation, wait_s=_left(request, began))
    with CompiledCode(request, judge.device, judge.compilers) as compiled:
        evaluation = _locked(judge, request, reporter)
        return compiled.added_to(evaluation, wait_s=_left(request, began)) if evaluation.status in JUDGED else evaluation


def _locked(judge: Judge, request: EvaluationRequest, reporter: Reporter | None) -> Evaluation:
    """The judgement while nothing else of fusebench uses the device; `unfit` if it stays in use for as long as the budget.

    On a CPU, comparisons disturb nobody, so only timed stages wait for one another.
    """
    from ...device import device_lock

    if judge.device.kind == "cpu" and request.stage is Stage.CHECK:
        return judge.evaluate(request, reporter)
    try:
        with device_lock(judge.device, wait_s=request.seconds, on_wait=reporter.note if reporter is not None else lambda _: None):
            return judge.evaluate(request, reporter)
    except DeviceUnfitError as error:
        return Evaluation(status=EvaluationStatus.UNFIT, reason=str(error), op=request.op, stage=request.stage, device=judge.device.name)


def _left(request: EvaluationRequest, began: float) -> float:
    """Seconds that compiling may still take."""
    return min(MOST_COMPILING_S[request.stage], max(0.0, request.seconds - (time.monotonic() - began)))


def all_devices() -> list[Device]:
    """Every visible GPU; the CPU where there is none."""
    from ...device import resolve_device
    from ...device.readings import GpuUnavailableError

    found = [resolve_device("auto")]
    while found[0].kind == "cuda":
        try:
            found.append(resolve_device(f"cuda:{len(found)}"))
        except GpuUnavailableError:
            break
    return found


def parse_bytes(given: str) -> int:
    """`8GiB`, `512MiB` or `1000000` in bytes.

    Raises:
        UsageError: another form, or fewer than 64 MiB, in which no Python process with torch starts.
    """
    digits = given.strip().rstrip("BbGgIiKkMm ")
    unit = given.strip()[len(digits) :].strip().upper()
    try:
        count = int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError) as error:
        raise UsageError(f"--memory {given}: expected a number of bytes, or one with MiB or GiB, for example 8GiB") from error
    if not 2**26 <= count < 2**63:
        raise UsageError(f"--memory {given}: expected at least 64MiB, which a process with torch needs to start")
    return count
