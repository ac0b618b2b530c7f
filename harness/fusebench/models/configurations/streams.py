"""Tensors that a model's blocks concatenate, made side by side instead.

Two streams' queries, keys and values are projected into the one tensor that attention takes: FLUX.1-dev joins 28 MB of each in every
double-stream block.  An op that works in place finds its stream as a slice of the joint tensor.  A single-stream block finds text and
image where the block before left them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..linear_gelu import reason_of_layer

Stream = tuple[torch.Tensor, Sequence[Any]]
"""Tokens `[B, S, C]`, and the layers that make their queries, keys and values."""


class Projected(NamedTuple):
    """Queries, keys and values `[B, S, heads, head_dim]` of each stream, to be worked on in place."""

    streams: list[list[torch.Tensor]]
    joint: list[torch.Tensor] | None
    """The tensors that hold all streams, of which `streams` are slices; None for streams that are still apart."""

    def joined(self) -> list[torch.Tensor]:
        """Queries, keys and values of all streams, one after another: `[B, all S, heads, head_dim]`."""
        if self.joint is None and len(self.streams) == 1:
            return self.streams[0]
        return self.joint or [torch.cat(parts, dim=1) for parts in zip(*self.streams, strict=True)]


def project(streams: Sequence[Stream], head_dim: int) -> Projected:
    """The projections of streams in the order in which attention takes them.

    Plain linear layers write into slices of one tensor.  Where something else is to be called (a layer with an adapter or a hook, autograd,
    autocast), or where a slice holds several samples with gaps between them, each stream is projected alone and `joined` concatenates.
    """
    if len(streams) == 1 or not all(tokens.shape[0] == 1 and is_product(tokens, layer) for tokens, layers in streams for layer in layers):
        return Projected([[layer(tokens).unflatten(-1, (-1, head_dim)) for layer in layers] for tokens, layers in streams], None)
    lengths = [tokens.shape[1] for tokens, _ in streams]
    write = project_into if torch.compiler.is_compiling() else _project_into
    joint, apart = [], []
    for alike in zip(*(layers for _, layers in streams), strict=True):  # the layers of all streams' queries, keys or values
        whole: Any = streams[0][0].new_empty(1, sum(lengths), alike[0].out_features)
        write(whole, [tokens for tokens, _ in streams], [layer.weight for layer in alike], [layer.bias for layer in alike])
        heads = whole.unflatten(-1, (-1, head_dim))
        joint.append(heads)
        apart.append(heads.split(lengths, dim=1))
    return Projected([list(parts) for parts in zip(*apart, strict=True)], joint)


def _project_into(whole: torch.Tensor, tokens: list[torch.Tensor], weights: list[torch.Tensor], biases: list[torch.Tensor | None]) -> None:
    """Products of `[1, S, C]` with their layers' weights, one after another along the tokens of `whole`."""
    parts = torch.split(whole[0], [each.shape[1] for each in tokens])
    for part, each, weight, bias in zip(parts, tokens, weights, biases, strict=True):
        if bias is None:
            torch.mm(each[0], weight.t(), out=part)
        else:
            torch.addmm(bias, each[0], weight.t(), out=part)


project_into = torch.library.custom_op(
    "fusebench_models::project_into",
    _project_into,
    mutates_args=("whole",),
    schema="(Tensor(a!) whole, Tensor[] tokens, Tensor[] weights, Tensor?[] biases) -> ()",
)
"""The same for torch.compile, whose Inductor writes no matrix product into a slice: it concatenates, which copies q, k and v.  It calls an
operator as it is, with a tensor that it made itself."""
project_into.register_fake(lambda whole, tokens, weights, biases: None)


def side_by_side(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Two streams `[B, S, C]` as one `[B, S1 + S2, C]`: a view where they lie in one tensor so, otherwise a concatenation."""
    whole = (1, first.shape[1] + second.shape[1], first.shape[2])
    adjacent = (
        not torch.compiler.is_compiling()  # which plans memory itself
        and not _must_call()
        and first.shape[0] == second.shape[0] == 1
        and first.dtype == second.dtype
        and first[0].is_contiguous()
        and second[0].is_contiguous()
        and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr() != 0
        and second.storage_offset() == first.storage_offset() + first.numel()
    )
    return first.as_strided(whole, (whole[1] * whole[2], whole[2], 1)) if adjacent else torch.cat([first, second], dim=1)


def is_product(x: torch.Tensor, layer: Any) -> bool:
    """Whether a matrix product with `out=` is all that the layer's call does."""
    return not reason_of_layer(layer) and x.dtype == layer.weight.dtype and not _must_call()


def _must_call() -> bool:
    """Whether operations must be called as they are: autograd and autocast take no `out=`."""
    return torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
