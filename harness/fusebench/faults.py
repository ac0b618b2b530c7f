"""Command failures without a verdict: a missing package, a reader that closed the pipe, a fault of fusebench itself.

Commands import packages when they need them, so an import can fail in the middle of a command. This happens when fusebench runs from its
sources through PYTHONPATH, without an installation. Neither package metadata nor pyproject.toml need exist then, and neither gives the
import name of an absent package. So this module lists the names, and a test compares them with all imports of fusebench and with
pyproject.toml. Without typer and msgspec no command starts; Python's own message says so.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Mapping
from types import MappingProxyType

from .config import SHIPPED
from .errors import FusebenchError, TimerError, UsageError
from .schema import ExitCode
from .stats.paired import InvalidSamplesError

PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "PIL": "pillow",
        "anyio": "anyio",
        "cuda": "cuda-core",
        "diffusers": "diffusers",
        "duckdb": "duckdb",
        "filelock": "filelock",
        "fsspec": "fsspec",
        "jinja2": "jinja2",
        "markupsafe": "markupsafe",
        "matplotlib": "matplotlib",
        "mcp": "mcp",
        "msgspec": "msgspec",
        "numpy": "numpy",
        "packaging": "packaging",
        "parsl": "parsl",
        "pandas": "pandas",
        "platformdirs": "platformdirs",
        "psutil": "psutil",
        "pyarrow": "pyarrow",
        "pynvml": "nvidia-ml-py",
        "pytest": "pytest",
        "pytest_benchmark": "pytest-benchmark",
        "rich": "rich",
        "safetensors": "safetensors",
        "scipy": "scipy",
        "starlette": "starlette",
        "torch": "torch",
        "triton": "triton",
        "typer": "typer",
        "uvicorn": "uvicorn",
    }
)
"""By the top-level module that fusebench imports, the package to install for it, as pyproject.toml declares it."""
EXTRAS: Mapping[str, str] = MappingProxyType(
    {"pytest": "pytest", "pytest-benchmark": "pytest", "parsl": "cluster"}
    | dict.fromkeys(("diffusers", "safetensors"), "models")
    | dict.fromkeys(("fsspec", "duckdb"), "store")
    | dict.fromkeys(("anyio", "mcp", "starlette", "uvicorn"), "serve")
)
"""By package, the extra of pyproject.toml that installs it; every other package comes with the extra `gpu`."""


def missing_package(error: BaseException) -> UsageError | None:
    """The usage error for a failed import of a declared package; None for any other exception.

    A missing module of fusebench, of an installed package or of an undeclared package is a different fault: a misspelt name or a broken
    package.
    """
    package = PACKAGES.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if package is None:
        return None
    extra = EXTRAS.get(package, "gpu")
    missing = f"the package {package}, which fusebench needs, is not installed for {sys.executable}"
    if SHIPPED.is_dir():
        return UsageError(f"{missing}; install it with `{sys.executable} -m pip install 'fusebench[{extra}]'`")
    return UsageError(
        f"{missing}; install fusebench with all that it needs: `{sys.executable} -m pip install -e '.[{extra}]'` in the folder of its "
        "pyproject.toml, or `make run` there, which makes a .venv of its own"
    )


def known_cause(error: BaseException) -> FusebenchError | None:
    """The FusebenchError for an `error` with a known cause; None for any other exception.

    Known causes: a declared package is missing, or statistics received samples that cannot be times.
    """
    return TimerError(str(error)) if isinstance(error, InvalidSamplesError) else missing_package(error)


def what_ended(error: BaseException) -> tuple[ExitCode, str] | None:
    """Exit code and warning for the record of a measurement that `error` ended. None for Ctrl-C, also where it led to `error`, and for a
    closed pipe: they say nothing about the measurement."""
    if interruption_in(error) is not None:
        return None
    error = known_cause(error) or error
    if isinstance(error, FusebenchError):
        return ExitCode(error.exit_code), str(error)
    if isinstance(error, Exception) and not (isinstance(error, BrokenPipeError) and unread()):
        return ExitCode.FAULT, f"ended by a fault of fusebench: {type(error).__name__}: {error}"
    return None


def interruption_in(error: BaseException) -> KeyboardInterrupt | None:
    """The Ctrl-C during whose handling `error` was raised, as by a lock that it interrupted; None if there was none."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, KeyboardInterrupt):
        found = None if found.__suppress_context__ else found.__context__
    return found


def unread() -> list[int]:
    """The file descriptors of stdout and stderr that are pipes without a reader."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return [descriptor for descriptor, event in poll.poll(0) if event & (select.POLLERR | select.POLLHUP)]
