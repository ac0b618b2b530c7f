"""Nsight Compute and the permission to read performance counters: the state of this machine, with a remedy for each problem.

`fusebench doctor` and `fusebench ncu` share this probe.  It reads files and runs `ncu --version`; it does not touch the GPU.  Some
restrictions only the driver knows (a container does not show its host's).  Then the first capture fails with `ERR_NVGPUCTRPERM`, which
leads to the same remedy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from ..errors import DeviceUnfitError

NCU_VARIABLE = "FUSEBENCH_NCU"
"""Environment variable that names the `ncu` to use, where several are installed."""

OLDEST_NCU = (2025, 1)
"""The release of CUDA 12.8, the first that reads counters of every architecture of static evidence (CUDA 12.8 brought sm_100 and
sm_120)."""

_ROOT = Path("/")
_SYS_ADMIN_BIT, _PERFMON_BIT = 21, 38  # linux/capability.h
_PERMISSION_WORDS = ("ERR_NVGPUCTRPERM", "NVIDIA GPU Performance Counters")
_VERSION_TIMEOUT_S = 60.0  # the first start after a boot reads a few hundred megabytes from the disk


class NsightProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's means to read counters."""

    path: str
    """Path of `ncu`; empty if none was found."""
    version: str
    """`2025.3.1.0`; empty if unknown."""
    named: str = ""
    """Value of FUSEBENCH_NCU; empty if unset."""
    restricted: bool | None
    """Whether the driver lets only administrators read counters; None if unknown."""
    administrator: bool
    """Whether the driver takes this process for an administrator: CAP_SYS_ADMIN or CAP_PERFMON, which root has outside of containers."""
    container: bool
    """Whether this process seems to run in a container."""

    @property
    def supported(self) -> bool:
        """Whether the version is known and not older than `OLDEST_NCU`."""
        return version_numbers(self.version) >= OLDEST_NCU


def probe_nsight(environ: Mapping[str, str] | None = None, *, root: Path = _ROOT) -> NsightProbe:
    """Look for Nsight Compute and for the permission to read counters; `root` is the root folder of /proc and /usr."""
    environment = os.environ if environ is None else environ
    path = find_ncu(environment, root=root)
    return NsightProbe(
        path=path or "",
        version=ncu_version(path) if path else "",
        named=environment.get(NCU_VARIABLE, ""),
        restricted=counters_restricted(root / "proc/driver/nvidia/params"),
        administrator=is_administrator(root / "proc/self/status"),
        container=in_container(environment, root=root),
    )


def require_counters() -> NsightProbe:
    """The probe of this machine, after a check of everything that can be checked without a capture.

    Raises:
        DeviceUnfitError: Nsight Compute is missing or too old, or the driver restricts counters; the message has the remedy.
    """
    probe = probe_nsight()
    for problem in (tool_problem(probe), permission_problem(probe)):
        if problem is not None:
            raise DeviceUnfitError("; ".join(problem))
    return probe


def tool_problem(probe: NsightProbe) -> tuple[str, str] | None:
    """Why Nsight Compute cannot be used, and the remedy; None if it can."""
    oldest = ".".join(map(str, OLDEST_NCU))
    if not probe.path and probe.named:
        return f"{NCU_VARIABLE}={probe.named!r} is no program that can be run", "name the file `ncu` itself, or unset the variable"
    if not probe.path:
        found = "Nsight Compute (ncu) is neither on PATH, nor in CUDA_HOME, /usr/local/cuda* or /opt/nvidia/nsight-compute"
        return found, f"install Nsight Compute {oldest} or newer (it comes with CUDA's toolkit), or name it by {NCU_VARIABLE}"
    if not probe.version:
        return f"{probe.path} does not tell its version", f"run `{probe.path} --version` by hand to see why"
    if not probe.supported:
        remedy = f"install a newer one (it comes with CUDA 12.8 and later), or name another by {NCU_VARIABLE}"
        return f"Nsight Compute {probe.version} ({probe.path}) is too old; supported is {oldest} and newer", remedy
    return None


def permission_problem(probe: NsightProbe) -> tuple[str, str] | None:
    """Why this process may not read counters, and the remedy; None if no restriction is known without a capture."""
    if not probe.restricted or probe.administrator:
        return None
    return "the driver lets only administrators read performance counters", permission_remedy(probe)


def permission_remedy(probe: NsightProbe) -> str:
    """How this process gets the permission."""
    for_all = (
        "on the host, load the driver's module with NVreg_RestrictProfilingToAdminUsers=0 (an `options nvidia …` line in /etc/modprobe.d)"
    )
    if probe.container:
        return f"start the container with --cap-add=SYS_ADMIN, or {for_all}"
    return f"run `fusebench ncu` as root, or {for_all}"


def denies_permission(said: str) -> bool:
    """Whether the output of `ncu` says that the driver refuses to read counters."""
    return any(word in said for word in _PERMISSION_WORDS)


def find_ncu(environ: Mapping[str, str], *, root: Path = _ROOT) -> str | None:
    """Path of `ncu`: FUSEBENCH_NCU alone where it is set; else the first of PATH, CUDA_HOME, /usr/local/cuda*, /opt/nvidia."""
    named = environ.get(NCU_VARIABLE)
    if named:
        return shutil.which(named, path=environ.get("PATH"))
    found = shutil.which("ncu", path=environ.get("PATH", os.defpath))
    if found is not None:
        return found
    homes = [Path(home) for name in ("CUDA_HOME", "CUDA_PATH") if (home := environ.get(name))]
    candidates = [
        *(home / "bin" / "ncu" for home in homes),
        root / "usr/local/cuda/bin/ncu",
        *_newest_first((root / "usr/local").glob("cuda-*/bin/ncu")),
        *_newest_first((root / "opt/nvidia/nsight-compute").glob("*/ncu")),
    ]
    return next((str(path) for path in candidates if os.access(path, os.X_OK) and path.is_file()), None)


def ncu_version(path: str) -> str:
    """The version of the `ncu` at `path`; empty if unknown."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r"Version\s+(\d+(?:\.\d+)+)", said)
    return match[1] if match else ""


def version_numbers(version: str) -> tuple[int, ...]:
    """`2025.3.1.0` as numbers that compare; empty for an empty string."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def counters_restricted(params: Path) -> bool | None:
    """Whether the driver lets only administrators read performance counters; None if unknown."""
    try:
        match = re.search(r"^RmProfilingAdminOnly:\s*(\d)", params.read_text(), re.MULTILINE)
    except OSError:
        return None
    return match[1] != "0" if match else None


def is_administrator(status: Path) -> bool:
    """Whether the process has a capability that the driver takes for an administrator's.

    Root in a container usually has neither, so the user id is used only where the capabilities cannot be read.
    """
    try:
        match = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status.read_text(), re.MULTILINE)
    except OSError:
        match = None
    if match is None:
        return os.geteuid() == 0
    capabilities = int(match[1], 16)
    return bool(capabilities >> _SYS_ADMIN_BIT & 1 or capabilities >> _PERFMON_BIT & 1)


def in_container(environ: Mapping[str, str], *, root: Path = _ROOT) -> bool:
    """Whether this looks like a container, by the files and variables of container engines or the first process's cgroup."""
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return True
    if environ.get("container") or environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    try:
        groups = (root / "proc/1/cgroup").read_text()
    except OSError:
        return False
    return any(word in groups for word in ("docker", "kubepods", "containerd", "libpod", "lxc"))


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: version_numbers(str(path)), reverse=True)
