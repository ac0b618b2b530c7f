"""The select01 ops in torch operations: the eager chain that models run, and the float64 reference of every kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..norm_chain import norm_scale_shift_chain, reference_modulation, reference_norm


def select(index: torch.Tensor, zero: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    """`[B, L, C]`: for each token of index `[B, L]` the row `[B, C]` of set 0 where it is zero, else of set 1."""
    return torch.where(index.unsqueeze(-1) == 0, zero.unsqueeze(1), one.unsqueeze(1))


def select01_chain(x: torch.Tensor, call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Layer norm, both row sets spread over the tokens and selected from, `* (1 + scale)`, `+ shift`.

    Args:
        x: `[B, L, C]`, the call's x or its residual sum.
        call: the arguments of either select01 op.

    Returns (y, gate_out), both `[B, L, C]` in x's dtype; `norm_scale_shift_chain` says which steps round to it.
    """
    scale, shift, gate = (
        select(call.index, zero, one) for zero, one in ((call.scale0, call.scale1), (call.shift0, call.shift1), (call.gate0, call.gate1))
    )
    return norm_scale_shift_chain(x, call.weight, call.bias, scale, shift, call.eps, "layer"), gate.to(x.dtype)


def reference_select01(v: torch.Tensor, arguments: Mapping[str, Any], eps: float) -> dict[str, torch.Tensor]:
    """y and gate_out in float64, from x or the unrounded v `[B, L, C]`."""
    index = arguments["index"]
    scale, shift, gate = (select(index, arguments[f"{kind}0"], arguments[f"{kind}1"]) for kind in ("scale", "shift", "gate"))
    normed = reference_norm(v, arguments["weight"], arguments["bias"], eps, "layer")
    return {"y": reference_modulation(normed, scale, shift), "gate_out": gate.double()}
