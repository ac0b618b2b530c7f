"""What eager torch launches beside matrix products and attention, traced without a device, and what such launches cost on one.

Tensors of the trace are fake: they have sizes and layouts, and no values.  So a full model is traced on any machine in seconds.
A launch's time is taken to be linear in few amounts, told by how torch's kernels read and write (`KINDS`).  Their costs are fitted to the
torch chains of a stored run, whose launches are traced the same way; no model's step enters.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = ("launch", "stream", "walk16", "walk32", "cast", "join", "rows", "heads")
"""`launch`: each, in number.  `stream`: tensors of one layout, read and written in order, in MB (vectorised kernels of TensorIterator;
reductions too, which no chain has).  `walk16`, `walk32`: results of 16 and 32 bits whose address is computed per value, in millions of
values: broadcast or strided inputs, mixed ones in order, wider copies.  `cast`: results of inputs that are both mixed and broadcast or
strided, in millions of values: torch asks for the dtype of each value that it reads (`fetch_and_cast`).  `join`: concatenations of pieces
of less than 16 bytes in one launch, in millions of values (`CatArrayBatchedCopy`).  `rows`, `heads`: norms in one launch, in MB."""
LONGEST_HEAD = 256
"""Elements of the longest row that counts as a head: torch's norm kernel has a block of threads per row, which short rows leave idle."""
VECTOR_BYTES = 16
"""What torch's vectorised concatenation copies at once (`CatArrayBatchedCopy_vectorized`)."""
JOINED_DIMS = 4
"""Dimensions that torch concatenates in one launch (`CAT_ARRAY_MAX_INPUT_DIMS`).  With more it copies each input into its place."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_addmm_activation")
"""Operators of libraries, in place (with an underscore behind) or not."""
UNWRITTEN = ("empty", "empty_like", "empty_strided", "new_empty", "zeros", "ones", "full", "arange", "scalar_tensor")
"""Operators that launch nothing, or fill small constants."""
ATTENTION, ELSEWHERE = "inside", "outside"
"""Places: inside attention modules, and outside."""

Amounts = Counter[str]
"""By kind."""


class Tracer(TorchDispatchMode):
    """Notes the amounts of every launch by place while it is entered, but those of `unseen` blocks; and the work of all products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.amounts: dict[str, Amounts] = {ATTENTION: Counter(), ELSEWHERE: Counter()}
        self.product_flops: Counter[str] = Counter()
        """By dtype, those of `unseen` blocks included."""
        self.attention, self._hidden = 0, 0

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Launches in the block are not noted."""
        self._hidden += 1
        try:
            yield
        finally:
            self._hidden -= 1

    def total(self) -> Amounts:
        """The amounts of all places."""
        return self.amounts[ATTENTION] + self.amounts[ELSEWHERE]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (name := func._overloadpacket.__name__.rstrip("_")) in PRODUCTS:
            self.product_flops[str(args[0].dtype).removeprefix("torch.")] += product_flops(name, args, out)
        if not self._hidden and not func.is_view:
            self.note(amounts_of(func, args, kwargs or {}, out))
        return out

    def note(self, amounts: Mapping[str, float]) -> None:
        """Add the amounts of a launch where the trace is."""
        self.amounts[ATTENTION if self.attention else ELSEWHERE].update(amounts)


def product_flops(name: str, args: Sequence[Any], result: torch.Tensor) -> int:
    """Floating-point operations of a product: a multiplication and an addition for each value of the result and each term of its sum."""
    terms: int = args[1][0].numel() if name == "convolution" else args[0 if name in ("mm", "bmm") else 1].shape[-1]
    return 2 * result.numel() * terms


def amounts_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Amounts:
    """The amounts of one operator's launch, and of the copy that torch makes of a norm's strided rows first; none for a product, and for an
    operator that moves nothing."""
    name = func._overloadpacket.__name__
    result = out[0] if isinstance(out, (tuple, list)) and out else out
    if (
        not isinstance(result, torch.Tensor)
        or name.rstrip("_") in (*PRODUCTS, *UNWRITTEN)
        or name in ("view_as_real", "view_as_complex", "_unsafe_view")
    ):
        return Counter()
    inputs = list(_tensors(args))
    moved = (sum(_bytes(one) for one in inputs) + _bytes(result)) / 1e6
    kind = _kind(name, result, inputs, args, kwargs)
    values = result.numel() / 1e6
    launches = len(inputs) if name in ("cat", "stack") and result.dim() > JOINED_DIMS else 1
    amounts = Counter({"launch": launches, kind: moved if kind in ("stream", "rows", "heads") else values})
    if name == "native_layer_norm" and not inputs[0].is_contiguous():
        amounts.update({"launch": 1, _walk(result): values})
    return amounts


def _walk(result: torch.Tensor) -> str:
    return "walk16" if result.element_size() <= 2 else "walk32"


def _kind(name: str, result: torch.Tensor, inputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    walk = _walk(result)
    if name == "native_layer_norm":
        return "heads" if result.shape[-1] <= LONGEST_HEAD else "rows"
    if name in ("mean", "sum"):
        return "stream"
    if name in ("cat", "stack"):
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        in_vectors = name == "cat" and all(_is_chunked(one, dim) for one in inputs if one.numel())
        return walk if result.dim() > JOINED_DIMS else "stream" if in_vectors else "join"
    if name in ("_to_copy", "copy_", "clone"):
        source = inputs[-1]
        return "stream" if source.element_size() >= result.element_size() and _same_layout(source, result) else walk
    large = [one for one in inputs if one.numel() > 1]
    types = {one.dtype for one in (*large, result) if one.dtype.is_floating_point or one.dtype.is_complex}
    if all(_same_layout(one, result) for one in large):
        return walk if len(types) > 1 else "stream"
    return "cast" if len(types) > 1 else walk


def _is_chunked(one: torch.Tensor, dim: int) -> bool:
    """Whether a tensor enters a concatenation in runs of whole vectors."""
    return one.is_contiguous() and (one.shape[dim:].numel() * one.element_size()) % VECTOR_BYTES == 0


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both hold the same positions in the same order without holes."""
    return one.shape == other.shape and one.stride() == other.stride() and _is_dense(one) and _is_dense(other)


