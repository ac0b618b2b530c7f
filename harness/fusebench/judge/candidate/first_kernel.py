"""A small Triton kernel that a process compiles, and launches on a GPU, while it waits for its candidate.

The first compilation of a process costs a second more than the next: it imports Triton's code generator and reads LLVM and the assembler.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _mean_square(x, out, n, size: tl.constexpr):
    at = tl.arange(0, size)
    values = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out + at, (values * tl.rsqrt(tl.sum(values * values) / n)).to(out.dtype.element_ty), mask=at < n)


def first_source() -> Any:
    """The kernel as input of `triton.compile`, for a process without a GPU."""
    from triton.compiler import ASTSource

    signature = {"x": "*bf16", "out": "*bf16", "n": "i32", "size": "constexpr"}
    return ASTSource(fn=_mean_square, signature=signature, constexprs={(3,): 256})


def compile_first_kernel(device: torch.device) -> None:
    """Compile and launch the kernel on a GPU, into Triton's cache folder of this process.

    Raises:
        Exception: whatever a toolchain that does not work raises.
    """
    x = torch.ones(256, dtype=torch.bfloat16, device=device)
    _mean_square[(1,)](x, torch.empty_like(x), x.numel(), size=256)
    torch.cuda.synchronize(device)
