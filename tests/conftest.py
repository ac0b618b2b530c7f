"""Shared by all tests: what is skipped where, and a GPU that exists on no machine."""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import itertools
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fusebench.device import GpuIdentity, GpuReading
from fusebench.device.readings import GpuUnavailableError
from fusebench.store import tables

TABLE_COMPRESSION = tables.COMPRESSION
GET_CONTEXT = multiprocessing.get_context
NUMBERS = itertools.count()
"""Of this process's temporary folders."""


@functools.cache
def has_gpu() -> bool:
    """Whether the NVIDIA driver lists a GPU; asks no torch, whose import would cost every test run seconds."""
    from fusebench.device.nvml import open_monitor

    try:
        return bool(open_monitor().gpus())
    except GpuUnavailableError:
        return Path("/dev/nvidiactl").exists()


# Before torch is imported.  pytest's processes share the cores already: threads of several of them spend theirs waiting for one another,
# which more than doubled the processor time of tests that compute with torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not has_gpu():
    # Triton settles when it is imported whether its own library functions are interpreted, so this comes before any test module.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Objects that live as long as the session (modules, eight thousand tests) are not walked again at every garbage collection.

    Those that come later (records that modules of tests share) are walked less often: that took a twelfth of the time of such tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # or extension modules report the objects as leaked
        gc.set_threshold(20_000, 20, 100)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def turn_on_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests with the marker `gpu` share the GPU with one another, those that are also marked `alone` with none.

    Processes that share a GPU take turns, so that times mean nothing: among a dozen test processes, timing tests failed now and then.
    """
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    alone = request.node.get_closest_marker("alone") is not None
    # A name per user, since another one's file cannot be opened.
    queue_file, gpu_file = (Path(tempfile.gettempdir()) / f"fusebench-tests-{os.getuid()}-{name}.lock" for name in ("queue", "gpu"))
    with queue_file.open("w") as queue, gpu_file.open("w") as gpu:
        # Whoever wants the GPU alone keeps its place in the queue until the others have left; they pass through.
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(gpu, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new folder, numbered by a counter: pytest's own fixture reads the names of all folders of the session for the next number."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(NUMBERS)}"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def own_lock_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests never take, and never wait for, a real run's lock.  Whoever takes one makes the folder."""
    folder = tmp_path_factory.getbasetemp() / f"locks{next(NUMBERS)}"
    monkeypatch.setenv("FUSEBENCH_LOCK_DIR", str(folder))
    return folder


class FakeMonitor:
    """A `GpuMonitor` over readings that the test writes.

    `script` holds one reading, or a list that is played once and whose last reading then stays; an exception in it is raised.
    """

    def __init__(
        self, gpus: list[GpuIdentity], script: GpuReading | list[GpuReading | Exception], mig: list[GpuIdentity] | None = None
    ) -> None:
        self._gpus = gpus
        self._mig = mig or []
        self.script = script if isinstance(script, list) else [script]
        self.reads = 0

    def driver_version(self) -> str | None:
        return "580.159.03"

    def cuda_driver_version(self) -> str | None:
        return "13.0"

    def gpus(self) -> list[GpuIdentity]:
        return self._gpus

    def mig_instances(self) -> list[GpuIdentity]:
        return self._mig

    def read(self, uuid: str) -> GpuReading:
        known = [gpu.uuid for gpu in self._gpus + self._mig]
        assert uuid in known, f"{uuid} was read; there are {known}"
        step = self.script[min(self.reads, len(self.script) - 1)]
        self.reads += 1
        if isinstance(step, Exception):
            raise step
        return step


def h200(index: int = 0, uuid: str = "GPU-aaaa1111-0000-0000-0000-000000000000", name: str = "NVIDIA H200") -> GpuIdentity:
    """An identity as an H200's NVML gives it."""
    return GpuIdentity(nvml_index=index, uuid=uuid, name=name, compute_capability=(9, 0), memory_bytes=143771 * 2**20)


