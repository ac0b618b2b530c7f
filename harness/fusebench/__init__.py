"""fusebench: benchmark and regression gate for fused GPU kernels.

The package root offers what kernel authors and model code need; importing it imports neither torch nor triton.
"""

from .registry import Arguments, Op, Part, axis, benchmark, define_op, dispatch, kernel, launchable, option, tensor
from .schema import Bitwise, Close

__version__ = "0.2.0"

__all__ = [
    "Arguments",
    "Bitwise",
    "Close",
    "Op",
    "Part",
    "__version__",
    "axis",
    "benchmark",
    "define_op",
    "dispatch",
    "kernel",
    "launchable",
    "option",
    "tensor",
]
