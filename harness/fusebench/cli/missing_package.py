"""A package that fusebench declares as its own and that is not installed: told by the import that failed, and put into words.

Commands import what they need when they need it, so that such an import fails in the midst of one.  It happens where nothing installed
fusebench and its sources are run through PYTHONPATH: no metadata says then what it declares, pyproject.toml need not be there, and by what
name a package is imported that is absent neither of them knows.  So the names stand here, and a test holds them against all imports of
fusebench and against pyproject.toml.  Without typer and msgspec no command starts, and Python itself says so.
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
    """What to tell of `error` where it says that such a package is not installed; None for anything else.

    A module of fusebench, one inside a package that is installed, or one that nobody declared is none: its name was misspelt, or another
    package is broken.
    """
    package = PACKAGES.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if package is None:
        return None
    return UsageError(
        f"the package {package}, which fusebench needs, is not installed for {sys.executable}; install fusebench with all that it needs: "
        f"`{sys.executable} -m pip install -e '.[gpu]'` in the folder of its pyproject.toml, or `make run` there, which makes a .venv of "
        "its own"
    )
