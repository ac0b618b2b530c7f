"""A finding of the doctor, and those on counters, packages, compilers and the project's folders."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shlex
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from ..config import Project, find_project
from .nsight import NsightProbe, permission_problem, probe_nsight, tool_problem
from .toolchain import Requirement, compiler, distribution_version, requirements, torch_build
from .triton_programs import ASSEMBLER_VARIABLES, NamedAssemblerError, ToolError, assembler_version

NVRTC_DISTRIBUTIONS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12")


_EARLY = ("torch/__init__.py", "torch/_tensor.py", "torch/nn/functional.py", "triton/__init__.py", "triton/compiler/compiler.py")
"""Modules that `eval`'s processes import at their start: who compiles packages compiles these."""


class DoctorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One check: its name, status, finding, and remedy (empty when there is nothing to do)."""

    name: str
    status: Literal["ok", "warn", "no"]
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> DoctorFinding:
    """The check passes."""
    return DoctorFinding(name=name, status="ok", found=found)


def warn(name: str, found: str, remedy: str) -> DoctorFinding:
    """Measuring is possible; a part is missing, or a fact is worth knowing."""
    return DoctorFinding(name=name, status="warn", found=found, remedy=remedy)


def no(name: str, found: str, remedy: str) -> DoctorFinding:
    """The device cannot be measured on."""
    return DoctorFinding(name=name, status="no", found=found, remedy=remedy)


def counter_findings(probe: NsightProbe | None = None) -> list[DoctorFinding]:
    """Performance counters and Nsight Compute: only `fusebench ncu` needs them, so no finding here is a `no`."""
    probe = probe_nsight() if probe is None else probe
    return [_counters(probe), _ncu(probe)]


def _counters(probe: NsightProbe) -> DoctorFinding:
    denied = permission_problem(probe)
    if denied is not None:
        return warn("counters", *denied)
    if probe.restricted is None:
        return warn("counters", "the driver does not say who may read performance counters", "`fusebench ncu` will find out")
    return ok("counters", "this user may read them")


def _ncu(probe: NsightProbe) -> DoctorFinding:
    problem = tool_problem(probe)
    if problem is not None:
        found, remedy = problem
        return warn("ncu", found, f"{remedy}; only `fusebench ncu` needs it")
    return ok("ncu", f"{probe.version} ({probe.path})")


def toolchain_findings(kind: Literal["cpu", "cuda"]) -> list[DoctorFinding]:
    """Python, torch, triton, the other dependencies, compilers, and CUDA C++ at run time, for this kind of device."""
    try:
        needed = requirements()
    except importlib.metadata.PackageNotFoundError:
        unknown = warn("packages", "fusebench runs from its sources, so that version ranges are unknown", "pip install -e . in its folder")
        return [ok("python", platform.python_version()), _torch(kind, None), unknown, *_compilers(kind), _cuda_cpp(kind)]
    by_name = {entry.name: entry for entry in needed}
    others = [entry for entry in needed if entry.name not in {"torch", "triton"}]
    return [
        ok("python", platform.python_version()),
        _torch(kind, by_name.get("torch")),
        *([_package(by_name["triton"])] if "triton" in by_name else []),
        bytecode_finding(
            Path(spec.origin).parents[1] for spec in map(importlib.util.find_spec, ("torch", "triton")) if spec and spec.origin
        ),
        *_others(others),
        *_compilers(kind),
        _cuda_cpp(kind),
    ]


def _torch(kind: str, wanted: Requirement | None) -> DoctorFinding:
    build = torch_build()
    if build is None:
        return no("torch", "not installed", f"pip install 'torch{wanted.wanted if wanted else ''}'")
    what = f"{build.version} ({f'CUDA {build.cuda}' if build.cuda else 'without CUDA'})"
    if kind == "cuda" and not build.cuda:
        return no("torch", what, "install a CUDA build of torch in this environment, or use --device cpu")
    if wanted is not None and not wanted.met:
        return no("torch", f"{what}, supported is {wanted.wanted}", f"pip install 'torch{wanted.wanted}'")
    return ok("torch", what)


def bytecode_finding(folders: Iterable[Path]) -> DoctorFinding:
    """Whether torch and Triton have stored bytecode.

    `pip` writes it, `uv` and many images do not.  A process that may write stores it at its first import; those of `eval` that run
    candidates may not, and would compile the same modules each time: an import of torch took 5.3 instead of 2.0 s of CPU time so.
    """
    sources = [file for folder in dict.fromkeys(folders) for name in _EARLY if (file := folder / name).is_file()]
    missing = [file for file in sources if not Path(importlib.util.cache_from_source(str(file))).is_file()]
    if not missing:
        return ok("bytecode", "torch and Triton have theirs")
    packages = dict.fromkeys(str(next(folder for folder in file.parents if folder.name in ("torch", "triton"))) for file in missing)
    return warn(
        "bytecode",
        f"{missing[0]} has none: each process of `eval` that runs a candidate compiles such modules anew, for seconds",
        shlex.join([sys.executable, "-m", "compileall", "-q", "-j", "0", *packages]),
    )


def _package(entry: Requirement) -> DoctorFinding:
    if entry.met:
        return ok(entry.name, entry.found)
    return no(
        entry.name, f"{entry.found or 'not installed'}, supported is {entry.wanted or 'any'}", f"pip install '{entry.name}{entry.wanted}'"
    )


def _others(entries: list[Requirement]) -> list[DoctorFinding]:
    """One line for all requirements that are met, and one for each other."""
    unmet = [_package(entry) for entry in entries if not entry.met]
    return unmet or [ok("packages", f"{len(entries)} others, all within their supported ranges")]


def _compilers(kind: str) -> list[DoctorFinding]:
    cxx = compiler(("c++", "g++", "clang++"), "CXX")
    cc = compiler(("cc", "gcc", "clang"), "CC")
    needs_cxx = "torch.compile on the CPU needs one: `compiled` kernels will be listed as not runnable; install g++ or set CXX"
    found = [ok("C++ compiler", cxx) if cxx else warn("C++ compiler", "none found", needs_cxx)]
    if kind == "cuda":
        # Triton compiles a small launcher per kernel signature with the host's C compiler.
        found.append(
            ok("C compiler", cc) if cc else no("C compiler", "none found", "Triton needs one to launch kernels; install gcc or set CC")
        )
        found.append(_assemblers())
    return found


def _assemblers() -> DoctorFinding:
    try:
        versions = {name: assembler_version(name) for name in ASSEMBLER_VARIABLES}
    except NamedAssemblerError as error:
        return no("assembler", error.cause, error.remedy)
    except ToolError as error:
        return warn("assembler", error.cause, f"{error.remedy}; records will lack the assembler's version")
    missing = [name for name, version in versions.items() if not version]
    if missing:
        return warn("assembler", f"{' and '.join(missing)} not found", "Triton's wheels hold them: install triton from one")
    return ok("assembler", ", ".join(f"{name} {version}" for name, version in versions.items()))


def _cuda_cpp(kind: str) -> DoctorFinding:
    core = distribution_version("cuda-core")
    nvrtc = next((version for name in NVRTC_DISTRIBUTIONS if (version := distribution_version(name))), "")
    if core and nvrtc:
        return ok("CUDA C++", f"cuda-core {core}, NVRTC {nvrtc}")
    missing = " and ".join(name for name, version in (("cuda-core", core), ("NVRTC", nvrtc)) if not version)
    where = "will be listed as not runnable" if kind == "cuda" else "cannot be compiled here for their static report"
    return warn("CUDA C++", f"{missing} not installed", f"pip install 'fusebench[gpu]'; without it CUDA C++ kernels {where}")


def project_findings() -> list[DoctorFinding]:
    """The project around the current folder, its folders, and whether results can be written.

    Raises:
        UsageError: the project's [tool.fusebench] table is refused.
    """
    project = find_project()
    if not project.configured and project.shipped is not None:
        return [ok("project", f"none around {project.root}: the ops and suites that come with fusebench are used"), _results(project)]
    if not (project.root / "pyproject.toml").is_file() or not (project.kernels or project.suites):
        remedy = "change to a project's folder, or name kernels with --kernels and suites by path"
        return [warn("project", f"no [tool.fusebench] with kernels or suites around {project.root}", remedy), _results(project)]
    folders = [
        _folder("kernels", project.kernels, "*/op.py"),
        _folder("suites", project.suites, "**/*.toml"),
    ]
    return [ok("project", str(project.root)), *folders, _results(project)]


def _folder(name: str, folders: tuple[Path, ...], pattern: str) -> DoctorFinding:
    if not folders:
        return warn(name, f"no folder {name}/ in the project", f"create it, or name one as `{name}` in [tool.fusebench]")
    count = sum(1 for folder in folders for _ in folder.glob(pattern))
    where = ", ".join(map(str, folders))
    if count == 0:
        return warn(name, f"no {pattern} in {where}", "the user guide says how to add one")
    return ok(name, f"{count} ({pattern}) in {where}")


def _results(project: Project) -> DoctorFinding:
    """A write in the nearest existing folder: permission bits do not show read-only mounts."""
    folder = next(path for path in (project.results, *project.results.parents) if path.is_dir())
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ok("results", str(project.results))
    except OSError as error:
        return no("results", f"{project.results} cannot be written ({error})", "make it writable, or pass --out DIR to `fusebench run`")
