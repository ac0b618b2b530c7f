"""Entry point of the process that calls kernels: `python -m fusebench.judge.candidate.candidate_main READ WRITE MEMORY`.

The three numbers are file descriptors: the pipes from and to the judge, and the shared memory.  The process holds inputs and the kernel, no
reference and no expected value.  The baseline, which times the project's own split chain, is the same program.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

_MOST_SECONDS = 3600
"""CPU time of one process per core; the judge ends a candidate long before, and this ends what outlives the judge."""
_THREADS = 1
"""Threads of torch on a CPU, for the candidate and the baseline alike: CPU time of other threads is then the candidate's own doing."""


def main(read_fd: int, write_fd: int, memory_fd: int) -> None:
    """Answer requests until the judge closes its pipe."""
    steps = [("", time.monotonic())]

    def done(step: str) -> None:
        steps.append((step, time.monotonic()))

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from ..channel.protocol import LOADS, PREPARES, Channel, ChannelClosedError, Prepared
    from ..confinement.isolation import confine_candidate, protect

    channel = Channel(read_fd, write_fd)
    try:
        prepare = channel.receive(PREPARES)
        descriptors, gpu = (read_fd, write_fd, memory_fd), prepare.device != "cpu"
        isolation = (
            tuple(confine_candidate(prepare, seconds=_MOST_SECONDS, gpu=gpu, descriptors=descriptors)) if prepare.scratch else (protect(),)
        )
        done("confinement")
        from .early_context import begin_context

        context = begin_context(prepare.device) if gpu else None  # a thread of a process that is confined by now
        import torch

        torch.set_num_threads(_THREADS)
        device = torch.device(prepare.device)
        done("import of torch")
        if context is not None:
            context.join()
            torch.cuda.set_device(device)
            torch.cuda.init()  # type: ignore[no-untyped-call]
            torch.zeros(1, device=device)
            done("the device's context")
        from ..channel.region import PAGE, Region

        region = Region(memory_fd, PAGE)
        clock = None
        if device.type == "cuda":
            from .calling_cuda import CudaClock

            clock = CudaClock(device, timed=prepare.timed)
            done("clock")
        timer, fallback = (clock.name, clock.fallback) if clock is not None else ("host", "")
        start_s = {step: at - before for (_, before), (step, at) in pairwise(steps)}
        channel.send(Prepared(token=prepare.token, isolation=isolation, timer=timer, timer_fallback=fallback, start_s=start_s))
        log = _import_ahead(device, clock, candidate=bool(prepare.scratch))
        serving = _Serving(channel.receive(LOADS), prepare, channel, region=region, clock=clock, log=log)
        while True:
            serving.answer_one()
    except ChannelClosedError:
        return


def _import_ahead(device: Any, clock: Any, *, candidate: bool) -> Any:
    """Import what every candidate needs while the process waits for one; on a GPU, also make a first call and compile a Triton kernel.

    Returns the log of what is compiled afterwards, None where nothing keeps one.  CUDA loads each kernel of torch and of the harness at its
    first launch: a call that copies bytes loads those of every batch.
    """
    from contextlib import suppress

    from . import calling, loading, tampering  # noqa: F401

    if clock is not None:
        import torch

        from .calling_cuda import DeviceCall

        host = torch.zeros(1 << 10, dtype=torch.uint8)
        there, kept = torch.zeros(1 << 10, dtype=torch.uint8, device=device), host.to(device)

        def fill() -> None:
            there.copy_(kept)

        def keep() -> None:
            host.copy_(there.clone())

        call = DeviceCall(fill, fill, keep)
        like = [torch.empty(16, dtype=dtype, device=device) for dtype in (torch.bfloat16, torch.float16, torch.float32)]
        with suppress(Exception):  # a device that fails here fails in the first batch, too
            clock.time([call, call], like, lambda: None)
    if device.type == "cuda" and candidate:
        with suppress(Exception):  # a toolchain that does not work is the finding of the first candidate that needs it
            from .compiler_log import CompilerLog
            from .first_kernel import compile_first_kernel

            compile_first_kernel(device)
            log = CompilerLog()
            log.listen()
            return log
    return None


def _readable(file: Path, source: bytes, scratch: str) -> Path:
    """A copy of the candidate where a confined process may read it: torch.compile and Triton read a function's file again.

    It has a folder of its own, since the candidate's name may be that of another file there.
    """
    if not scratch or not source:
        return file
    copy = Path(tempfile.mkdtemp(prefix="source-", dir=scratch)) / file.name
    copy.write_bytes(source)
    return copy


