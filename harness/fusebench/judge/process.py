"""One process that calls kernels, seen from the judge: started fresh, asked with deadlines, killed with all that it started."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from ..device.triton_programs import assembler_environment
from ..schema.evaluation import EvaluationStatus, IsolationMeasure
from .channel.protocol import (
    ANSWER_BYTES,
    ANSWERS,
    Channel,
    ChannelClosedError,
    ChannelTimeoutError,
    Mark,
    Prepare,
    Prepared,
    ProtocolError,
    Refused,
    new_token,
    same_token,
)
from .channel.region import Region
from .confinement.confined_process import start_confined
from .confinement.process_tree import remove_folder
from .failures import CandidateError, of_outcome
from .patience import HUNG_AFTER_S, Patience, Waiting

STOP_S = 2.0
MEMORY_SHARE = 0.5
"""Share of the machine's memory that a candidate may take, unless the caller says how much."""
START_S = 120.0
"""Time to confine itself and import torch."""
_KEPT = ("HOME", "XDG_CACHE_HOME", "TRITON_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
"""Variables of the trusted baseline, whose compilers' caches are the user's own."""
T = TypeVar("T", bound=msgspec.Struct)


def default_memory() -> int:
    """Host memory in bytes that a candidate may take unless the caller says how much."""
    return int(MEMORY_SHARE * psutil.virtual_memory().total)


class KernelProcess:
    """A process running `candidate_main`, in a session and a scratch folder of its own."""

    def __init__(
        self,
        *,
        roots: Sequence[str],
        device: str,
        confined: bool,
        timed: bool,
        memory_bytes: int | None = None,
    ) -> None:
        """Start the process, which confines itself and imports torch; `until_ready` waits for that.

        Args:
            roots: kernel folders of the project, the only files of the user that a confined process may read.
            device: torch's name of the device.
            confined: whether the process will run code that nobody trusts.
            timed: whether calls will be timed.
            memory_bytes: most host memory of the process and what it starts.
        """
        interpret = device == "cpu" and confined
        self.settings = (tuple(roots), device, timed, memory_bytes)
        memory_bytes = memory_bytes or default_memory()
        self.isolation: tuple[IsolationMeasure, ...] = ()
        self.timer_fallback = ""
        """Why calls are not timed by the device's default timer; empty if they are."""
        self.start_s: dict[str, float] = {}
        """Seconds by step of the start, as the process tells them before it has a candidate."""
        self.marks: list[float] = []
        """When the calls of the last batch began and were through, as `time.perf_counter` has it; empty on a CPU."""
        self._prepared, self.confined = False, confined
        self.region = Region.make()
        self._scratch = Path(tempfile.mkdtemp(prefix="fusebench-eval-"))
        to_child, from_judge = os.pipe()
        to_judge, from_child = os.pipe()
        self._channel = Channel(to_judge, from_judge)
        descriptors = (to_child, from_child, self.region.fd)
        environment = {"OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1", "TRITON_INTERPRET": "1" if interpret else "0"}
        environment |= {name: value for name, value in assembler_environment().items() if value is not None}
        if not confined:
            environment |= {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._process = start_confined(
            [sys.executable, "-m", "fusebench.judge.candidate.candidate_main", *map(str, descriptors)],
            scratch=self._scratch,
            pass_descriptors=descriptors,
            environment=environment,
            memory_bytes=memory_bytes if confined else None,
        )
        os.close(to_child)
        os.close(from_child)
        self._prepare = Prepare(
            token=new_token(),
            roots=tuple(roots),
            device=device,
            interpret=interpret,
            scratch=str(self._scratch) if confined else "",
            memory_bytes=memory_bytes,
            timed=timed,
        )
        self._channel.send(self._prepare)

    @property
    def alive(self) -> bool:
        return self._process.running()

    @property
    def ready(self) -> bool:
        """Whether `until_ready` returns at once."""
        return self._prepared or self._channel.pending()

    def until_ready(self) -> None:
        """Wait until the process can be asked.

        Raises:
            CandidateError: it could not start, which is no candidate's fault (`unfit`).
        """
        if not self._prepared:
            try:
                prepared = self._answer(self._prepare.token, Prepared, doing="its start", patience=Patience(time.monotonic() + START_S))
            except CandidateError as error:
                tail = self.output_tail().strip()
                raise CandidateError(EvaluationStatus.UNFIT, f"a process for kernels did not start: {error.reason}; {tail}") from error
            self._prepared, self.isolation, self.timer_fallback = True, prepared.isolation, prepared.timer_fallback
            self.start_s = {step: round(seconds, 3) for step, seconds in prepared.start_s.items()}

    def ask(self, request: msgspec.Struct, kind: type[T], *, doing: str, patience: Patience) -> tuple[T, float]:
        """Send `request`, whose token is replaced by a fresh one; returns the answer and the seconds until it came.

        Raises:
            CandidateError: the process died, fell silent, refused, or answered with anything but the answer.
        """
        self.until_ready()
        token = new_token()
        request = msgspec.structs.replace(request, token=token)
        if self.confined:
            self._process.resume()
        began = time.perf_counter()
        try:
            if self._channel.pending():
                raise ProtocolError("it wrote into the judge's pipe without being asked")
            self._channel.send(request, deadline=min(patience.deadline, time.monotonic() + patience.idle_s))
        except ChannelTimeoutError:
            self.kill()
            status = EvaluationStatus.HUNG if time.perf_counter() - began >= HUNG_AFTER_S else EvaluationStatus.UNDECIDED
            raise CandidateError(status, f"it did not read the request for {doing}") from None
        except ChannelClosedError:
            raise self._ended(doing) from None
        except ProtocolError as error:
            self.kill()
            raise CandidateError(EvaluationStatus.HACKED, f"before {doing}: {error}") from error
        answer = self._answer(token, kind, doing=doing, patience=patience)
        seconds = time.perf_counter() - began
        # Between requests nothing of a candidate runs: no thread or child can slow the baseline, compute ahead, or write after the answer.
        # The baseline goes on: without a judge it ends by itself, which a stopped process does not.
        if self.confined:
            self._process.pause()
        return answer, seconds

    def cpu_ns(self) -> int:
        """CPU time that the process and what it started have used, by the kernel's account; 0 once it has ended."""
        return self._process.cpu_ns()

    def output_tail(self) -> str:
        """What the process wrote to stdout and stderr, its beginning and its end."""
        return self._process.output()

    def kill(self) -> None:
        """End the process and all that it started at once."""
        self._process.kill()

    def close(self) -> None:
        """End the process and remove its folder."""
        self._process.kill()
        self._channel.close()
        self.region.close()
        remove_folder(self._scratch)

    def _answer(self, token: str, kind: type[T], *, doing: str, patience: Patience) -> T:
        waiting = Waiting(patience, self.cpu_ns)
        self.marks = []
        try:
            answer = self._received(waiting, doing)
            while isinstance(answer, Mark) and answer.token == token and len(self.marks) < 2:
                self.marks.append(time.perf_counter())
                answer = self._received(waiting, doing)
            if not same_token(answer.token, token):
                raise ProtocolError("its answer does not repeat the request's token")
            if isinstance(answer, Refused):
                raise CandidateError(answer.status, answer.reason)
            if not isinstance(answer, kind):
                raise ProtocolError(f"it answered with {type(answer).__name__}, not with {kind.__name__}")
        except ChannelClosedError:
            raise self._ended(doing) from None
        except ProtocolError as error:
            self.kill()
            raise CandidateError(EvaluationStatus.HACKED, f"during {doing}: {error}") from error
        return answer

    def _received(self, waiting: Waiting, doing: str) -> Any:
        """The next message of the process, which is killed if it hangs."""
        while True:
            try:
                return self._channel.receive(ANSWERS, deadline=waiting.next_look, most=ANSWER_BYTES)
            except ChannelTimeoutError:
                if failure := waiting.look(doing):
                    self.kill()
                    raise failure from None

    def _ended(self, doing: str) -> CandidateError:
        """The failure of a process whose pipe is closed."""
        outcome = self._process.wait(STOP_S)
        if outcome is None:
            self._process.kill()
            return CandidateError(EvaluationStatus.HACKED, f"its process closed the pipe to the judge during {doing}")
        return of_outcome(outcome, doing)
