"""Ops and kernels: how they are declared, found, chosen and turned into torch operators.

Importing this package imports no torch: declarations are plain data until a kernel runs.
"""

from .argument_rules import axis, option, tensor
from .arguments import Arguments
from .collection import load_collection
from .declared import CaseFacts, DeclaredKernel, DeclaredOp
from .dispatching.counting import Selection, count_calls, counting_backend
from .dispatching.dispatcher import Dispatcher, dispatch
from .kernel import Kernel
from .kernel_declaration import kernel
from .launching import launchable
from .loading.declarations import Declarations
from .lookup import Collection, Problem
from .op import Buffers, Op, define_op
from .part import Part
from .plain import benchmark

__all__ = [
    "Arguments",
    "Buffers",
    "CaseFacts",
    "Collection",
    "Declarations",
    "DeclaredKernel",
    "DeclaredOp",
    "Dispatcher",
    "Kernel",
    "Op",
    "Part",
    "Problem",
    "Selection",
    "axis",
    "benchmark",
    "count_calls",
    "counting_backend",
    "define_op",
    "dispatch",
    "kernel",
    "launchable",
    "load_collection",
    "option",
    "tensor",
]
