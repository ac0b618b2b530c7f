"""fusebench: benchmark and regression gate for fused GPU kernels.

The package root offers what kernel authors and model code need; importing it imports neither torch nor triton.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .schema import Bitwise, Close

__version__ = "0.3.0"

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    import pandas as pd

    from .models.kernelize import Kernelized
    from .registry import (
        Arguments,
        Op,
        Part,
        axis,
        benchmark,
        count_calls,
        counting_backend,
        define_op,
        dispatch,
        kernel,
        launchable,
        option,
        tensor,
    )
else:

    def __getattr__(name: str) -> object:
        """The registry's names, imported when one is used: most commands need none, and start a tenth of a second sooner."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(".registry", __name__), name)
        return found


def load_run(folder: str | Path) -> pd.DataFrame:
    """The run in `folder` as a pandas table, a row per kernel and case; see `report.run.frame.load_run`."""
    # By name: an import statement here would make every module that imports the package depend on the reports.
    frame: pd.DataFrame = importlib.import_module(".report.run.frame", __name__).load_run(folder)
    return frame


def kernelize(transformer: Any) -> Kernelized:
    """Put the fused ops into a diffusers transformer, in place; see `models.kernelize.kernelize`."""
    done: Kernelized = importlib.import_module(".models.kernelize", __name__).kernelize(transformer)
    return done


__all__ = [
    "Arguments",
    "Bitwise",
    "Close",
    "Op",
    "Part",
    "__version__",
    "axis",
    "benchmark",
    "count_calls",
    "counting_backend",
    "define_op",
    "dispatch",
    "kernel",
    "kernelize",
    "launchable",
    "load_run",
    "option",
    "tensor",
]
