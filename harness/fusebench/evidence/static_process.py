"""The worker process that records and compiles: its messages (one JSON document a line), its clean environment, its start and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from ..errors import FusebenchError
from ..schema import Case, ExitCode
from .records import CapturedCase, Code


class Request(msgspec.Struct, frozen=True, kw_only=True):
    roots: tuple[str, ...]
    target: str
    cases: tuple[Case, ...]
    compilers: dict[str, str]
    """Compiler versions by language."""
    kernel: str | tuple[str, ...] | None
    """Globs of the kernels to compile; every kernel's launches are recorded."""
    cache: str | None
    """Folder of the cache, for code that is known already."""
    jobs: int


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """The launches of `cases[index]`."""

    index: int
    case: CapturedCase


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    text: str
    done: int
    total: int


class Assembled(msgspec.Struct, frozen=True, tag="assembled"):
    """The code of one specialisation."""

    key: str
    code: Code


class NotCompiled(msgspec.Struct, frozen=True, tag="not_compiled"):
    key: str
    reason: str


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The whole request failed, for a reason that fusebench explains."""

    reason: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The last message: without it the process was lost."""


Message = Recorded | Progress | Assembled | NotCompiled | Broken | Done


_CODE_CHANGING = ("TRITON_", "MLIR_", "LLVM_", "PTXAS_", "DISABLE_PTXAS_OPT", "DISABLE_LLVM_OPT", "NVPTX_", "ENABLE_LHS_TO_TMEM")
"""Prefixes of environment variables that change Triton's code generation: evidence is that of a plain environment, on every machine."""


class StaticWorkerError(FusebenchError):
    """The process that records and compiles was lost: a loaded file or library ended it."""

    exit_code = ExitCode.KERNEL_FAILED


def clean_environment() -> dict[str, str]:
    """This environment without variables that change machine code, and without any GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CODE_CHANGING)}
    # One thread, because the worker forks, and a forked process inherits its parent's locks but not its threads.
    return kept | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def answers(request: Request) -> Iterator[Message]:
    """Yield every message but the last.  Leaving the loop early ends the process.

    Raises:
        FusebenchError: the request failed as a whole, with the worker's words.
        StaticWorkerError: the process ended without its last message.
    """
    # -P: do not import from the current folder.
    command = [sys.executable, "-P", "-m", "fusebench.evidence.static_worker"]
    finished = False
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory(prefix="fusebench_static_") as scratch:
        environment = clean_environment() | {"TRITON_CACHE_DIR": scratch}  # empty: Triton does not assemble entries of its cache again
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            try:
                process.stdin.write(msgspec.json.encode(request))
                process.stdin.close()
            except BrokenPipeError:
                pass  # it ended before it listened; its output is reported below
            for line in process.stdout:
                message = msgspec.json.decode(line, type=Message)
                if isinstance(message, Broken):
                    raise FusebenchError(message.reason)
                if isinstance(message, Done):
                    finished = True
                else:
                    yield message
        finally:
            if not finished:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and its compilers
            process.stdout.close()
            code = process.wait()
        if not finished:
            errors.seek(0)
            said = " ".join(errors.read()[-2000:].decode("utf-8", "replace").split())
            raise StaticWorkerError(
                f"the process that records launches and compiles for {request.target} ended with exit code {code}; "
                f"it last said: {said or 'nothing'}; narrow the selection with --op or --kernel to find the cause"
            )
