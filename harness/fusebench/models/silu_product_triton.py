"""`silu(gate) * value` as a Triton kernel, for rows of wider tensors as they are."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl

from .silu_product import distance_of_rows

BLOCK = 2048
"""Values of a program: 8 of each thread, which are 16 bytes in bfloat16.  It divides the 18 432 channels of FLUX.2-dev."""
WARPS = 8


@triton.jit
def silu_product_kernel(gate, value, out, channels, gate_distance, value_distance, block: tl.constexpr):  # noqa: PLR0917
    """A block of one row.  The SiLU is rounded before the product, as eager torch rounds it."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < channels
    x = tl.load(gate + row * gate_distance + at, mask=inside).to(tl.float32)
    y = tl.load(value + row * value_distance + at, mask=inside).to(tl.float32)
    activated = tl.div_rn(x, 1.0 + tl.exp(-x)).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * channels + at, (activated * y).to(out.dtype.element_ty), mask=inside)


def silu_product(gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A new `silu(gate) * value` for `[..., C]`, whose rows are without gaps and at one distance each."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    grid, values = grid_and_values(gate, value, out)
    with torch.cuda.device(gate.device) if gate.is_cuda else contextlib.nullcontext():
        silu_product_kernel[grid](*values, block=BLOCK, num_warps=WARPS)
    return out


def grid_and_values(gate: torch.Tensor, value: torch.Tensor, out: torch.Tensor) -> tuple[tuple[int, int], tuple[Any, ...]]:
    """Programs along rows and channels, and the kernel's arguments."""
    channels = gate.shape[-1]
    distances = distance_of_rows(gate), distance_of_rows(value)
    return (gate.shape[:-1].numel(), triton.cdiv(channels, BLOCK)), (gate, value, out, channels, *distances)
