"""Tensors that a model's blocks concatenate, made side by side instead.

Two streams' queries, keys and values are projected into the one tensor that attention takes: FLUX.1-dev joins 28 MB of each in every
double-stream block.  One product makes all three of a stream, where their weights lie one after another.  An op that works in place finds
its stream as a slice of the joint tensor.  A single-stream block finds text and image where the block before left them.
"""

from __future__ import annotations

import itertools
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


def pack_projections(transformer: Any) -> None:
    """Have the weights of each attention's queries, keys and values lie one after another in memory, where one product makes all three.

    The parameters stay those of their layers, with the same values, as views of one tensor.  A CUDA graph of before holds old addresses.
    """
    for module in transformer.modules():
        for names in (("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")):
            layers = [getattr(module, name, None) for name in names]
            if any(map(reason_of_layer, layers)):
                continue
            _put_side_by_side([layer.weight for layer in layers])  # type: ignore[union-attr]
            _put_side_by_side([layer.bias for layer in layers])  # type: ignore[union-attr]


def _put_side_by_side(parameters: Sequence[Any]) -> None:
    if any(one is None for one in parameters) or len({(one.dtype, one.device, one.shape[1:]) for one in parameters}) > 1:
        return
    if not _adjacent(parameters):
        whole = torch.cat([one.data for one in parameters])
        for one, part in zip(parameters, torch.split(whole, [len(one) for one in parameters]), strict=True):
            one.data = part


def project(streams: Sequence[Stream], head_dim: int, *, packed: bool = True) -> Projected:
    """The projections of streams in the order in which attention takes them.

    Plain linear layers write into slices of one tensor, which holds queries, keys and values of each token side by side, or of one tensor
    for each of the three.  Where something else is to be called (a layer with an adapter or a hook, autograd, autocast), or where a slice
    holds several samples with gaps between them, each stream is projected alone and `joined` concatenates.

    Args:
        packed: one tensor for all three, whose rows a kernel then finds with gaps between them.
    """
    if not all(tokens.shape[0] == 1 and is_product(tokens, layer) for tokens, layers in streams for layer in layers):
        return Projected([[layer(tokens).unflatten(-1, (-1, head_dim)) for layer in layers] for tokens, layers in streams], None)
    lengths, write = [tokens.shape[1] for tokens, _ in streams], project_into if torch.compiler.is_compiling() else _project_into
    joint: list[Any] = []
    for group in [slice(None)] if packed else [slice(place, place + 1) for place in range(len(streams[0][1]))]:
        widths = [layer.out_features for layer in streams[0][1][group]]
        whole: Any = streams[0][0].new_empty(1, sum(lengths), sum(widths))
        flat = [layer for _, layers in streams for layer in layers[group]]
        write(whole, [tokens for tokens, _ in streams], [layer.weight for layer in flat], [layer.bias for layer in flat])
        joint += [part.unflatten(-1, (-1, head_dim)) for part in whole.split(widths, dim=-1)]
    return Projected([list(parts) for parts in zip(*(one.split(lengths, dim=1) for one in joint), strict=True)], joint)


def _project_into(whole: torch.Tensor, tokens: list[torch.Tensor], weights: list[torch.Tensor], biases: list[torch.Tensor | None]) -> None:
    """Products of `[1, S, C]` with the weights of its layers side by side in `whole`, one stream after another along its tokens.

    Weights that lie one after another in memory are one weight: one product instead of one per layer.
    """
    each = len(weights) // len(tokens)
    for number, (rows, part) in enumerate(zip(tokens, torch.split(whole[0], [rows.shape[1] for rows in tokens]), strict=True)):
        of_stream = slice(number * each, (number + 1) * each)
        for weight, bias, made in _as_one(weights[of_stream], biases[of_stream], part):
            if bias is None:
                torch.mm(rows[0], weight.t(), out=made)
            else:
                torch.addmm(bias, rows[0], weight.t(), out=made)


def _as_one(weights: list[torch.Tensor], biases: list[Any], made: torch.Tensor) -> list[tuple[torch.Tensor, Any, torch.Tensor]]:
    """Weight, bias and result of each product: of a single one where weights and biases each lie one after another."""
    widths = [len(weight) for weight in weights]
    without_bias = all(bias is None for bias in biases)
    if _adjacent(weights) and (without_bias or _adjacent(biases)):
        weight = weights[0].as_strided((sum(widths), weights[0].shape[1]), weights[0].stride())
        return [(weight, None if without_bias else biases[0].as_strided((sum(widths),), (1,)), made)]
    return list(zip(weights, biases, torch.split(made, widths, dim=1), strict=True))


def _adjacent(tensors: Sequence[Any]) -> bool:
    """Whether tensors without gaps lie one after another in one storage."""
    return all(
        before is not None
        and after is not None
        and before.dtype == after.dtype
        and before.is_contiguous()
        and after.is_contiguous()
        and before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr() != 0
        and after.storage_offset() == before.storage_offset() + before.numel()
        for before, after in itertools.pairwise(tensors)
    )


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
        and _adjacent([first[0], second[0]])
    )
    return first.as_strided(whole, (whole[1] * whole[2], whole[2], 1)) if adjacent else torch.cat([first, second], dim=1)


def is_product(x: torch.Tensor, layer: Any) -> bool:
    """Whether a matrix product with `out=` is all that the layer's call does."""
    return not reason_of_layer(layer) and x.dtype == layer.weight.dtype and not _must_call()


def _must_call() -> bool:
    """Whether operations must be called as they are: autograd and autocast take no `out=`."""
    return torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
