"""The task that an engine runs on a worker: one shard, measured by `fusebench run` in a process of its own.

A task that is run again, because its worker was lost or pre-empted, goes on with what the one before it has kept.  It imports nothing that
needs a GPU, and measures nothing itself.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..schema import ExitCode
from .shard_results import options_of_results

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2): the signal that a process gets when its parent ends."""
MEASURED = (ExitCode.PASS, ExitCode.REGRESSION, ExitCode.UNDECIDED, ExitCode.KERNEL_FAILED)
"""Exit codes of a run that measured its shard."""
WAIT_S = "60"
"""Seconds that a run waits for its device, unless the options say: the process of a lost worker may still hold it."""
LAST_TRY_S = 60.0
LOG_FILE = "progress.txt"
RESULTS_FOLDER = ".results"
"""Folder, beside the shard's runs, of the records that it is judged by."""
SHOWN_BYTES = 4000
"""End of a shard's output that an error shows."""


class ShardError(Exception):
    """A shard that was not measured; another worker, or a later try, may do it."""


class ShardRefusedError(Exception):
    """A shard that no worker can measure: wrong options, or a project that the workers lack."""


def measure_shard(command: Sequence[str], project: str, out: str, variables: Mapping[str, str], results: bytes) -> bytes:
    """The folder of the shard's run as a tar file.

    Args:
        command: options of `fusebench run`, without those that name an output, results, a baseline or a run to resume.
        project: the folder to measure in; the worker's host has it under the same path.
        out: folder for the run.  Where workers and tries share it, a later try goes on with what an earlier one has kept.
        variables: environment variables for the run.
        results: the records that the shard is judged by, as `shard_results.packed_results` gives them.

    Raises:
        ShardError: the device was unfit, or the process was lost.
        ShardRefusedError: wrong usage.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    _wait_for_the_last_try(folder)
    if (whole := _newest(folder, complete=True)) is not None:
        return _packed(whole)
    waits = [] if "--wait" in command else ["--wait", WAIT_S]
    options = [*command, *waits, *options_of_results(results, folder / RESULTS_FOLDER)]
    code = None
    if (stopped := _newest(folder, complete=False)) is not None:
        code = _run(["--resume", str(stopped), *options], project, folder, variables)
    if code in (None, ExitCode.USAGE):  # nothing was kept, or it was measured on another board
        code = _run(options, project, folder, variables)
    found = _newest(folder, complete=True)
    if found is not None and code in MEASURED:
        return _packed(found)
    tail = (folder / LOG_FILE).read_bytes()[-SHOWN_BYTES:].decode(errors="replace").strip()
    words = f"fusebench run ended with exit code {code}: {tail}"
    raise ShardRefusedError(words) if code == ExitCode.USAGE else ShardError(words)


def _run(options: Sequence[str], project: str, folder: Path, variables: Mapping[str, str]) -> int:
    """The exit code of `fusebench run` with `options`, whose output goes to the log."""
    with (folder / LOG_FILE).open("ab") as log:
        return subprocess.run(
            [sys.executable, "-m", "fusebench", "run", *options, "--out", str(folder)],
            cwd=project,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            preexec_fn=_end_with_parent,
        ).returncode


def _wait_for_the_last_try(folder: Path) -> None:
    """Wait until the process of a try whose worker was lost has kept its cases and ended."""
    from ..store.journal import recover_runs

    deadline = time.monotonic() + LAST_TRY_S
    while recover_runs(folder) and time.monotonic() < deadline:
        time.sleep(0.5)


def _newest(folder: Path, *, complete: bool) -> Path | None:
    """The newest run in `folder` that is complete, or that was stopped before its end."""
    from ..errors import RunRecordError
    from ..store.finding import run_folders
    from ..store.run_folder import read_run

    for run in reversed(run_folders(folder)):
        with suppress(RunRecordError):
            if read_run(run).complete is complete:
                return run
    return None


def _packed(folder: Path) -> bytes:
    """`folder` as a tar file."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        archive.add(folder, arcname=folder.name)
    return sink.getvalue()


def unpacked(content: bytes, parent: Path) -> Path:
    """Write the run that `measure_shard` gave below `parent`, and return its folder."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        name = Path(archive.getnames()[0]).parts[0]
        archive.extractall(parent, filter="data")
    return parent / name


def _end_with_parent() -> None:
    """Have the run end, and keep its finished cases, when the worker that started it is lost."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
