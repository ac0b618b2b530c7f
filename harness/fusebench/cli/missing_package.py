"""The error for a declared dependency that is not installed, made from the import that failed.

Commands import their dependencies late, so such an import fails while a command runs.  This happens when the sources are run through
PYTHONPATH without an installation: there is no metadata then that maps a module to its package, so the map stands here.  A test compares
it with all imports of fusebench and with pyproject.toml.  Without typer and msgspec no command starts, and Python reports the import.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

from ..errors import UsageError

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
        "rich": "rich",
        "scipy": "scipy",
        "torch": "torch",
        "triton": "triton",
        "typer": "typer",
    }
)
"""By the top-level module that fusebench imports, the package to install for it, as pyproject.toml declares it."""


def missing_package(error: BaseException) -> UsageError | None:
    """The usage error for a failed import of a declared package; None for any other exception.

    A missing module of fusebench, of an installed package or of an undeclared package is a different fault: a misspelt name or a broken
    package.
    """
    package = PACKAGES.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if package is None:
        return None
    return UsageError(
        f"the package {package}, which fusebench needs, is not installed for {sys.executable}; install fusebench with all that it needs: "
        f"`{sys.executable} -m pip install -e '.[gpu]'` in the folder of its pyproject.toml, or `make run` there, which makes a .venv of "
        "its own"
    )
