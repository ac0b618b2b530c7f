"""The worker process that records and compiles: its messages (one JSON document a line), its clean environment, its start and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from ..errors import FusebenchError
from ..registry.loading.process import SILENCE_S
from ..schema import Case, ExitCode
from .records import CapturedCase, Code, CodeKey, Natural


class Request(msgspec.Struct, frozen=True, kw_only=True):
    roots: tuple[str, ...]
    target: str
    cases: tuple[Case, ...]
    compilers: dict[str, str]
    """Compiler versions by language."""
    kernel: str | tuple[str, ...] | None
    """Globs of the kernels to compile; the launches of every kernel are recorded, and of the choices that are listed."""
    cache: str | None
    """Folder of the cache, for code that is known already."""
    jobs: int
    trusted: tuple[CodeKey, ...] = ()
    """Of code that is known and compiled only as a sample: one specialisation of each device function."""
    excluded: dict[str, str] = {}
    """Files that are not imported, each with the reason."""


class Importing(msgspec.Struct, frozen=True, tag="importing"):
    """The kernel file whose code runs from now on; empty for none."""

    file: str


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """The launches of `cases[index]`."""

    index: Natural
    case: CapturedCase


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    text: str
    done: int
    total: int


class Assembled(msgspec.Struct, frozen=True, tag="assembled"):
    """The code of one specialisation."""

    key: CodeKey
    code: Code


class NotCompiled(msgspec.Struct, frozen=True, tag="not_compiled"):
    key: CodeKey
    reason: str


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The whole request failed, for a reason that fusebench explains."""

    reason: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The last message: without it the process was lost."""


Message = Importing | Recorded | Progress | Assembled | NotCompiled | Broken | Done
MOST_BYTES = 64 * 2**20
"""Of one message: a case of a hundred kernels takes 100 kB."""


_CODE_CHANGING = ("TRITON_", "AMDGCN_", "MLIR_", "LLVM_", "PTXAS_", "DISABLE_PTXAS_OPT", "DISABLE_LLVM_OPT", "NVPTX_", "ENABLE_LHS_TO_TMEM")
"""Prefixes of environment variables that change Triton's code generation: evidence is that of a plain environment, on every machine."""


class StaticWorkerError(FusebenchError):
    """The process that records and compiles was lost: a loaded file or library ended it."""

    exit_code = ExitCode.KERNEL_FAILED


class ForeignMessageError(StaticWorkerError):
    """A message that the process cannot have sent by itself: a kernel file wrote into its pipe."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the process that records launches and compiles {what}; a kernel file seems to have written into its pipe: "
            "narrow the selection with --op or --kernel to find it"
        )


def read_message(line: bytes) -> Message:
    """The message of one line.

    Raises:
        ForeignMessageError: it is none.
    """
    try:
        message: Message = msgspec.json.decode(line, type=Message)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise ForeignMessageError(f"sent a line of {len(line)} bytes that is no message ({error})") from error
    return message


def clean_environment() -> dict[str, str]:
    """This environment without variables that change machine code, and without any GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CODE_CHANGING)}
    # One thread, because the worker forks, and a forked process inherits its parent's locks but not its threads.
    return kept | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class FileEndedWorkerError(StaticWorkerError):
    """The same, while a kernel file was imported."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file, self.reason = file, reason


def answers(request: Request) -> Iterator[Message]:
    """Yield every message but the last.  Leaving the loop early ends the process.

    A kernel file that ends the process, or never returns, is left out of a further one, which begins anew.

    Raises:
        FusebenchError, StaticWorkerError: as `_answers`.
    """
    while True:
        try:
            yield from _answers(request)
        except FileEndedWorkerError as error:
            if error.file in request.excluded:
                raise
            request = msgspec.structs.replace(request, excluded={**request.excluded, error.file: error.reason})
        else:
            return


def _answers(request: Request) -> Iterator[Message]:
    """The messages of one process.

    Raises:
        FileEndedWorkerError: a kernel file ended the process, or wrote into its pipe.
        ForeignMessageError: somebody else wrote into it.
        FusebenchError: the request failed as a whole, with the worker's words.
        StaticWorkerError: the process ended without its last message.
    """
    # -P: do not import from the current folder.
    command = [sys.executable, "-P", "-m", "fusebench.evidence.static_worker"]
    finished = False
    importing = ""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory(prefix="fusebench_static_") as scratch:
        environment = clean_environment() | {"TRITON_CACHE_DIR": scratch}  # empty: Triton does not assemble entries of its cache again
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        silent = _Silence(process.pid)
        try:
            try:
                process.stdin.write(msgspec.json.encode(request))
                process.stdin.close()
            except BrokenPipeError:
                pass  # it ended before it listened; its output is reported below
            while line := process.stdout.readline(MOST_BYTES):
                try:
                    message = read_message(line)
                except ForeignMessageError as error:
                    if not importing:
                        raise
                    raise FileEndedWorkerError(importing, "its import wrote into the pipe to fusebench") from error
                if isinstance(message, Importing):
                    importing = message.file
                    silent.begin() if importing else silent.end()
                elif isinstance(message, Broken):
                    raise FusebenchError(message.reason)
                elif isinstance(message, Done):
                    finished = True
                else:
                    yield message
        finally:
            silent.end()
            if not finished:
                _end(process.pid)
            process.stdout.close()
            code = process.wait()
        if not finished and importing:
            how = f"showed no sign of life for {SILENCE_S:g} s" if silent.ended else f"ended the process: {_how(code)}"
            raise FileEndedWorkerError(importing, f"its import {how}")
        if not finished:
            errors.seek(0)
            said = " ".join(errors.read()[-2000:].decode("utf-8", "replace").split())
            raise StaticWorkerError(
                f"the process that records launches and compiles for {request.target} ended with exit code {code}; "
                f"it last said: {said or 'nothing'}; narrow the selection with --op or --kernel to find the cause"
            )


class _Silence:
    """Ends the process if the code of one file takes too long."""

    def __init__(self, pid: int) -> None:
        self.ended = False
        self._pid = pid
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Another file begins, or the rest of the one that imported it."""
        self.end()
        self._timer = threading.Timer(SILENCE_S, self._too_long)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _too_long(self) -> None:
        self.ended = True
        _end(self._pid)


def _end(pid: int) -> None:
    """End the process and its compilers."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _how(code: int) -> str:
    return f"it died of signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
