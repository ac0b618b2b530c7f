"""`fusebench run --on CONFIG`: shards of a run on the hosts that an existing engine, Parsl, manages.

Parsl starts workers (on this host, or through Slurm, PBS, Kubernetes and others), gives each its accelerators, notices lost workers and
runs their tasks again.  Here shards are only submitted, watched and joined.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import FusebenchError, UsageError
from ..runner.context import Reporter
from ..schema import ExitCode
from .shard_task import LOG_FILE, ShardRefusedError, measure_shard, unpacked

if TYPE_CHECKING:
    from concurrent.futures import Future

    from parsl.config import Config

LOCAL = re.compile(r"local(?::(?P<workers>[1-9]\d?))?")
LOCAL_WORKERS = 2
RETRIES = 3
"""Further tries of a shard whose worker was lost, or found its device unfit, unless the configuration says how many."""
POLL_S = 0.5
ENGINE_FOLDER = "engine"
"""Folder of Parsl's own logs, beside the shards."""
SHARDS_FOLDER = "shards"
TRIES_FOLDER = "tries"
"""Folder of the runs as the workers write them, where they share a file system with this host."""


class ShardLostError(FusebenchError):
    """A shard that no worker could measure, after all tries."""

    exit_code = ExitCode.DEVICE_UNFIT


class ClusterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A run in shards on an engine."""

    on: str
    """`local`, `local:N`, or a Python file that defines `config`."""
    shards: int | None
    """Number of shards; the number of local workers where None."""
    command: tuple[str, ...]
    """Options of `fusebench run` for every shard."""
    project: Path
    out: Path
    """Folder for the shards and the engine's logs."""
    results: bytes
    """The records that every shard is judged by, as `shard_results.packed_results` gives them."""
    judged_by: tuple[str, ...] = ()
    """Options that name these records on this host, for the command that measures a lost shard."""


def run_on_engine(request: ClusterRequest, reporter: Reporter) -> list[Path]:
    """Measure every shard on the engine; the folders of their runs, which are kept whatever happens.

    Raises:
        UsageError: Parsl is not installed, the configuration cannot be used, or the workers refuse the options.
        ShardLostError: a shard could not be measured; the message says how to go on.
    """
    config, workers = engine_of(request.on, request.out / ENGINE_FOLDER)
    count = request.shards or workers
    if count is None:
        raise UsageError(f"--on {request.on}: say by --shards N in how many parts the run is cut, such as one or two for each GPU")
    import parsl

    # Parsl starts its own programs by name, and they lie beside this Python.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    reporter.begin()
    reporter.note(f"shards and the engine's logs are in {request.out}")
    folders: dict[int, Path] = {}
    try:
        with parsl.load(config) as engine:
            task = parsl.python_app(measure_shard, data_flow_kernel=engine)
            known = {name: value for name, value in os.environ.items() if name.startswith("FUSEBENCH_")}
            futures = {
                number: task(
                    [*request.command, "--shard", f"{number}/{count}"],
                    str(request.project),
                    str(_out(request, number)),
                    known,
                    request.results,
                )
                for number in range(1, count + 1)
            }
            watch = _Watch(request, reporter, count)
            waiting: dict[int, Future[bytes]] = dict(futures)
            while waiting:
                for number in [one for one, future in waiting.items() if future.done()]:
                    folders |= _taken(waiting.pop(number), number, count, request, reporter)
                watch.look(waiting)
                time.sleep(POLL_S if waiting else 0.0)
    finally:
        reporter.end()
    lost = [number for number in range(1, count + 1) if number not in folders]
    if lost:
        options = [*request.command, *request.judged_by, "--shard", f"{lost[0]}/{count}", "--out", str(_out(request, lost[0]))]
        again = shlex.join(["fusebench", "run", *options])
        kept = f"; the others are kept in {request.out / SHARDS_FOLDER}" if folders else ""
        raise ShardLostError(
            f"shards {', '.join(f'{number}/{count}' for number in lost)} could not be measured{kept}; "
            f"measure each that is missing by `{again}`, and join all with `fusebench join`"
        )
    return [folders[number] for number in sorted(folders)]


def _out(request: ClusterRequest, number: int) -> Path:
    return request.out / TRIES_FOLDER / f"{number}"


