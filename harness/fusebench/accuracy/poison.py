"""Poison: memory that a kernel allocates holds NaN until the kernel writes it, so an unwritten element shows.

Two mechanisms, because neither reaches everything (docs/accuracy.md lists their reach).  A dispatch mode fills the results of `torch.empty`
and its relatives inside the kernel.  Blocks of the outputs' sizes are filled and freed just before the call; the caching allocator hands
them to code that allocates below the dispatcher, such as torch.compile's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..registry.launches.machine_code import outside_dynamo
from .metrics import as_bits

_POISON_WORD = 0x7FB1
"""Every 16-bit word of poison.  NaN as bfloat16, float16 and, repeated, as float32: a signalling one with a payload that no arithmetic
produces, so that it differs from a computed NaN.  All bits set would not do, because torch's own vectorised conversion from float32 to
bfloat16 writes NaN that way.  As an integer it is large, and so are indices made of it."""

_ALLOCATIONS = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_permuted.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)


class _PoisonAllocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # `outside_dynamo` does it

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # Otherwise compiled code called by a kernel falls back to eager here, and the check covers other code than the timing.
        return True

    @outside_dynamo
    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS:
            _fill(result)
        return result


def _fill(tensor: torch.Tensor) -> None:
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return
    if tensor.dtype is torch.bool:
        tensor.fill_(True)  # bytes other than 0 and 1 are undefined behaviour in a bool
        return
    storage = tensor.untyped_storage()
    words = torch.empty(0, dtype=torch.int16, device=tensor.device)
    words.set_(storage, 0, (storage.nbytes() // 2,), (1,)).fill_(_POISON_WORD)


def _fill_and_free(like: Sequence[torch.Tensor]) -> None:
    # Hold all at once, so that each is a block of its own; in a separate function, so that no reference stays.
    for block in [torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in like]:
        _fill(block)


@contextmanager
def poisoned(like: Sequence[torch.Tensor], *, intercept: bool) -> Iterator[None]:
    """Within the block, freshly allocated memory is poison, as far as the two mechanisms reach.

    Args:
        like: tensors of the sizes and devices that the kernel is expected to allocate.
        intercept: use the dispatch mode too.  Pass False for a kernel that is torch.compile'd as a whole: torch would take the mode for
            a user's and turn compilation off.
    """
    _fill_and_free(like)
    mode = _PoisonAllocations() if intercept else nullcontext()  # type: ignore[no-untyped-call]
    with mode:
        yield


def unwritten(output: torch.Tensor) -> torch.Tensor:
    """Flat indices of the elements of `output` that still hold poison; checked in 16-bit and float32 outputs only."""
    poison = {2: _POISON_WORD, 4: _POISON_WORD * 0x10001}.get(output.element_size())
    if poison is None or not output.is_floating_point():
        return torch.empty(0, dtype=torch.int64, device=output.device)
    return (as_bits(output) == poison).flatten().nonzero().flatten()
