"""Whether a kernel can run on a device at all, before its own `supports` is asked."""

from __future__ import annotations

import importlib.util
import sys

from ..schema import Language, Role
from .kernel import Kernel


def reason_not_runnable(kernel: Kernel, device: str, *, interpreter: bool = False) -> str | None:
    """None when `kernel` can run on `device` (`cpu` or `cuda`), else why not.

    With `interpreter`, Triton kernels count as runnable on the CPU: right for checking, meaningless for timing.
    """
    absent = missing_modules(kernel)
    if absent:
        return f"not installed: {', '.join(absent)}" + (f" (pip install {kernel.install})" if kernel.install else "")
    if device == "cuda" or kernel.language is Language.TORCH:
        return None
    if kernel.language is Language.TRITON:
        if kernel.role is Role.PEER:
            # Libraries are written for a compiler: some of what they do (methods of scalar arguments) the interpreter refuses.
            return "another library's Triton kernel needs a GPU; only this project's own are checked in the interpreter"
        return None if interpreter else "a Triton kernel needs a GPU to be timed; it is checked in the interpreter"
    return "CUDA C++ needs a GPU"


def missing_modules(kernel: Kernel) -> list[str]:
    """Those of the kernel's required modules that are not installed; nothing is imported but the parents of dotted names."""
    return [module for module in kernel.requires if not _installed(module)]


def _installed(module: str) -> bool:
    if sys.modules.get(module) is not None:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is absent: `cuda` of `cuda.core`
        return False