def _taken(future: Future[bytes], number: int, count: int, request: ClusterRequest, reporter: Reporter) -> dict[int, Path]:
    """The folder of a shard that has ended, by its number; empty where it is lost."""
    error = future.exception()
    if isinstance(error, ShardRefusedError):
        raise UsageError(f"--on {request.on}: shard {number}/{count}: {error}") from error
    if error is not None:
        reporter.note(f"shard {number}/{count} is lost: {type(error).__name__}: {error}")
        return {}
    try:
        folder = unpacked(future.result(), _made(request.out / SHARDS_FOLDER))
    except OSError as failed:  # a full disk
        reporter.note(f"shard {number}/{count} is lost: its run cannot be written: {failed}")
        return {}
    reporter.note(f"shard {number}/{count} is measured, in {folder}")
    return {number: folder}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def engine_of(on: str, logs: Path) -> tuple[Config, int | None]:
    """Parsl's configuration, with tries for lost workers, and the number of its workers where it is known.

    Raises:
        UsageError: `on` is neither `local` nor a file that defines `config`.
        ModuleNotFoundError: Parsl is not installed.
    """
    from parsl.config import Config

    match = LOCAL.fullmatch(on)
    if match is not None:
        workers = int(match["workers"] or LOCAL_WORKERS)
        return _with_tries(_local(workers, logs)), workers
    file = Path(on)
    if not file.is_file():
        raise UsageError(f"--on {on}: found no such file; expected `local`, `local:N`, or a Python file that defines `config` for Parsl")
    try:
        config = runpy.run_path(str(file)).get("config")
    except Exception as error:
        raise UsageError(f"--on {on}: cannot be run: {type(error).__name__}: {error}; correct the file") from error
    if not isinstance(config, Config):
        raise UsageError(f"--on {on}: defines no `config = parsl.config.Config(...)`, found {config!r}")
    config.run_dir = str(logs) if config.run_dir == "runinfo" else config.run_dir
    return _with_tries(config), None


def _local(workers: int, logs: Path) -> Config:
    """Workers on this host, each with a GPU of its own where there are enough."""
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    from ..device.boards import ALL, resolve_boards
    from ..device.readings import GpuUnavailableError

    try:
        gpus = [device.uuid for device in resolve_boards(ALL)]
    except GpuUnavailableError:
        gpus = []
    provider: Any = LocalProvider
    executor = HighThroughputExecutor(
        label="local",
        address="127.0.0.1",
        max_workers_per_node=workers,
        available_accelerators=gpus[:workers] if len(gpus) >= workers else (),
        provider=provider(init_blocks=1, min_blocks=1, max_blocks=1),
        heartbeat_period=5,
        heartbeat_threshold=20,
        encrypted=False,
    )
    return Config(executors=[executor], run_dir=str(logs), strategy="none", initialize_logging=False)


def _with_tries(config: Config) -> Config:
    """The configuration, with tries unless it has its own; wrong usage is not tried again."""
    config.retries = config.retries or RETRIES
    if config.retry_handler is None:
        config.retry_handler = lambda error, record: float("inf") if isinstance(error, ShardRefusedError) else 1.0
    return config


class _Watch:
    """Shows what the shards print, where their folders are on a file system that this host sees."""

    def __init__(self, request: ClusterRequest, reporter: Reporter, count: int) -> None:
        self._request, self._reporter, self._count = request, reporter, count
        self._read: dict[int, int] = {}
        self._last: dict[int, str] = {}

    def look(self, waiting: dict[int, Any]) -> None:
        """Show the last line of each shard that is not done."""
        for number in waiting:
            file = _out(self._request, number) / LOG_FILE
            try:
                with file.open("rb") as log:
                    log.seek(self._read.get(number, 0))
                    new = log.read()
            except OSError:  # it waits, or its worker has a disk of its own
                continue
            self._read[number] = self._read.get(number, 0) + len(new)
            for line in new.decode(errors="replace").splitlines():
                if line.startswith("["):
                    self._reporter.line(f"shard {number}/{self._count}: {line}")
                self._last[number] = line.strip() or self._last.get(number, "")
        self._reporter.step("\n".join(f"shard {number}/{self._count}  {self._last.get(number, 'waits')}" for number in waiting))
