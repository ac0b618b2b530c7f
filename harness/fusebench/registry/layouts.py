"""The layout of a tensor: shape, strides, dtype and device, as one hashable value. A kernel can know it without reading the tensor.

Argument checks and launch plans are functions of layouts, so a repeated call costs a look-up. This module also owns the wording of
refusals. `arguments.py` says which layouts an op accepts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from ..errors import KernelArgumentError
from .launching import interpreting, tracing

if TYPE_CHECKING:
    import torch

ACTIVATION_DTYPES = ("bfloat16", "float16", "float32")

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


class Layout(NamedTuple):
    """Layout of one tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    dtype: torch.dtype
    device: torch.device

    @property
    def dtype_name(self) -> str:
        """`bfloat16`, as cases spell it."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def is_contiguous(self) -> bool:
        """As torch's `is_contiguous()`; a tensor without elements counts as contiguous."""
        if 0 in self.shape:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def __str__(self) -> str:
        strided = "" if self.is_contiguous else f" with strides {tuple(self.strides)}"
        return f"{list(self.shape)} in {self.dtype}{strided}"


def layout_of(tensor: torch.Tensor) -> Layout:
    """The layout of `tensor`."""
    return Layout(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def remembered(function: FunctionT) -> FunctionT:
    """`function` with a cache of recent results. Traced operators bypass it, because their sizes may be symbols."""
    cached = functools.lru_cache(maxsize=512)(function)

    @functools.wraps(function)
    def call(*args: object) -> object:
        return function(*args) if tracing() else cached(*args)

    return call  # type: ignore[return-value]


def refuse(op: str, name: str, found: str, accepted: str) -> NoReturn:
    """Refuse an argument of a call.

    Raises:
        KernelArgumentError: always; it names the argument, the found and the accepted value.
    """
    raise KernelArgumentError(f"{op}: argument {name}: found {found}; accepted is {accepted}")


def check_device(op: str, name: str, tensor: torch.Tensor, *, interpreted: bool) -> None:
    """Refuse a tensor in host memory: a kernel given a host address would fault and destroy the CUDA context.

    Args:
        interpreted: whether this kernel also runs on host memory while Triton's interpreter is on.

    Raises:
        KernelArgumentError: the tensor is not on a GPU.
    """
    if not tensor.is_cuda and not (interpreted and interpreting()):
        refuse(op, name, f"device {tensor.device}", "a CUDA device")
