"""Variants of one transformer that share its weights: as diffusers runs it, with fused ops, compiled, and in CUDA graphs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import UsageError
from .denoise import Denoising, Predict
from .op_calls import OpCalls
from .substitution import Substitution, require_known_classes

if TYPE_CHECKING:
    import torch

    from ..registry.collection import Collection

SPLIT, FUSED, COMPILED, FUSED_COMPILED = "split", "fused", "compiled", "fused_compiled"
GRAPH = "_graph"
PLAIN = (SPLIT, FUSED, COMPILED, FUSED_COMPILED)
WARM_UPS = 2


class VariantName(msgspec.Struct, frozen=True):
    """A variant's name taken apart."""

    substituted: bool
    compiled: bool
    graph: bool


def parse_variant(name: str) -> VariantName:
    """`fused_compiled_graph` taken apart.

    Raises:
        UsageError: no such variant.
    """
    base = name.removesuffix(GRAPH)
    graph = base != name
    if base not in PLAIN:
        known = ", ".join([*PLAIN, *(one + GRAPH for one in PLAIN)])
        raise UsageError(f"no variant {name!r}; expected one of {known}")
    return VariantName(FUSED in base, COMPILED in base, graph)


class Variant:
    """One runnable variant."""

    def __init__(self, name: str, predict: Predict, calls: OpCalls | None, transformer: Any) -> None:
        self.name, self.predict, self.calls, self.transformer = name, predict, calls, transformer


def make_variant(name: str, denoising: Denoising, transformer: Any, collection: Collection | None = None) -> Variant:
    """A variant with modules of its own that share the parameters of `transformer`.

    Args:
        collection: where the ops' kernels are looked up; by default those of the surrounding project.

    Raises:
        UsageError: no such variant, or a diffusers that the substitution does not know.
    """
    parts = parse_variant(name)
    model = denoising.model
    own = share_weights(transformer)
    calls = None
    if parts.substituted:
        require_known_classes(model)
        calls = OpCalls(collection=collection)
        model.substitute(own, calls, Substitution(own))
    if parts.compiled:
        for stack in model.stacks.values():
            for block in own.get_submodule(stack):
                block.compile(fullgraph=True, dynamic=False)
    predict = denoising.predictor(own)
    if parts.graph:
        predict = GraphedPredict(predict, *denoising.middle())
    return Variant(name, predict, calls, own)


def share_weights(transformer: Any) -> Any:
    """A copy of the modules whose parameters and buffers are the same tensors."""
    shared = {id(tensor): tensor for tensor in (*transformer.parameters(), *transformer.buffers())}
    return copy.deepcopy(transformer, shared)


class GraphedPredict:
    """A prediction captured in a CUDA graph: a call copies its inputs into the graph's and replays it.

    Raises:
        RuntimeError: the prediction does what no graph can hold (torch's own message says what).
    """

    def __init__(self, predict: Predict, latents: torch.Tensor, timestep: torch.Tensor) -> None:
        import torch

        self._latents, self._timestep = latents.clone(), timestep.clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                predict(self._latents, self._timestep)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = predict(self._latents, self._timestep)

    def __call__(self, latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        self._latents.copy_(latents)
        self._timestep.copy_(timestep)
        self._graph.replay()
        return self._output


def default_variants(device: str) -> Sequence[str]:
    """The variants that are measured unless some are named."""
    return (*PLAIN, SPLIT + GRAPH, FUSED + GRAPH, COMPILED + GRAPH, FUSED_COMPILED + GRAPH) if device == "cuda" else (SPLIT, FUSED)
