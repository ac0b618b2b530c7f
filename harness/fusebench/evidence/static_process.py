"""The worker process seen from outside: started with a clean environment, listened to, ended with the caller."""

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
from ..schema import ExitCode
from .messages import Broken, Done, Message, Request

_CODE_CHANGING = ("TRITON_", "MLIR_", "LLVM_", "PTXAS_", "DISABLE_PTXAS_OPT", "DISABLE_LLVM_OPT", "NVPTX_", "ENABLE_LHS_TO_TMEM")
"""Beginnings of environment variables that change what Triton makes of a kernel: evidence is that of a plain environment, everywhere."""


class StaticWorkerError(FusebenchError):
    """The process that records and compiles was lost: something that it loaded took it down."""

    exit_code = ExitCode.KERNEL_FAILED


def clean_environment() -> dict[str, str]:
    """This environment without what changes machine code, and without any GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CODE_CHANGING)}
    # One thread, because the worker forks, and a forked process has none of its parent's threads but all of their locks.
    return kept | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def answers(request: Request) -> Iterator[Message]:
    """Every message but the last.  Leaving the loop early ends the process.

    Raises:
        FusebenchError: the request failed as a whole, with the worker's words.
        StaticWorkerError: the process ended without saying that it was done.
    """
    # -P: the current folder is no place to import from.
    command = [sys.executable, "-P", "-m", "fusebench.evidence.static_worker"]
    finished = False
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory(prefix="fusebench_static_") as scratch:
        environment = clean_environment() | {"TRITON_CACHE_DIR": scratch}  # empty: what Triton finds compiled it does not assemble
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
                pass  # it ended before it listened; what it said is reported below
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
                    os.killpg(process.pid, signal.SIGKILL)  # and the compilers that it runs
            process.stdout.close()
            code = process.wait()
        if not finished:
            errors.seek(0)
            said = " ".join(errors.read()[-2000:].decode("utf-8", "replace").split())
            raise StaticWorkerError(
                f"the process that records launches and compiles for {request.target} ended with exit code {code}; "
                f"it last said: {said or 'nothing'}; narrow the selection with --op or --kernel to find what took it down"
            )
