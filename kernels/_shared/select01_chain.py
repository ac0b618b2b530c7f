"""The select01 ops in torch operations: the eager chain that models run, and the float64 formulas that everything is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .norm_chain import norm_scale_shift_chain, reference_modulation, reference_norm


def select(index: torch.Tensor, zero: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    """`[B, L, C]`: for each token of index `[B, L]` the row `[B, C]` of set 0 where it is zero, else of set 1."""
    return torch.where(index.unsqueeze(-1) == 0, zero.unsqueeze(1), one.unsqueeze(1))


def select01_chain(
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
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Layer norm, both row sets spread over the tokens and selected from, `* (1 + scale)`, `+ shift`.

    Returns (y, gate_out), both `[B, L, C]` in x's dtype; which steps round to it is `norm_scale_shift_chain`'s business.
    """
    scale, shift, gate = select(index, scale0, scale1), select(index, shift0, shift1), select(index, gate0, gate1)
    return norm_scale_shift_chain(x, weight, bias, scale, shift, eps, "layer"), gate.to(x.dtype)


def reference_select01(v: torch.Tensor, arguments: Mapping[str, Any], eps: float) -> dict[str, torch.Tensor]:
    """y and gate_out in float64, of x or the unrounded v `[B, L, C]`."""
    index = arguments["index"]
    scale, shift, gate = (select(index, arguments[f"{kind}0"], arguments[f"{kind}1"]) for kind in ("scale", "shift", "gate"))
    normed = reference_norm(v, arguments["weight"], arguments["bias"], eps, "layer")
    return {"y": reference_modulation(normed, scale, shift), "gate_out": gate.double()}
