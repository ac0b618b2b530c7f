"""The honest split yardstick: norm, selection and modulation, one well-tuned launch each."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.select01_triton import split
from .op import NAME


@kernel(
    "norm_scale_shift_gate_select01", "split_triton", version=1, role="split", language="triton",
    note="norm, selection and modulation: two launches",
)  # fmt: skip
def split_triton(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale0: torch.Tensor,
    shift0: torch.Tensor,
    gate0: torch.Tensor,
    scale1: torch.Tensor,
    shift1: torch.Tensor,
    gate1: torch.Tensor,
    index: torch.Tensor,
    *,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, gate_out), both `[B, L, C]`; between the launches the norm is rounded to the dtype that models keep it in."""
    rows = (scale0, shift0, gate0, scale1, shift1, gate1)
    return split(NAME, x, weight, bias, rows, index, eps)  # type: ignore[return-value]
