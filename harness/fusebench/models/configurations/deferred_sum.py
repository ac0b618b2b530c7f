"""Sums that a block leaves to the norm of the next block, which adds and normalises in one launch.

A block ends with `residual + gate * update`, and the next one begins with a norm of that sum.  `residual_gate_norm_scale_shift` makes both,
and returns the sum beside the norm, so that no pass reads the sum again.  Between two blocks the three tensors stand for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from diffusers.models.normalization import AdaLayerNormContinuous, AdaLayerNormZero, AdaLayerNormZeroSingle

from ..op_calls import SiteOp
from .modulations import modulation
from .streams import side_by_side


class DeferredSum(NamedTuple):
    """The sum `residual + gate * update` before it is added, of tensors `[B, S, D]`, `[B, 1, D]` and `[B, S, D]`."""

    residual: torch.Tensor
    gate: torch.Tensor
    update: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """`[B, S, D]`."""
        return self.residual.shape

    def __add__(self, other: torch.Tensor) -> DeferredSum:  # type: ignore[override]
        """A further term, as a ControlNet adds it between two blocks."""
        return self._replace(residual=self.residual + other)


Stream = torch.Tensor | DeferredSum
"""Tokens `[B, S, D]` between two blocks."""


def added(stream: Stream) -> torch.Tensor:
    """The tokens themselves."""
    return stream.residual + stream.gate * stream.update if isinstance(stream, DeferredSum) else stream


def joined(first: Stream, second: Stream) -> Stream:
    """Two streams as one `[B, S1 + S2, D]`: parts of one deferred sum, or tensors."""
    if isinstance(first, DeferredSum) and isinstance(second, DeferredSum):
        return DeferredSum(side_by_side(first.residual, second.residual), first.gate, side_by_side(first.update, second.update))
    return side_by_side(added(first), added(second))


def parted(stream: Stream, tokens: int) -> tuple[Stream, Stream]:
    """The first `tokens` of a stream, and the others."""
    if isinstance(stream, DeferredSum):
        residual, gate, update = stream
        return DeferredSum(residual[:, :tokens], gate, update[:, :tokens]), DeferredSum(residual[:, tokens:], gate, update[:, tokens:])
    return stream[:, :tokens], stream[:, tokens:]


def first_norm(norm: Any, stream: Stream, temb: Any) -> tuple[torch.Tensor, ...]:
    """The modulated norm at a block's begin, its tokens before that norm, the gate of what follows, and further modulations."""
    normed, *modulation = norm(stream, emb=temb)
    return (normed, *modulation) if isinstance(stream, DeferredSum) else (normed, stream, *modulation)


def feed_forward(
    op: SiteOp, feed_forward: Any, eps: float, residual: torch.Tensor, attended: torch.Tensor, modulation: Sequence[torch.Tensor]
) -> DeferredSum:
    """The feed-forward of the modulated norm of `residual` plus the gated attention, and the residual that it is to be added to."""
    gate_msa, shift_mlp, scale_mlp, gate_mlp = (one[:, None] for one in modulation)
    y, residual = op(residual, attended, gate_msa, None, None, scale_mlp, shift_mlp, eps=eps, norm="layer")
    return DeferredSum(residual, gate_mlp, feed_forward(y))


def modulated_sum(op: SiteOp, norm: Any, x: DeferredSum, scale: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The layer norm of the sum, times one plus `scale [B, D]`, plus `shift [B, D]`; and the sum.  Both `[B, S, D]`."""
    normed, stream = op(x.residual, x.update, x.gate, None, None, scale[:, None], shift[:, None], eps=norm.eps, norm="layer")
    return normed, stream


class FusedNormZeroOfSum(AdaLayerNormZero):
    """The first norm of a double-stream block after another: returns the sum after its norm, then what the norm modulates."""

    fused: SiteOp

    def forward(
        self,
        x: DeferredSum,
        timestep: torch.Tensor | None = None,
        class_labels: torch.Tensor | None = None,
        hidden_dtype: torch.dtype | None = None,
        emb: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = modulation(self, emb).chunk(6, dim=1)
        return *modulated_sum(self.fused, self.norm, x, scale_msa, shift_msa), gate_msa, shift_mlp, scale_mlp, gate_mlp


class FusedNormZeroSingleOfSum(AdaLayerNormZeroSingle):
    """The norm of a single-stream block after another: returns the sum after its norm, then the gate."""

    fused: SiteOp

    def forward(self, x: DeferredSum, emb: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        shift, scale, gate = modulation(self, emb).chunk(3, dim=1)
        return *modulated_sum(self.fused, self.norm, x, scale, shift), gate


class FusedNormContinuousOfSum(AdaLayerNormContinuous):
    """The norm before the output projection, of the last block's sum."""

    fused: SiteOp

    def forward(self, x: DeferredSum, conditioning_embedding: torch.Tensor) -> torch.Tensor:
        scale, shift = modulation(self, conditioning_embedding, x.residual.dtype).chunk(2, dim=1)
        return modulated_sum(self.fused, self.norm, x, scale, shift)[0]
