"""A judge's view of a kernel without a second process: the batch code of the candidate's process, called directly."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import torch
from torch.utils._python_dispatch import _disable_current_modes

from fusebench.judge.candidate import tampering
from fusebench.judge.candidate.calling import Caller
from fusebench.judge.candidate.tampering import Tampering
from fusebench.judge.channel.protocol import Batch, CaseOpened, Inspect
from fusebench.judge.channel.region import Region
from fusebench.judge.evaluating import Evaluating
from fusebench.judge.failures import CandidateError, status_of
from fusebench.judge.judging import CaseJudge
from fusebench.judge.patience import Limits, Patience
from fusebench.registry import Collection, Kernel, Op, load_collection
from fusebench.schema import Case, Close, Contract, KernelId, Language, Role
from fusebench.schema.evaluation import EvaluationStatus, Stage

TOY = Path(__file__).parents[1] / "toy_project" / "kernels"
KERNELS = Path(__file__).parents[2] / "kernels"
SHIPPED = load_collection([KERNELS], kernels=False, entry_points=False)
CPU = torch.device("cpu")


def in_place(x: torch.Tensor, *, factor: float = 2.0) -> None:
    x.mul_(factor)


def fresh(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def tampering_seen() -> Tampering:
    """The check of a candidate's process, which has fewer modules than this one: here it read ten thousand functions after each batch.

    Hooks of the interpreter are left to `candidate/test_tampering.py`: each would stay in this process for ever.
    """
    own = {name: module for name, module in sys.modules.items() if name.startswith("fusebench.judge.candidate")}
    with mock.patch.object(tampering, "sys", SimpleNamespace(modules=own, addaudithook=lambda hook: None)):
        return Tampering()


class SameProcess:
    """Answers batches as `KernelProcess` does, in this process."""

    def __init__(self, kernel: Kernel, op: Any) -> None:
        self.region = Region.make()
        self.marks: list[float] = []
        self.confined = True
        self.batches: list[Batch] = []
        self._theirs = Region(self.region.fd, self.region.nbytes)
        self._caller = Caller(kernel, op, CPU, tampering_seen(), cuda=None, mark=lambda token: None)

    def cpu_ns(self) -> int:
        return time.process_time_ns()

    def ask(self, request: Any, kind: Any, *, doing: str, patience: Patience) -> Any:
        if isinstance(request, Inspect):
            with _disable_current_modes():
                return self._caller.inspect(request), 0.0
        self.batches.append(request)
        began = time.perf_counter()
        try:
            with _disable_current_modes():  # the gate's own poison, which another process would not see
                answer = self._caller.run(request, self._theirs)
        except Exception as error:
            raise CandidateError(status_of(error), str(error)) from error
        # Both ways through the encoding of the pipe.
        return msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=kind), time.perf_counter() - began


def toy() -> Collection:
    return load_collection([TOY], entry_points=False, operators=False)


def judge_of(function: Callable[..., Any], *, size: int = 4096, contract: Contract | None = None) -> tuple[CaseJudge, SameProcess]:
    """The judge of a kernel of the op `scale`, and the process that it asks."""
    collection = toy()
    return judge_of_op(function, collection.op("scale"), {"size": size}, split=collection.kernel("scale/split@1"), contract=contract)


def judge_of_op(
    function: Callable[..., Any], op: Op, raw: dict[str, Any], *, split: Kernel, contract: Contract | None = None
) -> tuple[CaseJudge, SameProcess]:
    """The judge of a kernel of `op` on the case of the parameters `raw`, and the process that it asks."""
    held = contract or Close()
    kernel = kernel_of(function, op, "mine", contract=held)
    process = SameProcess(kernel, op)
    judge = CaseJudge(
        process,  # type: ignore[arg-type]
        op,
        op.parse_params(raw),
        kernel=str(kernel.id),
        language="torch",
        contract=held,
        split=split,
        target=split if contract is not None and not isinstance(contract, Close) else None,
        device=CPU,
        limits=Limits(time.monotonic() + 600),  # no test is about the budget, and a busy machine is slow
    )
    return judge, process


def kernel_of(function: Callable[..., Any], op: Op, name: str, *, contract: Contract | None = None) -> Kernel:
    """A kernel of `op` in torch operations."""
    identity = KernelId(op.name, name, 1)
    return Kernel(function, identity, role=Role.FUSED, language=Language.TORCH, contract=contract or Close(), requires=(), note="")


def evaluating(cases: list[Case], *, seconds: float = 60.0) -> tuple[Any, list[Any]]:
    """An evaluation without processes, and the parameters that it compares; an RMS norm is wrong."""
    one: Any = Evaluating.__new__(Evaluating)
    one._device, one._op, one._rng, one._remarks, one._loaded = (
        torch.device("cpu"),
        SHIPPED.op("norm_scale_shift"),
        random.Random(0),
        [],
        None,
    )
    one._task = SimpleNamespace(cases=tuple(cases), stage=Stage.QUICK)
    one._began = time.monotonic()
    one._limits = Limits(one._began + seconds)
    one._phases = one._limits.phases
    one._layouts_s = 0.0
    asked: list[Any] = []
    one._asked = lambda params: asked.append(params) or CaseOpened(token="", declined=None)

    def compare(calls: int) -> None:
        if asked[-1].norm == "rms":
            raise CandidateError(EvaluationStatus.WRONG, "far off")

    one._judge_of = lambda opened, params: SimpleNamespace(compare=compare)
    return one, asked
