"""Registers, spills and shared memory of a candidate, compiled without a GPU in a confined process of its own.

The figures are the compiler's, from a process that the candidate shares: they advise, and no status follows from them.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import msgspec

from ..device.triton_programs import assembler_environment
from ..evidence.occupancy import Occupancy, occupancy
from ..evidence.targets import NoTargetError, Target, target_of
from ..schema import Case
from ..schema.evaluation import Evaluation, EvaluationStatus
from .channel.protocol import (
    COMPILED_LAUNCHES,
    Channel,
    ChannelClosedError,
    ChannelTimeoutError,
    CompiledLaunch,
    ProtocolError,
    same_token,
)
from .confinement.confined_process import start_confined
from .confinement.process_tree import remove_folder

if TYPE_CHECKING:
    from ..device.select import Device
    from .evaluation import EvaluationRequest

COMPILED_CASES = 4
"""Cases whose launches are compiled, the first ones: a kernel's code differs by dtype, layout and head size, rarely by tokens."""
JUDGED = (EvaluationStatus.PASSED, EvaluationStatus.WRONG, EvaluationStatus.SUSPICIOUS)
"""Statuses of candidates whose code is worth a look."""
MEMORY_BYTES = 8 * 2**30
_MARKS = (b"triton", b"nvrtc")
"""A candidate without either word has no code of its own to compile."""
_TOLD = re.compile(rb"triton\.jit|language\s*=\s*[\"']triton[\"']")
_NOT_TOLD = (b"autotune", b"nvrtc")
"""On a GPU, the process that is judged compiles kernels of Triton itself, and tells what the assembler said: those of the candidate's file,
and those of the op's other files that it calls.  A candidate that tunes itself compiles more than it launches."""
_LOW_OCCUPANCY = 0.25
"""Below this share of the warps that a multiprocessor can hold, a memory-bound kernel often has too few loads in flight."""


class CompilerStart(msgspec.Struct, frozen=True, kw_only=True, tag="compiler_start"):
    """The first message to the confined process: confine yourself, import torch, and compile a first kernel."""

    roots: tuple[str, ...]
    scratch: str
    cache: str = ""
    """None: a candidate has one such process."""
    memory_bytes: int
    target: str


class CompileTask(msgspec.Struct, frozen=True, kw_only=True, tag="compile"):
    """The second one: the candidate."""

    token: str
    op: str
    file: str
    source: bytes
    cases: tuple[Case, ...]


class Compiled(msgspec.Struct, frozen=True, kw_only=True, tag="compiled"):
    """From the confined process."""

    token: str
    launches: Annotated[tuple[CompiledLaunch, ...], msgspec.Meta(max_length=COMPILED_LAUNCHES)] = ()
    failure: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    """Why a launch does not compile; empty if all do."""


STARTS = msgspec.msgpack.Decoder(CompilerStart)
TASKS = msgspec.msgpack.Decoder(CompileTask)
_COMPILED = msgspec.msgpack.Decoder(Compiled)


