"""The environment's fingerprint: everything besides the code that affects a result."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from .. import __version__
from ..config import find_project
from ..schema import Environment
from . import nvml as nvml_backend
from .cpu_process import expected_settings
from .readings import GpuMonitor, GpuReading
from .select import Device, cpu_model
from .toolchain import distribution_version, torch_build
from .triton_programs import ToolError, assembler_version

COMMIT_VARIABLE = "FUSEBENCH_COMMIT"

GIT_TIMEOUT_S = 20.0
WRITTEN = ("baselines", "calibration", "catalogue", "interference", "runs")
"""Folders of the results that commands fill."""


def environment_of(device: Device, project_root: Path, monitor: GpuMonitor | None = None) -> Environment:
    """The fingerprint of `device` and of the checkout around `project_root`; imports neither torch nor triton.

    Unknown values are empty, with the reason in `state["unreadable"]`; `state["at_start"]` is the GPU's reading now.

    Raises:
        UsageError: for a GPU, a variable names an assembler that does not run.
    """
    unreadable: dict[str, str] = {}
    state: dict[str, Any] = {}
    driver = cuda = None
    ptxas = ptxas_blackwell = ""
    memory_peak = None
    if device.kind == "cuda":
        monitor = monitor if monitor is not None else nvml_backend.open_monitor()
        driver, cuda = monitor.driver_version(), monitor.cuda_driver_version()
        reading = monitor.read(device.uuid)
        state["at_start"] = context_of(reading)
        memory_peak = _memory_peak_gb_per_s(reading)
        unreadable.update(reading.unreadable)
        ptxas, ptxas_blackwell = (_assembler_version(name, unreadable) for name in ("ptxas", "ptxas-blackwell"))
        unreadable.update({name: "NVML does not tell it" for name, value in (("driver", driver), ("cuda", cuda)) if value is None})
    commit, dirty = git_state(project_root, unreadable)
    if unreadable:
        state["unreadable"] = unreadable
    return Environment(
        device=device.kind,
        device_name=device.name,
        device_uuid=device.uuid,
        driver=driver or "",
        cuda=cuda or "",
        python=platform.python_version(),
        torch=torch.version if (torch := torch_build()) else "",
        triton=distribution_version("triton"),
        ptxas=ptxas,
        ptxas_blackwell=ptxas_blackwell,
        platform=platform.platform(),
        memory_gb_per_s=memory_peak,
        cpu=cpu_model(),
        cpu_count=os.cpu_count() or 0,
        cpu_process=expected_settings() if device.kind == "cpu" else "",
        fusebench=__version__,
        git_commit=commit,
        git_dirty=dirty,
        state=state,
    )


def _assembler_version(name: str, unreadable: dict[str, str]) -> str:
    try:
        return assembler_version(name)
    except ToolError as error:
        unreadable[name] = str(error)
        return ""


def _memory_peak_gb_per_s(reading: GpuReading) -> float | None:
    """Highest memory clock x bus width x 2 transfers per clock, in 1e9 bytes per second: the formula of the data sheets."""
    if reading.max_mem_mhz is None or reading.memory_bus_bits is None:
        return None
    return 2 * reading.max_mem_mhz * reading.memory_bus_bits / 8 / 1e3


def context_of(reading: GpuReading) -> dict[str, Any]:
    """A reading as plain values, without unknown values and process names."""
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(reading))
    return {key: value for key, value in values.items() if value is not None and key not in {"processes", "unreadable"}}


def git_state(root: Path, unreadable: dict[str, str]) -> tuple[str, bool]:
    """Commit of the checkout around `root`, and whether tracked or untracked files differ from it, other than records of the project.

    Records lie in the project's results, and no kernel reads them: without this, a run's own journal would make its checkout differ, so
    that a killed run could not be gone on with; and a promoted baseline that is not committed yet would, so that no later run could join.

    `FUSEBENCH_COMMIT` names the commit where the sources travel without their history (a container, a copied tree); it is not checked.
    Outside a checkout, or without git, the result is an empty commit and False, with the reason under `git` in `unreadable`.
    """
    named = os.environ.get(COMMIT_VARIABLE, "").strip()
    if named:
        return named, False
    try:
        commit = _git(root, "rev-parse", "HEAD")
        results = os.path.relpath(find_project(root).results, root.resolve())
        written = [] if results.startswith(os.pardir) else [f":(exclude){results}/{folder}" for folder in WRITTEN]
        return commit, bool(_git(root, "status", "--porcelain", "--", ":(top)", *written))
    except (OSError, subprocess.SubprocessError) as error:
        detail = (error.stderr or "").strip() if isinstance(error, subprocess.CalledProcessError) else ""
        unreadable["git"] = detail.partition("\n")[0] or str(error)
        return "", False


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=GIT_TIMEOUT_S,
        # A status that refreshes the index would take its lock away from an editor or another job.
        env=os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
    )
    return done.stdout.strip()
