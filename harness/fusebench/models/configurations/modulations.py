"""Modulations of all blocks, made ahead of them beside the work of earlier blocks.

A block's shift, scale and gate are a product of the timestep's embedding alone, of one row: it reads the whole weight and computes next to
nothing.  FLUX.1-dev reads 6.4 GB a forward so, Qwen-Image 13.6 GB.  On a GPU they run on a stream of their own, next to the products and
the attention of the blocks before.  The embedding's SiLU, which every block applies to the same row, is applied once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .streams import is_product


class Modulation(NamedTuple):
    """The product that a norm would make of the embedding: shift, scale and gate side by side, `[B, N]`."""

    rows: torch.Tensor


class Plan:
    """Which layers make modulations, and in which shares they are made ahead.

    Args:
        blocks: each block's layers `[D] -> [N]`, which take the SiLU of the embedding, in the order in which a forward runs the blocks.
        of_half: those of them that take the first half of the embedding's rows.
    """

    def __init__(self, blocks: Sequence[Sequence[Any]], *, of_half: Sequence[Any] = ()) -> None:
        self.of_half = frozenset(of_half)
        # Shares double, so that the first block waits for its own alone, and a forward of 58 blocks waits 7 times.
        self.share_of = {layer: number.bit_length() for number, layers in enumerate(blocks) for layer in layers}
        self.shares: list[list[Any]] = [[] for _ in set(self.share_of.values())]
        for layer, share in self.share_of.items():
            self.shares[share].append(layer)


class Embedding:
    """The timestep's embedding `[B, D]` of one forward, as its blocks and its output norm take it."""

    def __init__(self, plan: Plan, embedding: torch.Tensor) -> None:
        self._plan, self.tensor = plan, embedding
        self._active = torch.nn.functional.silu(embedding)
        self._made: dict[Any, torch.Tensor] = {}
        self._ready: list[Any] = []
        """What is to be waited for, by share that is launched; None for nothing."""
        self._begin(0)

    def of(self, layer: Any) -> Modulation:
        """The product of one layer, waited for outside of compiled code.

        Made here where something else is to be called: a layer with an adapter or a hook, autograd.
        """
        share = self._plan.share_of[layer]
        self._begin(share + 1)
        ready, self._ready[share] = self._ready[share], None
        if ready is not None:
            torch.cuda.current_stream(self._active.device).wait_event(ready)
        return Modulation(self._made[layer] if layer in self._made else layer(self._taken_by(layer)))

    def _taken_by(self, layer: Any) -> torch.Tensor:
        return self._active.chunk(2)[0] if layer in self._plan.of_half else self._active

    def chunk(self, chunks: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
        """Parts of the embedding itself: Qwen-Image-Edit takes its first half for the output norm."""
        return self.tensor.chunk(chunks, dim)

    def _begin(self, last: int) -> None:
        """Launch all shares up to `last` that are not launched yet."""
        for share in range(len(self._ready), min(last + 1, len(self._plan.shares))):
            plain = [layer for layer in self._plan.shares[share] if is_product(self._active, layer)]
            self._ready.append(self._launch(plain))

    def _launch(self, layers: Sequence[Any]) -> Any:
        """The products of one share; returns the event after them."""
        if not layers or torch.compiler.is_compiling():  # which has no streams
            return None
        inputs = [self._taken_by(layer) for layer in layers]
        sizes = [rows.shape[0] * layer.out_features for rows, layer in zip(inputs, layers, strict=True)]
        whole = self._active.new_empty(sum(sizes))
        side = side_stream(whole.device)
        if side is not None:
            side.wait_stream(torch.cuda.current_stream(whole.device))
            for each in (self._active, whole):  # the blocks' stream may free them first
                each.record_stream(side)
        with torch.cuda.stream(side) if side is not None else contextlib.nullcontext():
            for layer, rows, part in zip(layers, inputs, torch.split(whole, sizes), strict=True):
                self._made[layer] = made = part.view(rows.shape[0], -1)
                if layer.bias is None:
                    torch.mm(rows, layer.weight.t(), out=made)
                else:
                    torch.addmm(layer.bias, rows, layer.weight.t(), out=made)
        return None if side is None else side.record_event()


def modulation(norm: Any, embedding: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A norm's shift, scale and gate side by side, `[B, N]`: made ahead, or its own product of the embedding `[B, D]`.

    Args:
        dtype: to which the embedding is cast after its SiLU.
    """
    if isinstance(embedding, Embedding):
        embedding = embedding.of(norm.linear)
    if isinstance(embedding, Modulation):
        return embedding.rows
    rows: torch.Tensor = norm.linear(norm.silu(embedding).to(dtype or embedding.dtype))
    return rows


def making_ahead(kind: Any) -> type:
    """The subclass of a timestep embedding's class that hands its blocks an `Embedding`, by its attribute `plan`."""

    class Ahead(kind):
        plan: Plan

        def forward(self, *args: Any, **kwargs: Any) -> Embedding:
            return Embedding(self.plan, super().forward(*args, **kwargs))

    Ahead.__name__ = f"{kind.__name__}Ahead"
    return Ahead


@functools.cache
def _stream_of(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A GPU's CUDA stream for modulations, the same for all forwards; None on another device."""
    return _stream_of(torch.cuda.current_device() if device.index is None else device.index) if device.type == "cuda" else None
