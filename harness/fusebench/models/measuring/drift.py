"""How far the fused model's latents drift from the split one's over the denoise loop, beside the drift of an equivalent model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...schema import Verdict, VerdictKind
from ...schema.models import Drift, DriftStep

if TYPE_CHECKING:
    import torch

LIMIT = 1.5
"""Most times the equivalent's drift that the fused model may show: the factor of the ops' own `close` contract."""


def distances(trajectory: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> tuple[DriftStep, ...]:
    """The distance after each step; see `DriftStep` for the units."""
    return tuple(_distance(step, one, other) for step, (one, other) in enumerate(zip(trajectory, reference, strict=True), start=1))


def _distance(step: int, found: torch.Tensor, reference: torch.Tensor) -> DriftStep:
    import math

    difference = (found - reference).double()
    scale = float(reference.double().square().mean().sqrt())
    error = float(difference.square().mean().sqrt())
    peak = float(reference.max() - reference.min())
    psnr = math.inf if error == 0 else 20 * math.log10(peak / error)
    return DriftStep(step=step, rms=error / scale, largest=float(difference.abs().max()) / scale, psnr_db=psnr)


def judge(variant: str, fused: Sequence[DriftStep], equivalent: Sequence[DriftStep], equivalent_by: str) -> Drift:
    """Hold the drift of `fused` to `LIMIT` times that of the equivalent model, step by step.

    Not finite latents, a step beyond the limit or an equivalent that does not differ at all (then nothing can be told) are named.
    """
    import math

    def drift(kind: VerdictKind, reason: str) -> Drift:
        verdict = Verdict(kind=kind, reason=reason)
        return Drift(
            variant=variant,
            steps=tuple(fused),
            equivalent=tuple(equivalent),
            equivalent_by=equivalent_by,
            limit=LIMIT,
            verdict=verdict,
        )

    for one in fused:
        if not math.isfinite(one.rms):
            return drift(VerdictKind.REGRESSION, f"latents are not finite after step {one.step}")
    if all(one.rms == 0 for one in fused):
        return drift(VerdictKind.PASS, "the same bits")
    if any(one.rms == 0 for one in equivalent):
        return drift(VerdictKind.UNDECIDED, f"{equivalent_by} changes no bit here, so the drift that any model shows is not known")
    worst = max(zip(fused, equivalent, strict=True), key=lambda pair: pair[0].rms / pair[1].rms)
    factor = worst[0].rms / worst[1].rms
    text = (
        f"after step {worst[0].step} {factor:.2f} times the drift of the equivalent model ({worst[0].rms:.2e} against {worst[1].rms:.2e})"
    )
    return drift(VerdictKind.PASS if factor <= LIMIT else VerdictKind.REGRESSION, f"{text}; at most {LIMIT:g} times is allowed")


@contextlib.contextmanager
def other_order(device: torch.device) -> Iterator[str]:
    """Have attention and matrix products accumulate in another order, for the time of the block; yields what does so.

    On CUDA: attention by the memory-efficient kernels, products by the other of cuBLAS and cuBLASLt.  On a CPU: attention by its formula
    and products without oneDNN.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if device.type != "cuda":
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield "attention by its formula and matrix products without oneDNN"
        return
    before = torch.backends.cuda.preferred_blas_library()
    other = "cublas" if "lt" in str(before).lower() else "cublaslt"
    torch.backends.cuda.preferred_blas_library(other)
    try:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            yield f"memory-efficient attention and matrix products by {other}"
    finally:
        torch.backends.cuda.preferred_blas_library(before)
