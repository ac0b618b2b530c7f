"""The product of an activated gate and a value, `silu(gate) * value`, in one launch: the middle of a SwiGLU feed-forward.

Eager torch launches two kernels, which read and write the widest tensor of a block five times in place of three, and compute the address of
every value where the two are halves of wider rows.  torch.compile makes one kernel of it, so a traced call leaves it to that.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .extra_call import ExtraCall

SILU_PRODUCT = "silu_product"
"""Name of the call among those of ops."""
DEVICES = ("cuda",)
"""Where Triton compiles."""
DTYPES = ("bfloat16", "float16", "float32")


class SiluProductParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one call."""

    tokens: int
    """Rows of all samples."""
    channels: int
    dtype: str


class SiluProduct(ExtraCall):
    """Callable with gate and value `[..., C]` of one dtype: a new `silu(gate) * value`.  The SiLU is rounded to the dtype first."""

    name = SILU_PRODUCT
    kernel = "triton silu_product"
    split = "torch silu, mul"

    def __call__(self, gate: Any, value: Any) -> Any:
        import torch

        if torch.compiler.is_compiling():
            return torch.nn.functional.silu(gate) * value
        reason = self.reason_split(gate, value)
        self._count(reason)
        if reason:
            return torch.nn.functional.silu(gate) * value
        from .silu_product_triton import silu_product

        return silu_product(gate, value)

    def reason_split(self, gate: Any, value: Any) -> str:
        """Why a call runs two kernels; empty if one does."""
        import torch

        if self._reason:
            return self._reason
        if gate.device.type not in DEVICES:
            return f"needs a GPU, found {gate.device.type}"
        if (gate.shape, gate.dtype, gate.device) != (value.shape, value.dtype, value.device):
            return "gate and value differ in shape, dtype or device"
        if (dtype := _dtype(gate)) not in DTYPES:
            return f"{dtype} is none of {', '.join(DTYPES)}"
        if not gate.numel() or any(distance_of_rows(one) is None for one in (gate, value)):
            return "strides: expected rows without gaps, all at one distance"
        return "autograd needs the steps one by one" if torch.is_grad_enabled() else ""

    def params_of(self, gate: Any, value: Any) -> SiluProductParams:
        """The sizes of a call."""
        return SiluProductParams(tokens=gate.shape[:-1].numel(), channels=gate.shape[-1], dtype=_dtype(gate))

    def shape(self, params: SiluProductParams) -> str:
        """The sizes in words."""
        return f"{params.tokens}x{params.channels} {params.dtype}"

    def minimum_bytes(self, params: SiluProductParams) -> int:
        """Bytes that a call must read and write: gate, value and the result."""
        return 3 * params.tokens * params.channels * (4 if params.dtype == "float32" else 2)


def distance_of_rows(x: Any) -> int | None:
    """Elements from one row of `[..., C]` to the next; None where rows have gaps, or lie at several distances."""
    if x.dim() and x.shape[-1] > 1 and x.stride(-1) != 1:
        return None
    distance, rows = None, 1
    for size, stride in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if distance is None:
            distance = stride
        elif stride != rows * distance:
            return None
        rows *= size
    return int(x.shape[-1] if distance is None else distance)


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")
