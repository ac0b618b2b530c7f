"""The split yardstick: norm, selection and modulation, one well-tuned launch each."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.select01.launch import split
from .op import Arguments


@kernel(
    "norm_scale_shift_gate_select01", "split_triton", version=1, role="split", language="triton",
    note="norm, selection and modulation: two launches",
)  # fmt: skip
def split_triton(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, gate_out), both `[B, L, C]`; between the launches the norm is rounded to the dtype that models keep it in."""
    return split(call)
