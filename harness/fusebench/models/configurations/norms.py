"""diffusers' modulated norms with one launch each: as subclasses for a substitution, and as layers of the `kernels` library.

Several models share these three classes.  A layer of the library is a class without constructor and members, whose `forward` the library
binds to diffusers' own module; so both forms call the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from diffusers.models.normalization import AdaLayerNormContinuous, AdaLayerNormZero, AdaLayerNormZeroSingle

from ..op_calls import SiteOp
from .modulations import modulation

NormOp = Callable[..., Any]
"""`norm_scale_shift` as `dispatch` gives it, or one site's call of it."""


def modulated(op: NormOp, norm: Any, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> Any:
    """The layer norm of `x [B, S, D]`, times one plus `scale [B, D]`, plus `shift [B, D]`, as `[B, S, D]`."""
    return op(x, None, None, scale[:, None], shift[:, None], eps=norm.eps, norm="layer")


def norm_zero(module: Any, op: NormOp, x: torch.Tensor, emb: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """The forward of `AdaLayerNormZero`: the modulated norm, the gate of the attention, then shift, scale and gate of the feed-forward."""
    shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = modulation(module, emb).chunk(6, dim=1)
    return modulated(op, module.norm, x, scale_msa, shift_msa), gate_msa, shift_mlp, scale_mlp, gate_mlp


def norm_zero_single(module: Any, op: NormOp, x: torch.Tensor, emb: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The forward of `AdaLayerNormZeroSingle`: the modulated norm and the gate."""
    shift, scale, gate = modulation(module, emb).chunk(3, dim=1)
    return modulated(op, module.norm, x, scale, shift), gate


def norm_continuous(module: Any, op: NormOp, x: torch.Tensor, conditioning: torch.Tensor) -> torch.Tensor:
    """The forward of `AdaLayerNormContinuous`: the modulated norm."""
    scale, shift = modulation(module, conditioning, x.dtype).chunk(2, dim=1)
    return modulated(op, module.norm, x, scale, shift)


class FusedNormZero(AdaLayerNormZero):
    """The first norm of a double-stream block."""

    fused: SiteOp

    def forward(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor | None = None,
        class_labels: torch.Tensor | None = None,
        hidden_dtype: torch.dtype | None = None,
        emb: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        return norm_zero(self, self.fused, x, emb)


class FusedNormZeroSingle(AdaLayerNormZeroSingle):
    """The norm of a single-stream block."""

    fused: SiteOp

    def forward(self, x: torch.Tensor, emb: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return norm_zero_single(self, self.fused, x, emb)


class FusedNormContinuous(AdaLayerNormContinuous):
    """The norm before the output projection."""

    fused: SiteOp

    def forward(self, x: torch.Tensor, conditioning_embedding: torch.Tensor) -> torch.Tensor:
        return norm_continuous(self, self.fused, x, conditioning_embedding)


def layer_norm_zero(op: NormOp) -> type[torch.nn.Module]:
    """The layer for `AdaLayerNormZero`."""

    class NormZeroLayer(torch.nn.Module):
        can_torch_compile, has_backward = True, False

        def forward(
            self,
            x: torch.Tensor,
            timestep: torch.Tensor | None = None,
            class_labels: torch.Tensor | None = None,
            hidden_dtype: torch.dtype | None = None,
            emb: torch.Tensor | None = None,
        ) -> tuple[torch.Tensor, ...]:
            return norm_zero(self, op, x, emb)

    return NormZeroLayer


def layer_norm_zero_single(op: NormOp) -> type[torch.nn.Module]:
    """The layer for `AdaLayerNormZeroSingle`."""

    class NormZeroSingleLayer(torch.nn.Module):
        can_torch_compile, has_backward = True, False

        def forward(self, x: torch.Tensor, emb: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
            return norm_zero_single(self, op, x, emb)

    return NormZeroSingleLayer


def layer_norm_continuous(op: NormOp) -> type[torch.nn.Module]:
    """The layer for `AdaLayerNormContinuous`."""

    class NormContinuousLayer(torch.nn.Module):
        can_torch_compile, has_backward = True, False

        def forward(self, x: torch.Tensor, conditioning_embedding: torch.Tensor) -> torch.Tensor:
            return norm_continuous(self, op, x, conditioning_embedding)

    return NormContinuousLayer


NORM_OP = "norm_scale_shift"
FUSED_NORMS: Mapping[type, type] = {
    AdaLayerNormZero: FusedNormZero,
    AdaLayerNormZeroSingle: FusedNormZeroSingle,
    AdaLayerNormContinuous: FusedNormContinuous,
}
"""The subclass that replaces each class of diffusers."""
NORM_LAYERS: Mapping[type, Callable[[NormOp], type[torch.nn.Module]]] = {
    AdaLayerNormZero: layer_norm_zero,
    AdaLayerNormZeroSingle: layer_norm_zero_single,
    AdaLayerNormContinuous: layer_norm_continuous,
}
"""What makes the layer of the `kernels` library for each class of diffusers."""


def reason_kept(module: Any) -> str:
    """Why one of these norms cannot be an op's call; empty if it can."""
    if not isinstance(module.norm, torch.nn.LayerNorm):
        return f"its norm is {type(module.norm).__name__}, expected LayerNorm"
    if module.norm.weight is not None or module.norm.bias is not None:
        return "its LayerNorm has weights of its own, expected none"
    if getattr(module, "emb", None) is not None:
        return "it embeds timestep and class itself, expected its embedding as an argument"
    return ""
