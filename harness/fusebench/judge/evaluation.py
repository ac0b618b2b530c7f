"""One evaluation, from a request to its document."""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from ..errors import UsageError
from ..schema import Case
from ..schema.evaluation import Evaluation, EvaluationStatus, Stage
from .channel.protocol import Channel, ChannelClosedError, ChannelTimeoutError
from .channel.tasks import REPORTS, EvaluateTask, Expect, Finished, Step, Unable
from .compiled_code import Compilers
from .confinement.process_tree import ORIGIN_VARIABLE, kill_starter, remove_folder
from .phases import BEFORE

if TYPE_CHECKING:
    from ..device.select import Device
    from ..runner.context import Reporter


GRACE_S = 10.0
"""Time beyond the budget after which the judge itself counts as hung."""
STOP_S = 5.0


class EvaluationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to judge, and how much it may cost."""

    roots: tuple[Path, ...]
    """Kernel folders of the project, whose ops, references and split chains are trusted."""
    file: Path
    """The candidate: read once, digested, and judged as a module of the op's folder. It is never imported by the caller."""
    op: str
    cases: tuple[Case, ...]
    """Cases that the user selected; the stage draws from them."""
    stage: Stage
    seconds: float
    """Wall time of the whole evaluation."""
    memory_bytes: int | None = None
    """Host memory that the candidate's processes may take; None for the judge's default."""


class Evaluator:
    """Judges one candidate after another on one device; the judge's and the baseline's processes stay alive in between.

    Candidates are always fresh processes.  Not thread-safe: one evaluation at a time.  `close` ends every process; `stop`, from another
    thread or a signal handler, ends the candidate of the evaluation in progress, which then ends as `undecided`.
    """

    def __init__(self, device: Device, *, keep: bool = False) -> None:
        """
        Args:
            keep: whether several evaluations will follow one another; a candidate's processes are then started ahead of each.
        """
        self.device = device
        self._keep = keep
        self.compilers = Compilers() if keep else None
        """Where registers and spills come from; None to start a process for each candidate."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._stopped = False
        self._folder: Path | None = None
        self._origin = secrets.token_hex(8)

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def expect(self, roots: Iterable[Path], stage: Stage, memory_bytes: int | None) -> None:
        """Start what a request of this kind needs, if it has not been started: its processes import torch while the rest is found out."""
        with suppress(ChannelClosedError):  # `evaluate` starts a judge that has ended again
            self._started().send(
                Expect(
                    roots=tuple(str(root.resolve()) for root in roots),
                    stage=stage,
                    memory_bytes=memory_bytes,
                    device=self.device.torch_name,
                )
            )

    def evaluate(self, request: EvaluationRequest, reporter: Reporter | None = None) -> Evaluation:
        """Judge one candidate; never raises for what the candidate does.

        Raises:
            UsageError: the project's own op or kernels cannot be loaded.
        """
        began = time.monotonic()
        self._stopped = False
        task = EvaluateTask(
            roots=tuple(str(root.resolve()) for root in request.roots),
            file=str(request.file.resolve()),
            shown=str(request.file),
            op=request.op,
            cases=request.cases,
            stage=request.stage,
            seconds=request.seconds,
            memory_bytes=request.memory_bytes,
            device=self.device.torch_name,
            device_name=self.device.name,
            keep=self._keep,
        )
        channel = self._started()
        try:
            channel.send(task)
            while True:
                message = channel.receive(REPORTS, deadline=began + request.seconds + GRACE_S)
                if isinstance(message, Finished):
                    found = message.evaluation
                    before = max(0.0, time.monotonic() - began - found.spent_s)
                    return msgspec.structs.replace(found, phases_s={**found.phases_s, BEFORE: round(before, 3)})
                if isinstance(message, Unable):
                    raise UsageError(message.reason)
                if reporter is not None:
                    _tell(reporter, message, request)
        except ChannelClosedError:
            stopped = self._stopped
            code = self._end()
            status = EvaluationStatus.UNDECIDED if stopped else EvaluationStatus.UNFIT
            reason = "the evaluation was stopped" if stopped else f"the judge's process ended (exit status {code}) while the candidate ran"
        except ChannelTimeoutError:
            self.close()
            status, reason = EvaluationStatus.UNDECIDED, "the budget ended first; raise --budget"
        digest = hashlib.sha256(request.file.read_bytes()).hexdigest()
        return Evaluation(
            status=status,
            reason=reason,
            op=request.op,
            stage=request.stage,
            device=self.device.name,
            file=str(request.file),
            file_sha256=digest,
            spent_s=time.monotonic() - began,
        )

    def stop(self) -> None:
        """End the evaluation in progress."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()  # it ends the candidate, and `evaluate` finds its pipe closed

    def close(self) -> None:
        """End every process, and remove what they wrote."""
        self._end()
        if self.compilers is not None:
            self.compilers.close()

    def _end(self) -> int | None:
        """The same; returns the judge's exit status, None if it did not run."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        code = None
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            code = kill_starter(self._process, self._origin)
            self._process = None
        if self._folder is not None:
            remove_folder(self._folder)
            self._folder = None
        return code

    def _started(self) -> Channel:
        """The pipe to the judge's process, which is started where it does not run."""
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._channel is None or self._process is None:
            to_judge, from_here = os.pipe()
            to_here, from_judge = os.pipe()
            harness = str(Path(__file__).parents[2])
            # Scratch folders lie in one that outlives the judge, so that none is left if it is killed.
            self._folder = Path(tempfile.mkdtemp(prefix="fusebench-judge-"))
            environment = os.environ | {"PYTHONPATH": harness, "PYTHONSAFEPATH": "1", "TMPDIR": str(self._folder)}
            environment[ORIGIN_VARIABLE] = self._origin
            if self.device.kind == "cpu":
                environment["TRITON_INTERPRET"] = "1"  # a bitwise target may be a Triton kernel
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fusebench.judge.judge_main", str(to_judge), str(from_judge), self.device.torch_name],
                pass_fds=(to_judge, from_judge),
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=environment,
                start_new_session=True,
            )
            os.close(to_judge)
            os.close(from_judge)
            self._channel = Channel(to_here, from_here)
        return self._channel


def _tell(reporter: Reporter, step: Step, request: EvaluationRequest) -> None:
    if step.case:
        reporter.line(f"[{step.case}/{step.cases}] {step.text}")
    else:
        reporter.step(step.text, step.done, step.total)


def evaluate(request: EvaluationRequest, device: Device, reporter: Reporter | None = None) -> Evaluation:
    """One evaluation by an `Evaluator` of its own."""
    with Evaluator(device) as evaluator:
        return evaluator.evaluate(request, reporter)
