"""A candidate in its process, as the judge sees it: what it declares, and which cases it takes at which shapes."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from ..evidence.targets import NoTargetError, target_of
from ..registry import Op
from ..runner.workers.checking import INTERPRETER_ROWS
from ..schema import Bitwise, KernelId
from ..schema.evaluation import Evaluation, EvaluationStatus, Stage
from . import stages
from .channel.protocol import CaseOpened, Describe, Described, Load, Loaded, OpenCase
from .channel.tasks import EvaluateTask, Step
from .compiled_code import Compiled, with_figures
from .failures import CandidateError
from .judging import CaseJudge, capped
from .patience import Limits, Patience
from .phases import ASK, IMPORT, OPS
from .process import KernelProcess

if TYPE_CHECKING:
    from .judge import Judge

LOAD_S = 120.0
"""Time without progress that a process gets to import its file."""
_DESCRIBE_S = 2.0


class LoadedCandidate:
    """One candidate in its process, for one task."""

    def __init__(
        self, judge: Judge, task: EvaluateTask, process: KernelProcess, source: bytes, *, report: Callable[[Step], None], deadline: float
    ) -> None:
        """
        Args:
            process: holds no candidate yet.
            source: the candidate's bytes.
            deadline: of the evaluation, as `time.monotonic` has it.
        """
        self._judge, self._task, self._process, self._report = judge, task, process, report
        self._request = Load(token="", op=task.op, file=task.file, source=source)
        self._limits = Limits(deadline)
        self._phases = self._limits.phases
        self._device = torch.device(task.device)
        self._rng = random.Random(secrets.randbits(128))
        with self._phases.timed(OPS):
            self._op: Op = judge.project(task).op(task.op)
            self._split = judge.project(task).kernel(f"{task.op}/{self._op.split_reference}")
        self._loaded: Loaded | None = None
        self._remarks: list[str] = []

    @property
    def _interpreted(self) -> bool:
        return self._device.type == "cpu" and self._loaded is not None and self._loaded.language == "triton"

    def _load(self) -> None:
        self._report(Step(text="load the candidate"))
        try:
            with self._phases.timed(IMPORT):
                self._loaded, _ = self._process.ask(self._request, Loaded, doing="its import", patience=self._limits.first(LOAD_S))
        except CandidateError as error:
            if error.status is EvaluationStatus.CRASHED and "exited with" in error.reason:
                raise CandidateError(EvaluationStatus.INVALID, error.reason) from error
            raise
        try:
            KernelId.parse(self._loaded.kernel)
        except ValueError as error:
            raise CandidateError(EvaluationStatus.HACKED, f"its process loaded no kernel: {error}") from error
        if reason := self._not_runnable(self._loaded):
            raise CandidateError(EvaluationStatus.UNSUPPORTED, reason)
        if fallback := self._process.timer_fallback:
            self._remarks.append(f"Timed by CUDA events, which add about 3 us to every call: {fallback}.")
        if self._interpreted and self._task.stage is not Stage.CHECK:
            self._remarks.append("A Triton kernel runs in the interpreter on a CPU: it was compared, not timed.")

    def _not_runnable(self, loaded: Loaded) -> str:
        return "CUDA C++ needs a GPU" if loaded.language == "cuda" and self._device.type == "cpu" else ""

    def _open(self, params: Any) -> tuple[CaseOpened, Any]:
        """Open the case in the candidate's process, at the shape that is compared."""
        opened = self._asked(params)
        if opened.declined is not None:
            return opened, params
        for smaller in self._smaller(params):
            if smaller != params and (small := self._asked(smaller)).declined is None:
                return small, smaller
        return self._asked(params), params

    def _smaller(self, params: Any) -> list[Any]:
        """Shapes to compare in place of the case's, best first."""
        if self._interpreted:
            return [self._op.shrink(params, INTERPRETER_ROWS), self._op.shrink(params, 16)]
        if self._task.stage is Stage.CHECK:
            return [stages.small(self._op, params, self._rng), self._op.shrink(params, 64)]
        return []

    def _with_code(self, evaluation: Evaluation) -> Evaluation:
        """`evaluation` with registers, spills and the time of compiling, where the process compiled kernels of Triton on a GPU."""
        if self._loaded is None or self._loaded.language != "triton" or self._device.type != "cuda" or not self._process.alive:
            return evaluation
        with suppress(CandidateError, NoTargetError), self._phases.timed(ASK):
            target = target_of("cuda", self._task.device_name, torch.cuda.get_device_capability(self._device))
            patience = Patience(time.monotonic() + _DESCRIBE_S)
            found, _ = self._process.ask(Describe(token=""), Described, doing="the description of its code", patience=patience)
            seconds = {step: round(us / 1e6, 3) for step, us in found.compile_us.items()}
            evaluation = msgspec.structs.replace(evaluation, kernels_compiled=found.compiled, compile_s=seconds)
            if found.launches:
                return with_figures(evaluation, Compiled(token="", launches=found.launches), target, on_cpu=False)
        return evaluation

    def _asked(self, params: Any) -> CaseOpened:
        request = OpenCase(token="", params=msgspec.to_builtins(params))
        with self._phases.timed(ASK):
            return self._process.ask(request, CaseOpened, doing="supports()", patience=self._limits.first())[0]

    def _judge_of(self, opened: CaseOpened, params: Any) -> CaseJudge:
        assert self._loaded is not None
        if opened.contract is None:
            raise CandidateError(EvaluationStatus.HACKED, "its process opened the case without a contract")
        whole = self._judge.project(self._task, all_kernels=isinstance(opened.contract, Bitwise))
        contract, target = capped(opened.contract, whole, self._op, params, self._device)
        return CaseJudge(
            self._process,
            self._op,
            params,
            kernel=self._loaded.kernel,
            language=self._loaded.language,
            contract=contract,
            split=self._split,
            target=target,
            device=self._device,
            limits=self._limits,
            takes=lambda other: self._asked(other).declined or True,
        )
