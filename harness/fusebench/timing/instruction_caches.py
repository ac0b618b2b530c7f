"""A GPU function of straight code, larger than the instruction caches of a multiprocessor: what ran before it leaves no code there.

Without it a timed kernel would find more of its own code the fewer other kernels its case has, and read up to 0.2 us less on an H200.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

INSTRUCTIONS = 16384
"""Of 16 bytes each on GPUs since Volta: 256 KiB, twice the largest instruction cache of a multiprocessor that microbenchmarks have found
(128 KiB: Jia et al. 2018, "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", table 3.1)."""
THREADS = 128
"""A warp for each of the four parts of a multiprocessor, which have caches of their own."""

_CHAINS = {"%a": "0f3F7FFFFE", "%b": "0f3F7FFFFC", "%c": "0f3F7FFFFA", "%d": "0f3F7FFFF8"}
"""Registers and the factor just below 1 by which each is multiplied.  Four chains, so that no instruction waits for the one before; four
factors, because the assembler would compute equal chains once."""
_CODE = tl.constexpr(
    f"{{ .reg .f32 {', '.join(_CHAINS)};"
    + "".join(f"mov.f32 {x}, $1;" for x in _CHAINS)
    + "".join(f"fma.rn.f32 {x}, {x}, {factor}, 0f34000000;" for x, factor in _CHAINS.items()) * (INSTRUCTIONS // len(_CHAINS))
    + "min.f32 %a, %a, %b; min.f32 %c, %c, %d; min.f32 $0, %a, %c; }"
)
_THREADS = tl.constexpr(THREADS)


@triton.jit
def straight_code(target):
    """Run all of `_CODE` once in every thread, and write nothing: its results stay below 1e30, which only the GPU finds out."""
    place = tl.arange(0, _THREADS)
    result = tl.inline_asm_elementwise(_CODE, "=f,f", [place.to(tl.float32)], dtype=tl.float32, is_pure=False, pack=1)
    tl.store(target + place, result, mask=result > 1e30)


def make_code_evictor(device: torch.device) -> Callable[[], None]:
    """A callable that fills the instruction caches of all multiprocessors of an NVIDIA GPU, on the current stream; compiles it first."""
    import torch

    grid = (torch.cuda.get_device_properties(device).multi_processor_count, 1, 1)
    target = torch.empty(THREADS, device=device)
    compiled = straight_code[grid](target, num_warps=THREADS // 32)
    launch = compiled[grid]  # without the search for a compiled function, which costs the host 50 us before each timed call

    def evict() -> None:
        launch(target)

    return evict
