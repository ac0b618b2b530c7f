"""The part of qknorm_rope that norm libraries compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F

from fusebench import Part

from .op import ITEM_SIZES, Params

if TYPE_CHECKING:
    import torch


def _reference(params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    import torch

    outputs = {}
    for name in ("q", "k"):
        x, weight = arguments[name].double(), arguments[f"{name}_weight"]
        y = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + params.eps)
        outputs[name] = y if weight is None else y * weight.double()
    return outputs


def _split(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor | None, k_weight: torch.Tensor | None, eps: float, **_rotation: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return F.rms_norm(q, q.shape[-1:], q_weight, eps), F.rms_norm(k, k.shape[-1:], k_weight, eps)


def _minimum_bytes(params: Params) -> int:
    item = ITEM_SIZES[params.dtype]
    weights = 2 * params.head_dim * item if params.affine else 0
    return 2 * params.rows * (params.heads + params.key_heads) * params.head_dim * item + weights


def _bytes_written(params: Params) -> int:
    return params.rows * (params.heads + params.key_heads) * params.head_dim * ITEM_SIZES[params.dtype]


NORM = Part(covers="norm only: no rotation", reference=_reference, split=_split, minimum_bytes=_minimum_bytes, bytes_written=_bytes_written)
"""RMS norm per head of q and k."""
