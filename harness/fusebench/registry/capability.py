"""Whether a kernel can run on a device at all, before its own `supports` is asked."""

from __future__ import annotations

import importlib.util

from ..schema import Language
from .kernel import Kernel


def reason_not_runnable(kernel: Kernel, device: str, *, interpreter: bool = False) -> str | None:
    """None when `kernel` can run on `device` (`cpu` or `cuda`), else why not.

    With `interpreter`, Triton kernels count as runnable on the CPU: right for checking, meaningless for timing.
    """
    for module in kernel.requires:
        if not _installed(module):
            return f"needs the Python module {module!r}, which is not installed"
    if device == "cuda" or kernel.language is Language.TORCH:
        return None
    if kernel.language is Language.TRITON:
        return None if interpreter else "a Triton kernel needs a GPU to be timed; it is checked in the interpreter"
    return "CUDA C++ needs a GPU"


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is absent: `cuda` of `cuda.core`
        return False