class CompilerProcess:
    """A confined process that compiles one candidate, and then has done its work."""

    def __init__(self, roots: tuple[str, ...], target: str) -> None:
        """Start it.

        Args:
            roots: kernel folders of the project, absolute.
            target: such as `sm_90`.
        """
        self.made_for = roots, target
        self._scratch = Path(tempfile.mkdtemp(prefix="fusebench-eval-"))
        to_child, from_here = os.pipe()
        to_here, from_child = os.pipe()
        known = {name: value for name, value in assembler_environment().items() if value is not None}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._process = start_confined(
            [sys.executable, "-m", "fusebench.judge.candidate.compiled_code_main", str(to_child), str(from_child)],
            scratch=self._scratch,
            pass_descriptors=(to_child, from_child),
            environment=known | threads | {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"},
            memory_bytes=MEMORY_BYTES,
        )
        os.close(to_child)
        os.close(from_child)
        self.channel = Channel(to_here, from_here)
        self.send(CompilerStart(roots=roots, scratch=str(self._scratch), memory_bytes=MEMORY_BYTES, target=target))

    @property
    def alive(self) -> bool:
        return self._process.running()

    def send(self, message: CompilerStart | CompileTask) -> None:
        """Write a message, unless the process has ended: who waits for its answer finds out."""
        with suppress(ChannelClosedError):
            self.channel.send(message)

    def close(self) -> None:
        """End it, and remove its folder."""
        self._process.kill()
        self.channel.close()
        remove_folder(self._scratch)


class Compilers:
    """Processes that compile one candidate each; the next one starts while this one works, since importing torch takes seconds."""

    def __init__(self) -> None:
        self._waiting: CompilerProcess | None = None

    def take(self, roots: tuple[str, ...], target: str) -> CompilerProcess:
        """A process that no candidate has used; another one starts."""
        taken, self._waiting = self._waiting, None
        if taken is not None and (not taken.alive or taken.made_for != (roots, target)):
            taken.close()
            taken = None
        taken = taken or CompilerProcess(roots, target)
        self._waiting = CompilerProcess(roots, target)
        return taken

    def close(self) -> None:
        """End the process that nobody took."""
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None


class CompiledCode:
    """Compiles the candidate of a request while it is judged.  A context manager: leaving it kills the process."""

    def __init__(self, request: EvaluationRequest, device: Device, compilers: Compilers | None = None) -> None:
        """`compilers`: where the process comes from; None to start one."""
        self._target = _target(device)
        self._on_cpu = device.kind == "cpu"
        source = request.file.read_bytes()
        self._worth = self._target is not None and any(mark in source.lower() for mark in _MARKS)
        self._process: CompilerProcess | None = None
        self._start = CompilerProcess if compilers is None else compilers.take
        self._request, self._source, self._token = request, source, secrets.token_hex(16)

    def __enter__(self) -> CompiledCode:
        if not self._worth or self._target is None:
            return self
        request = self._request
        self._process = self._start(tuple(str(root.resolve()) for root in request.roots), self._target.name)
        self._process.send(
            CompileTask(
                token=self._token,
                op=request.op,
                file=str(request.file.resolve()),
                source=self._source,
                cases=request.cases[:COMPILED_CASES],
            )
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.close()

    def added_to(self, evaluation: Evaluation, *, wait_s: float) -> Evaluation:
        """`evaluation` with the figures and remarks about them; a remark says so if compiling takes longer than `wait_s` more."""
        if self._process is None or self._target is None:
            return evaluation
        try:
            found = self._process.channel.receive(_COMPILED, deadline=time.monotonic() + wait_s)
        except ChannelTimeoutError:
            late = "registers and spills were not ready in time; a later stage waits longer for them"
            return msgspec.structs.replace(evaluation, remarks=(*evaluation.remarks, late))
        except (ChannelClosedError, ProtocolError):
            return evaluation
        if not same_token(found.token, self._token):
            return evaluation
        return with_figures(evaluation, found, self._target, on_cpu=self._on_cpu)


def tells_itself(request: EvaluationRequest, device: Device) -> bool:
    """Whether the judged process will tell the figures, unless the candidate fails: no other one compiles the same code beside it."""
    source = request.file.read_bytes()
    return device.kind == "cuda" and _TOLD.search(source) is not None and not any(mark in source for mark in _NOT_TOLD)


def with_figures(evaluation: Evaluation, found: Compiled, target: Target, *, on_cpu: bool) -> Evaluation:
    """`evaluation` with the most of any launch, and remarks.

    Args:
        on_cpu: whether it was judged on a CPU, so that `target` is only an example.
    """
    remarks = _remarks(found, target, on_cpu=on_cpu)
    evaluation = msgspec.structs.replace(evaluation, remarks=(*evaluation.remarks, *remarks))
    if not found.launches:
        return evaluation
    return msgspec.structs.replace(
        evaluation,
        registers=max(launch.registers for launch in found.launches),
        spills=max(launch.spills for launch in found.launches),
        shared_bytes=max(launch.shared for launch in found.launches),
    )


def _target(device: Device) -> Target | None:
    try:
        return target_of(device.kind, device.name, device.compute_capability)
    except NoTargetError:
        return None


def _remarks(found: Compiled, target: Target, *, on_cpu: bool) -> list[str]:
    remarks = []
    if found.failure:
        remarks.append(f"compiled for {target.name} ({target.gpu}): {found.failure}")
    if found.launches and on_cpu:
        remarks.append(f"registers, spills and shared memory are those of code for {target.name} ({target.gpu})")
    worst = max(found.launches, key=lambda launch: launch.spills, default=None)
    if worst is not None and worst.spills:
        remarks.append(
            f"{worst.spills} bytes are spilled a thread at {worst.registers} registers: hold fewer values at once, "
            "in smaller blocks or over more warps"
        )
    for launch in found.launches:
        fits = _occupancy(launch, target)
        if fits.share < _LOW_OCCUPANCY:
            limits = " and ".join(fits.limited_by)
            remarks.append(
                f"occupancy is at most {100 * fits.share:.0f} % of the warps, limited by {limits} "
                f"({launch.registers} registers, {launch.shared} bytes of shared memory, {launch.threads} threads a block)"
            )
            break
    return remarks


def _occupancy(launch: CompiledLaunch, target: Target) -> Occupancy:
    return occupancy(target, threads=launch.threads, registers=launch.registers, shared_bytes=launch.shared, block_barriers=launch.barriers)
