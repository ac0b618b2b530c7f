"""The layout that a case does not have: suites have one of contiguous and strided tensors, and callers have both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from ..registry import Op


def other_layout(op: Op, params: Any, device: torch.device) -> Any | None:
    """The case with the other value of a true-or-false field that changes nothing but strides; None if it has no such field.

    Args:
        params: a small case, since its inputs are drawn to see that their shapes, dtypes and options stay.
    """
    own = _form(op, params, device)
    for name in params.__struct_fields__:
        value = getattr(params, name)
        if not isinstance(value, bool):
            continue
        try:
            other = msgspec.convert({**msgspec.structs.asdict(params), name: not value}, type(params))
            found = _form(op, other, device)
        except Exception:  # noqa: BLE001  an op that cannot make it has no such layout
            continue
        if {key: one[0] for key, one in found.items()} == {key: one[0] for key, one in own.items()} and found != own:
            return other
    return None


def two_samples(params: Any) -> Any:
    """The case with two samples where it has one: a modulation of one sample has no second row, and so no gap."""
    try:
        several = getattr(params, "batch", 0) == 1
        return msgspec.convert({**msgspec.structs.asdict(params), "batch": 2}, type(params)) if several else params
    except (ValueError, msgspec.ValidationError):
        return params


def _form(op: Op, params: Any, device: torch.device) -> Mapping[str, tuple[Any, Any]]:
    """Of each argument, what must stay in another layout, and the strides."""
    buffers = op.buffers(params, device=device, generator=torch.Generator(device=device).manual_seed(0))
    return {
        name: ((tuple(value.shape), value.dtype), value.stride()) if isinstance(value, torch.Tensor) else (value, None)
        for name, value in op.arguments(params, buffers).items()
    }
