"""Variants of one transformer that share its weights: as diffusers runs it, with fused ops, compiled, and in CUDA graphs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import NotCapturableError, UsageError
from ..registry.kernel import reason_not_runnable
from ..schema import Role
from .denoise import Denoising, Predict
from .op_calls import OpCalls
from .substitution import Substitution

if TYPE_CHECKING:
    import torch

    from ..registry.kernel import Kernel
    from ..registry.lookup import Collection

SPLIT, FUSED, COMPILED, FUSED_COMPILED = "split", "fused", "compiled", "fused_compiled"
GRAPH = "_graph"
PLAIN = (SPLIT, FUSED, COMPILED, FUSED_COMPILED)
PEER = "peer:"
"""Begins the variant whose ops run one library's kernels, such as `peer:sglang`."""
WARM_UPS = 2


class VariantName(msgspec.Struct, frozen=True):
    """A variant's name taken apart."""

    substituted: bool
    compiled: bool
    graph: bool
    peer: str = ""
    """Library whose kernels are put in; empty for this project's own."""

    @property
    def fused(self) -> bool:
        """Whether this project's own fused ops are put in."""
        return self.substituted and not self.peer


def parse_variant(name: str) -> VariantName:
    """`fused_compiled_graph` taken apart.

    Raises:
        UsageError: no such variant.
    """
    base = name.removesuffix(GRAPH)
    graph = base != name
    if base.startswith(PEER) and base != PEER:
        return VariantName(substituted=True, compiled=False, graph=graph, peer=base.removeprefix(PEER))
    if base not in PLAIN:
        known = ", ".join([*PLAIN, *(one + GRAPH for one in PLAIN), f"{PEER}NAME"])
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
        UsageError: no such variant, a diffusers that the substitution does not know, or a library that is not installed.
        NotCapturableError: no CUDA graph can hold the step.
    """
    parts = parse_variant(name)
    model = denoising.model
    model.arrange(transformer)  # also for the variants without ops, whose CUDA graphs hold addresses
    own = share_weights(transformer)
    calls = None
    if parts.substituted:
        model.require_known_classes()
        if parts.peer and collection is not None:
            require_peer(parts.peer, collection, denoising.device.type)
        calls = OpCalls(collection=collection, peer=parts.peer)
        model.substitute(own, calls, Substitution(own))
    if parts.compiled:
        for block in repeated_blocks(own):
            block.compile(fullgraph=True, dynamic=False)
    predict = denoising.predictor(own)
    if parts.graph:
        predict = GraphedPredict(predict, *denoising.middle())
    return Variant(name, predict, calls, own)


def share_weights(transformer: Any) -> Any:
    """A copy of the modules whose parameters and buffers are the same tensors."""
    shared = {id(tensor): tensor for tensor in (*transformer.parameters(), *transformer.buffers())}
    return copy.deepcopy(transformer, shared)


def repeated_blocks(transformer: Any) -> list[Any]:
    """The modules that diffusers' `compile_repeated_blocks` compiles, also where a substitution made a block a subclass of its class.

    Raises:
        RuntimeError: the transformer names no such blocks, or has none of them.
    """
    kinds = set(transformer._repeated_blocks or ())
    found = [module for module in transformer.modules() if kinds & {kind.__name__ for kind in type(module).__mro__}]
    if not found:
        raise RuntimeError(
            f"{type(transformer).__name__} has none of the blocks that diffusers compiles: {', '.join(sorted(kinds)) or '-'}"
        )
    return found


def require_peer(library: str, collection: Collection, device: str) -> None:
    """Refuse a library without a kernel that runs here.

    Raises:
        UsageError: no kernel is named `peer_LIBRARY`, or none of them runs on the device; says why.
    """
    peers: dict[str, list[Kernel]] = {}
    for op in collection.ops:
        for kernel in collection.kernels_of(op):
            if kernel.role is Role.PEER:
                peers.setdefault(kernel.id.name.removeprefix("peer_"), []).append(kernel)
    if library not in peers:
        raise UsageError(f"no kernel is named peer_{library}; expected {PEER}NAME with one of {', '.join(sorted(peers)) or 'no library'}")
    reasons = [reason_not_runnable(kernel, device) for kernel in peers[library]]
    if None not in reasons:
        raise UsageError(f"{PEER}{library}: none of its {len(reasons)} kernels runs on {device}: {reasons[0]}")


class GraphedPredict:
    """A prediction captured in a CUDA graph: a call copies its inputs into the graph's and replays it.

    Raises:
        NotCapturableError: the prediction waits for the device, or does something else that no graph can hold.
    """

    def __init__(self, predict: Predict, latents: torch.Tensor, timestep: torch.Tensor) -> None:
        import torch

        self._latents, self._timestep = latents.clone(), timestep.clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                predict(self._latents, self._timestep)
            # Before the capture, which such a call would break.
            with refused_waits():
                predict(self._latents, self._timestep)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            self._output = captured(self._graph, lambda: predict(self._latents, self._timestep))
        torch.cuda.current_stream().wait_stream(side)

    def __call__(self, latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        self._latents.copy_(latents)
        self._timestep.copy_(timestep)
        self._graph.replay()
        return self._output


@contextlib.contextmanager
def refused_waits() -> Iterator[None]:
    """Refuse every operation for which the host waits for the device, such as a copy of a Python list to it.

    Raises:
        NotCapturableError: names the line of the model that waits.
    """
    import torch

    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        raise NotCapturableError(
            f"no CUDA graph can hold the step: the host waits for the device in every step, {_line_of(error)} ({told(error)})"
        ) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)


def captured(graph: Any, call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What `call` returns, captured in `graph` on the current stream, which captures no longer afterwards, whatever `call` raises.

    Raises:
        NotCapturableError: `call` or the end of the capture failed.
    """
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        output = call()
    except BaseException as error:
        with contextlib.suppress(RuntimeError):  # the first error says what broke the capture
            graph.capture_end()
        if isinstance(error, RuntimeError):
            raise NotCapturableError(f"no CUDA graph can hold the step, {_line_of(error)}: {told(error)}") from error
        raise
    try:
        graph.capture_end()
    except RuntimeError as error:
        raise NotCapturableError(f"no CUDA graph can hold the step: {told(error)}") from error
    return output


def _line_of(error: BaseException) -> str:
    """Where an error was raised: file and line of the innermost frame."""
    trace = error.__traceback__
    if trace is None:
        return "at an unknown place"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"


SAYS_NOTHING = ("Hint:", "For more details", "Set TORCH", "from user code", "CUDA kernel errors might", "Compile with `TORCH_USE_CUDA")
MOST_LINES = 3


def told(error: BaseException) -> str:
    """The first three lines of an error's message that say something, as one line."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    said = [line for line in dict.fromkeys(lines) if line and not line.startswith(SAYS_NOTHING)]
    return "; ".join(said[:MOST_LINES])[:800] or type(error).__name__


def default_variants(device: str) -> Sequence[str]:
    """The variants that are measured unless some are named."""
    return (*PLAIN, SPLIT + GRAPH, FUSED + GRAPH, COMPILED + GRAPH, FUSED_COMPILED + GRAPH) if device == "cuda" else (SPLIT, FUSED)
