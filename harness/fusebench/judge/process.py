"""One process that calls kernels, seen from the judge: started fresh, asked with deadlines, killed with all that it started."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ..device.triton_programs import assembler_environment
from ..schema.evaluation import EvaluationStatus
from .failures import CandidateError, of_exit
from .protocol import ANSWERS, Channel, ChannelClosedError, ChannelTimeoutError, ProtocolError, Refused, new_token
from .region import Region

STOP_S = 2.0
TAIL_BYTES = 4000
"""Bytes kept of what the process wrote to stdout and stderr."""
MOST_OUTPUT = 64 * 2**20
"""Bytes of output beyond which a process counts as flooding and is killed."""
T = TypeVar("T", bound=msgspec.Struct)


class KernelProcess:
    """A process running `candidate_main`, in a session and a scratch folder of its own."""

    def __init__(self, *, interpret: bool) -> None:
        """Starts the process, which imports torch and then waits to be told what to load."""
        self.region = Region.make()
        self.scratch = Path(tempfile.mkdtemp(prefix="fusebench-eval-"))
        self._output = (self.scratch.with_name(self.scratch.name + ".out")).open("w+b")
        to_child, from_judge = os.pipe()
        to_judge, from_child = os.pipe()
        self._channel = Channel(to_judge, from_judge)
        fds = (to_child, from_child, self.region.fd)
        harness = Path(__file__).parents[2]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        environment |= {
            "PYTHONPATH": f"{harness}",
            "PYTHONSAFEPATH": "1",
            "OMP_WAIT_POLICY": "passive",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        environment |= {name: value for name, value in assembler_environment().items() if value is not None}
        environment["TMPDIR"] = str(self.scratch)
        environment.pop("TRITON_INTERPRET", None)
        if interpret:
            environment["TRITON_INTERPRET"] = "1"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fusebench.judge.candidate_main", *map(str, fds)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            cwd=self.scratch,
            env=environment,
            start_new_session=True,
        )
        os.close(to_child)
        os.close(from_child)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: msgspec.Struct, kind: type[T], *, doing: str, deadline: float) -> tuple[T, float]:
        """Send `request`, whose token is replaced by a fresh one; returns the answer and the seconds until it came.

        Raises:
            CandidateError: the process died, fell silent, refused, or answered with anything but the answer.
        """
        token = new_token()
        request = msgspec.structs.replace(request, token=token)
        try:
            if self._channel.pending():
                raise ProtocolError("it wrote into the judge's pipe without being asked")
            began = time.perf_counter()
            self._channel.send(request)
            answer = self._channel.receive(ANSWERS, deadline=deadline)
            seconds = time.perf_counter() - began
            if not secrets.compare_digest(answer.token, token):
                raise ProtocolError("its answer does not repeat the request's token")
            if isinstance(answer, Refused):
                raise CandidateError(answer.status, answer.reason)
            if not isinstance(answer, kind):
                raise ProtocolError(f"it answered with {type(answer).__name__}, not with {kind.__name__}")
        except ChannelTimeoutError:
            self.kill()
            raise CandidateError(EvaluationStatus.HUNG, f"no answer in time during {doing}") from None
        except ChannelClosedError:
            raise of_exit(self._wait(), doing) from None
        except ProtocolError as error:
            self.kill()
            raise CandidateError(EvaluationStatus.HACKED, f"during {doing}: {error}") from error
        if os.fstat(self._output.fileno()).st_size > MOST_OUTPUT:
            self.kill()
            raise CandidateError(
                EvaluationStatus.CRASHED, f"it wrote more than {MOST_OUTPUT >> 20} MiB to stdout and stderr during {doing}"
            )
        return answer, seconds

    def output_tail(self) -> str:
        """The end of what the process wrote to stdout and stderr."""
        size = os.fstat(self._output.fileno()).st_size
        data = os.pread(self._output.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        return data.decode(errors="replace")

    def kill(self) -> None:
        """End the process and its whole session at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(STOP_S)

    def close(self) -> None:
        """End the process and remove its folder."""
        if self._process.poll() is None:
            self.kill()
        with suppress(ProcessLookupError, PermissionError):  # what it left behind in its session
            os.killpg(self._process.pid, signal.SIGKILL)
        self._channel.close()
        self.region.close()
        with suppress(OSError):
            Path(self._output.name).unlink()
        self._output.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _wait(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(STOP_S)
        self.kill()
        return None
