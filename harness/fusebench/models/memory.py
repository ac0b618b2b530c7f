"""The GPU memory that a denoise step needs, known before anything is built: the whole step runs on torch's meta device, without values."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .building import build
from .diffusion_model import DiffusionModel, Shapes
from .verification import moved

if TYPE_CHECKING:
    import torch

GIB = 2**30
RESERVED_BYTES = 2 * GIB
"""For the CUDA context, workspaces of libraries, and blocks of the allocator that are only partly used."""


def needed_bytes(model: DiffusionModel, config: Mapping[str, Any], shapes: Shapes, dtype: torch.dtype) -> int:
    """Bytes that one eager denoise step of the transformer with these constructor arguments needs: weights, activations, a reserve.

    Activations are the most bytes that live at once in a step of one block of each kind: blocks run one after another, and more of them
    need no more.  Attention counts with its inputs and output, as its fused backends need them.  Gradients are not kept.  A CUDA graph has
    activations of its own beside these.
    """
    return _weight_bytes(model, config, dtype) + activation_bytes(model, config, shapes, dtype) + RESERVED_BYTES


def activation_bytes(model: DiffusionModel, config: Mapping[str, Any], shapes: Shapes, dtype: torch.dtype) -> int:
    """Most bytes that live at once beside the weights, in one denoise step."""
    import torch

    meta, generator = torch.device("meta"), torch.Generator()
    transformer = build(model, _shortest(model, config), device=meta, dtype=dtype)
    latents = model.latents(shapes, config, generator=generator).to(meta, dtype)
    conditioning = moved(dict(model.conditioning(shapes, config, dtype=dtype, generator=generator)), meta)
    with torch.no_grad(), _fused_attention(), _live_bytes() as counter:
        model.predict(transformer, latents, torch.zeros((), device=meta), conditioning)
    return int(counter.most)


def require_memory(
    model: DiffusionModel, config: Mapping[str, Any], shapes: Shapes, dtype: torch.dtype, *, free: int, where: str = "this GPU"
) -> None:
    """Refuse a model that does not fit.

    Args:
        free: free bytes of the device.
        where: the device, in words.

    Raises:
        UsageError: says how much is needed and free, and the number of blocks that fits.
    """
    needed = needed_bytes(model, config, shapes, dtype)
    if needed <= free:
        return
    shortest = _shortest(model, config)
    least = needed_bytes(model, shortest, shapes, dtype)
    found = f"model {model.name!r} needs {needed / GIB:.0f} GiB, {where} has {free / GIB:.0f} GiB free"
    if least > free:
        raise UsageError(f"{found}; one block of each stack needs {least / GIB:.0f} GiB already: use a larger GPU")
    part = (free - least) / (needed - least)
    layers = ",".join(f"{stack}={1 + math.floor(part * (config[stack] - 1))}" for stack in model.stacks)
    raise UsageError(f"{found}; use --layers {layers}, or a larger GPU")


def _shortest(model: DiffusionModel, config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(config) | dict.fromkeys(model.stacks, 1)


def _weight_bytes(model: DiffusionModel, config: Mapping[str, Any], dtype: torch.dtype) -> int:
    import torch

    transformer = build(model, config, device=torch.device("meta"), dtype=dtype)
    return sum(each.nbytes for each in (*transformer.parameters(), *transformer.buffers()))


def _fused_attention() -> Any:
    """On the meta device torch takes attention apart, with a matrix of all tokens by all tokens, which no backend of a GPU holds."""
    import torch
    import torch.nn.functional as F
    from torch.overrides import TorchFunctionMode

    class FusedAttention(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is F.scaled_dot_product_attention:
                query, _, value = (*args, *(kwargs or {}).values())[:3]
                return torch.empty_like(query[..., :1].expand(*query.shape[:-1], value.shape[-1]), memory_format=torch.contiguous_format)
            return function(*args, **(kwargs or {}))

    return FusedAttention()


def _live_bytes() -> Any:
    """Counts the bytes of live storages that operations make, and the most of them at once, in `most`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.now = self.most = 0
            self._seen: dict[int, int] = {}

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for given in tree_leaves((args, kwargs)):  # weights and inputs were there before
                if isinstance(given, torch.Tensor):
                    self._seen.setdefault(given.untyped_storage()._cdata, 0)
            made = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(made):
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self._seen:
                    storage = tensor.untyped_storage()
                    key, size = storage._cdata, storage.nbytes()
                    self._seen[key] = size
                    self.now += size
                    self.most = max(self.most, self.now)
                    weakref.finalize(storage, self._freed, key)
            return made

        def _freed(self, key: int) -> None:
            self.now -= self._seen.pop(key, 0)

    return LiveBytes()
