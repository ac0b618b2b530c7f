"""Ends of a command that no verdict explains: a package that is not installed, a reader that left, a fault of fusebench itself.

Commands import packages when they need them, so that such an import fails in the midst of one.  It happens where nothing installed
fusebench and its sources are run through PYTHONPATH: no metadata then says what it declares, pyproject.toml need not be there, and neither
knows the import name of an absent package.  So the names stand here, and a test compares them with all imports of fusebench and with
pyproject.toml.  Without typer and msgspec no command starts, and Python itself says so.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Mapping
from types import MappingProxyType

from .errors import FusebenchError, TimerError, UsageError
from .schema import ExitCode
from .stats.paired import InvalidSamplesError

PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "cuda": "cuda-core",
        "filelock": "filelock",
        "jinja2": "jinja2",
        "matplotlib": "matplotlib",
        "msgspec": "msgspec",
        "numpy": "numpy",
        "packaging": "packaging",
        "pandas": "pandas",
        "platformdirs": "platformdirs",
        "psutil": "psutil",
        "pyarrow": "pyarrow",
        "pynvml": "nvidia-ml-py",
        "pytest_benchmark": "pytest-benchmark",
        "rich": "rich",
        "scipy": "scipy",
        "torch": "torch",
        "triton": "triton",
        "typer": "typer",
    }
)
"""By the top-level module that fusebench imports, the package to install for it, as pyproject.toml declares it."""
EXTRAS: Mapping[str, str] = MappingProxyType({"pytest-benchmark": "pytest"})
"""By package, the extra of pyproject.toml that brings it; any other package comes with the extra `gpu`."""


def missing_package(error: BaseException) -> UsageError | None:
    """The usage error for a failed import of a declared package; None for any other exception.

    A missing module of fusebench, of an installed package or of an undeclared package is a different fault: a misspelt name or a broken
    package.
    """
    package = PACKAGES.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if package is None:
        return None
    extra = EXTRAS.get(package, "gpu")
    return UsageError(
        f"the package {package}, which fusebench needs, is not installed for {sys.executable}; install fusebench with all that it needs: "
        f"`{sys.executable} -m pip install -e '.[{extra}]'` in the folder of its pyproject.toml, or `make run` there, which makes a .venv "
        "of its own"
    )


def known_cause(error: BaseException) -> FusebenchError | None:
    """The error in words that `error` stands for; None for any other exception.

    A declared package is missing, or statistics, which know no timers, were given samples that cannot be times.
    """
    return TimerError(str(error)) if isinstance(error, InvalidSamplesError) else missing_package(error)


def what_ended(error: BaseException) -> tuple[ExitCode, str] | None:
    """For the record of a measurement that `error` ended: the exit code that it gets and the words for its warnings; None for Ctrl-C and a
    reader that has left, which say nothing of what was measured."""
    error = known_cause(error) or error
    if isinstance(error, FusebenchError):
        return ExitCode(error.exit_code), str(error)
    if isinstance(error, Exception) and not (isinstance(error, BrokenPipeError) and unread()):
        return ExitCode.FAULT, f"ended by a fault of fusebench: {type(error).__name__}: {error}"
    return None


def unread() -> list[int]:
    """Which of stdout and stderr are pipes whose reader has left."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return [descriptor for descriptor, event in poll.poll(0) if event & (select.POLLERR | select.POLLHUP)]
