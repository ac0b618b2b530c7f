"""Entry point of the process that calls kernels: `python -m fusebench.judge.candidate_main READ WRITE MEMORY`.

The three numbers are file descriptors: the pipes from and to the judge, and the shared memory.  The process holds inputs and the kernel, no
reference and no expected value.  The twin, which times the project's own split chain, is the same program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_THREADS = 1
"""Threads of torch on a CPU, for the candidate and the twin alike: CPU time of other threads is then the candidate's own doing."""


def main(read_fd: int, write_fd: int, memory_fd: int) -> None:
    """Answer requests until the judge closes its pipe."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import mmap

    import torch

    from .protocol import LOADS, Channel, ChannelClosedError
    from .region import Region

    torch.set_num_threads(_THREADS)
    channel = Channel(read_fd, write_fd)
    try:
        load = channel.receive(LOADS)
        serving = _Serving(load, channel, Region(memory_fd, mmap.PAGESIZE))
        while True:
            serving.answer_one()
    except ChannelClosedError:
        return


class _Serving:
    """The requests of one process."""

    def __init__(self, load: Any, channel: Any, region: Any) -> None:
        import torch

        from . import calling, loading
        from .tampering import Tampering

        self._channel, self._region = channel, region
        self._file = Path(load.file)
        roots = tuple(Path(root) for root in load.roots)
        device = torch.device(load.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.cuda.init()  # type: ignore[no-untyped-call]
        if load.interpret:
            from ..accuracy.interpreter import install_exact_casts, install_remembered_builtins

            install_exact_casts()
            install_remembered_builtins()
        isolation: tuple[Any, ...] = ()
        if load.kernel:
            found = loading.load_project_kernel(roots, load.op, load.kernel)
            tampering = Tampering()
        else:
            op = loading.load_op(roots, load.op)
            isolation = _confine(load)
            tampering = Tampering()
            loaded = self._guarded(load.token, lambda: loading.load_candidate(op, self._file, load.source))
            if loaded is None:
                sys.exit(0)
            found = loaded
        torch.set_num_threads(_THREADS)
        self._op, self._kernel = found
        language = str(self._kernel.language)
        timed = not load.interpret or language == "torch"
        self._caller = calling.Caller(self._kernel, self._op, device, tampering, timed=timed)
        self._yardstick_device = device
        self._params: Any = None
        from .protocol import Loaded

        self._channel.send(Loaded(token=load.token, kernel=str(self._kernel.id), language=language, isolation=isolation))

    def answer_one(self) -> None:
        """Receive one request and answer it."""
        from .protocol import REQUESTS, CaseOpened, OpenCase, Yardstick, YardstickDone

        request = self._channel.receive(REQUESTS)
        if isinstance(request, OpenCase):
            self._params = self._op.parse_params(request.params)
            declined = self._guarded(request.token, lambda: (self._kernel.reason_unsupported(self._params),))
            if declined is None:
                return
            contract = None if declined[0] else self._guarded(request.token, lambda: self._kernel.contract_for(self._params))
            if declined[0] or contract is not None:
                self._channel.send(CaseOpened(token=request.token, declined=declined[0], contract=contract))
        elif isinstance(request, Yardstick):
            from .yardstick import limit_us

            found = self._guarded(request.token, lambda: limit_us(self._op, self._params, self._yardstick_device))
            if found is not None:
                self._channel.send(YardstickDone(token=request.token, limit_us=found))
        else:
            done = self._guarded(request.token, lambda: self._caller.run(request, self._region))
            if done is not None:
                self._channel.send(done)

    def _guarded(self, token: str, work: Any) -> Any:
        """The result of `work`, or None after the judge was told what it raised."""
        from ..errors import describe_exception
        from ..schema.evaluation import EvaluationStatus
        from .failures import status_of
        from .loading import RefusedError
        from .protocol import MOST_TEXT, Refused

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


def _confine(load: Any) -> tuple[Any, ...]:
    """Confine this process, and say by which measures."""
    return ()


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:4]))
    sys.stdout.flush()
    os._exit(0)  # what the candidate registered to run at exit is nobody's business