def _is_dense(one: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(one.stride(), one.shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _bytes(one: torch.Tensor) -> int:
    return one.numel() * one.element_size()


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, (list, tuple)):
        for one in found:
            yield from _tensors(one)


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """RMS norm and attention as one operator each, for the time of the block: a CPU's torch takes them apart, a GPU's does not."""
    names = ("rms_norm", "scaled_dot_product_attention")
    before = {name: getattr(torch.nn.functional, name) for name in names}

    def rms_norm(x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None) -> torch.Tensor:
        return torch.native_layer_norm(x, list(shape), weight, None, eps or 0.0)[0]

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return torch.empty_like(query)

    try:
        for name, stand_in in zip(names, (rms_norm, attention), strict=True):
            setattr(torch.nn.functional, name, stand_in)
        yield
    finally:
        for name, original in before.items():
            setattr(torch.nn.functional, name, original)


@contextlib.contextmanager
def places(tracer: Tracer, transformer: Any) -> Iterator[None]:
    """Tell `tracer` when an attention module of `transformer` runs, for the time of the block."""

    def enter(*_: Any) -> None:
        tracer.attention += 1

    def leave(*_: Any) -> None:
        tracer.attention -= 1

    handles = []
    for module in transformer.modules():
        if hasattr(module, "processor"):
            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Costs(NamedTuple):
    """Microseconds of each kind's unit."""

    by_kind: Mapping[str, float]
    scatter: float
    """Root mean square of the fitted calls' relative errors."""

    def time_us(self, amounts: Mapping[str, float]) -> float:
        """The time of launches of these amounts."""
        return sum(self.by_kind[kind] * amount for kind, amount in amounts.items())


def fit_costs(calls: Iterable[tuple[Mapping[str, float], float]]) -> Costs:
    """The costs, none below zero, with the least squared relative errors over `calls`: amounts and measured microseconds."""
    known = list(calls)
    amounts = np.array([[found.get(kind, 0.0) for kind in KINDS] for found, _ in known])
    measured = np.array([time for _, time in known])
    costs, _ = nnls(amounts / measured[:, None], np.ones(len(known)))
    errors = amounts @ costs / measured - 1.0
    return Costs(dict(zip(KINDS, costs.tolist(), strict=True)), float(np.sqrt(np.mean(errors**2))))


def traced(call: Callable[[], object], *, transformer: Any = None, tracer: Tracer | None = None) -> Tracer:
    """The launches of one call on fake tensors."""
    tracer = tracer or Tracer()
    with as_on_a_gpu(), places(tracer, transformer) if transformer is not None else contextlib.nullcontext(), torch.no_grad(), tracer:
        call()
    return tracer
