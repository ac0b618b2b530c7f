"""The accuracy gate: inputs, guards, errors against float64, and the contracts.  A kernel that is wrong is never timed."""

from .comparison import compare
from .contracts import judge_bitwise, judge_close
from .gate import check_kernel
from .memory import Placed, place
from .metrics import ErrorMetrics, merge

__all__ = ["ErrorMetrics", "Placed", "check_kernel", "compare", "judge_bitwise", "judge_close", "merge", "place"]