def idle_reading(**changes: object) -> GpuReading:
    """An idle H200 (nothing listed, 0 MiB used, 345 MHz), with `changes`."""
    values: dict[str, object] = {
        "processes": (),
        "memory_used_bytes": 0,
        "utilisation_percent": 0,
        "sm_mhz": 345,
        "mem_mhz": 3201,
        "max_sm_mhz": 1980,
        "max_mem_mhz": 3201,
        "memory_bus_bits": 6016,
        "clock_reasons": ("gpu_idle",),
        "compute_mode": "default",
        "temperature_c": 30,
        "power_w": 75.0,
        "power_limit_w": 700.0,
        "ecc": True,
        "mig": False,
        "persistence": True,
    }
    return GpuReading(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture
def fake_gpu() -> Callable[..., FakeMonitor]:
    """`fake_gpu(**changes)`: one idle H200 whose reading has these changes; `fake_gpu(script=[…], gpus=[…], mig=[…])` for more."""

    def build(
        script: list[GpuReading | Exception] | None = None,
        gpus: list[GpuIdentity] | None = None,
        mig: list[GpuIdentity] | None = None,
        **changes: object,
    ) -> FakeMonitor:
        return FakeMonitor([h200()] if gpus is None else gpus, script or [idle_reading(**changes)], mig)

    return build


@pytest.fixture
def gpu_identity() -> Callable[..., GpuIdentity]:
    """`gpu_identity(index, uuid, name)`: an H200, or another."""
    return h200


@pytest.fixture
def gpu_reading() -> Callable[..., GpuReading]:
    """`gpu_reading(**changes)`: an idle H200 with these changes."""
    return idle_reading


class FakeNcu:
    """An `ncu` that is a script: see helpers/fake_ncu.py."""

    def __init__(self, folder: Path) -> None:
        here = Path(__file__).parent
        folder.mkdir()
        self._folder = folder
        self.path = folder / "ncu"
        self.path.write_text(f"#!{sys.executable}\n{(here / 'helpers' / 'fake_ncu.py').read_text()}")
        self.path.chmod(0o755)
        shutil.copy(here / "counters" / "data" / "select01_h200.csv", folder / "table.csv")
        self.behave()

    def behave(self, **behaviour: object) -> None:
        """Act like this from now on."""
        (self._folder / "behaviour.json").write_text(json.dumps(behaviour))

    @property
    def calls(self) -> list[dict[str, object]]:
        """Arguments and CUDA_VISIBLE_DEVICES of every call so far."""
        file = self._folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNcu:
    """Nsight Compute as FUSEBENCH_NCU names it: reports of the real H200's figures, whatever is profiled."""
    fake = FakeNcu(tmp_path / "fake_ncu")
    monkeypatch.setenv("FUSEBENCH_NCU", str(fake.path))
    return fake


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module helpers/synthetic.py: runs and samples that no device made."""
    from helpers import synthetic as module

    return module


@pytest.fixture(scope="session")
def counted() -> ModuleType:
    """The module helpers/synthetic_counters.py: captures of an H200, and launches with planted figures."""
    from helpers import synthetic_counters as module

    return module


@pytest.fixture(autouse=True, scope="session")
def no_disk_flushes() -> Iterator[None]:
    """What a test writes need not outlive a power cut; a history of forty runs is flushed 160 times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def uncompressed_tables() -> Iterator[None]:
    """The tables of a test's records are small, and two thirds of the time to write and read such a table is zstd's, column by column.

    Samples, catalogues and child processes keep zstd; so do the tests of the store and those that garble files, by `compressed_tables`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "COMPRESSION", {"compression": "none"})
        yield


@pytest.fixture(scope="module")
def compressed_tables(uncompressed_tables: None) -> Iterator[None]:
    """Tables as users get them, for a module of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "COMPRESSION", TABLE_COMPRESSION)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_command_tree() -> Iterator[None]:
    """typer makes the tree of commands once and not for each of a thousand invocations, which took 40 ms of each."""
    from typer import testing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", functools.cache(testing._get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def no_bytecode_of_edited_files() -> Iterator[None]:
    """Python takes a file that a test rewrites within a second and in the same length for unchanged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        yield


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes start in a tenth of a second: see helpers/forked_workers.py."""
    from helpers.forked_workers import forking

    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: forking() if method == "spawn" else GET_CONTEXT(method))


@pytest.fixture
def forked_compilers() -> Iterator[None]:
    """The processes of static evidence start in a tenth of a second too."""
    from helpers.forked_workers import forking_compilers

    with forking_compilers():
        yield


@pytest.fixture
def spawned_workers(forked_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are new interpreters, as they are in use; for a test in a module that asks for `forked_workers`.

    It asks for these itself, because pytest sets up a test's own fixtures before its module's: theirs would come last, and stay.
    """
    monkeypatch.setattr(multiprocessing, "get_context", GET_CONTEXT)
