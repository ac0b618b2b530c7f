"""The split yardstick: residual and gate, norm, selection and modulation, one well-tuned launch each."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.select01.launch import split
from .op import Arguments


@kernel(
    "residual_norm_scale_shift_gate_select01", "split_triton", version=1, role="split", language="triton",
    note="residual and gate, norm, selection and modulation: three launches",
)  # fmt: skip
def split_triton(call: Arguments) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (y, v, gate_out), each `[B, L, C]`; between the launches the norm is rounded to the dtype that models keep it in."""
    return split(call)