class _Serving:
    """The requests of one process."""

    def __init__(self, load: Any, prepare: Any, channel: Any, *, region: Any, clock: Any, log: Any) -> None:
        import torch

        from ..channel.protocol import Loaded
        from . import calling, loading
        from .tampering import Tampering

        self._channel, self._region, self._log = channel, region, log
        self._file = _readable(Path(load.file), load.source, prepare.scratch)
        self._device = torch.device(prepare.device)
        roots = tuple(Path(root) for root in prepare.roots)
        if prepare.interpret:
            import numpy as np

            from ...accuracy.interpreter import install_exact_casts, install_remembered_builtins

            install_exact_casts()
            install_remembered_builtins()
            np.seterr(all="ignore")  # the interpreter computes with NumPy, which warns about every NaN that is planted
        if load.kernel:
            found = loading.load_project_kernel(roots, load.op, load.kernel)
            tampering = Tampering()
        else:
            op = loading.load_op(roots, load.op)
            tampering = Tampering()
            loaded = self._guarded(load.token, lambda: loading.load_candidate(op, self._file, load.source))
            if loaded is None:
                sys.exit(0)
            found = loaded
        torch.set_num_threads(_THREADS)
        self._op, self._kernel = found
        mark = self._mark
        self._caller = calling.Caller(self._kernel, self._op, self._device, tampering, cuda=clock, mark=mark)
        self._params: Any = None
        self._channel.send(Loaded(token=load.token, kernel=str(self._kernel.id), language=self._kernel.language))

    def _mark(self, token: str) -> None:
        from ..channel.protocol import Mark

        self._channel.send(Mark(token=token))

    def answer_one(self) -> None:
        """Receive one request and answer it."""
        from ..channel.protocol import (
            MOST_TEXT,
            REQUESTS,
            CaseOpened,
            Describe,
            Described,
            Inspect,
            OpenCase,
            Yardstick,
            YardstickDone,
        )  # fmt: skip

        request = self._channel.receive(REQUESTS)
        if isinstance(request, OpenCase):
            self._params = self._op.parse_params(request.params)
            declined = self._guarded(request.token, lambda: (self._kernel.reason_unsupported(self._params),))
            if declined is None:
                return
            contract = None if declined[0] else self._guarded(request.token, lambda: self._kernel.contract_for(self._params))
            if declined[0] or contract is not None:
                self._channel.send(CaseOpened(token=request.token, declined=declined[0] and declined[0][:MOST_TEXT], contract=contract))
        elif isinstance(request, Yardstick):
            from .yardstick import limit_us

            found = self._guarded(request.token, lambda: limit_us(self._op, self._params, self._device))
            if found is not None:
                self._channel.send(YardstickDone(token=request.token, limit_us=found))
        elif isinstance(request, Describe):
            described = Described(token=request.token)
            if (log := self._log) is not None:
                described = Described(token=request.token, launches=tuple(log.launches), compiled=log.compiled, compile_us=log.compile_us)
            self._channel.send(described)
        elif isinstance(request, Inspect):
            inspected = self._guarded(request.token, lambda: self._caller.inspect(request))
            if inspected is not None:
                self._channel.send(inspected)
        else:
            done = self._guarded(request.token, lambda: self._caller.run(request, self._region))
            if done is not None:
                self._channel.send(done)

    def _guarded(self, token: str, work: Any) -> Any:
        """The result of `work`, or None after the judge was told what it raised."""
        from ...errors import describe_exception
        from ...schema.evaluation import EvaluationStatus
        from ..channel.protocol import MOST_TEXT, Refused
        from ..failures import status_of
        from .loading import RefusedError

        try:
            return work()
        except RefusedError as error:
            status, reason = error.status, str(error)
        except SystemExit as error:
            status, reason = EvaluationStatus.CRASHED, f"it calls sys.exit({error.code!r})"
        except Exception as error:  # noqa: BLE001  whatever a kernel raises is that kernel's result
            status, reason = status_of(error), describe_exception(error, (self._file.parent,))
        self._channel.send(Refused(token=token, status=status, reason=reason[:MOST_TEXT]))
        return None


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:4]))
    sys.stdout.flush()
    os._exit(0)  # what the candidate registered to run at exit is nobody's business
