"""Sizes, inputs, bytes and labels that the cases of the two select01 ops share. Imports torch inside its functions only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from fusebench.registry.argument_rules import Laid
from fusebench.registry.layouts import Layout

from ..modulated_params import (
    ITEM_SIZES,
    MODULATION_SPREAD,
    ModulatedParams,
    draw_modulations,
    draw_parameters,
    draw_rows,
    draw_unusual,
    label,
    norm_flops,
    view_modulations,
    view_rows,
)
from ..modulation import Form

if TYPE_CHECKING:
    import torch

ROWS: tuple[str, ...] = ("scale0", "shift0", "gate0", "scale1", "shift1", "gate1")
"""The six rows `[B, C]` of a call, in the order of its arguments."""
_FORMS: dict[str, Form] = dict.fromkeys(ROWS, "batch")
INDEX_ITEM_SIZES = {"int32": 4, "int64": 8, "bool": 1}


class Select01Params(ModulatedParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x is `[batch, tokens, hidden]`."""

    frames: Literal[1] = 1
    norm: Literal["layer"] = "layer"
    modulation: Literal["batch"] = "batch"
    """Both row sets hold one row per sample."""
    index_dtype: Literal["int32", "int64", "bool"] = "int32"
    index: Literal["step", "zeros", "ones", "alternating", "random"] = "step"
    """Which tokens take row set 1. `step`, as in production: the last `tokens // 2` tokens (the reference image; the image being made comes
    first). `alternating`: every second token, from the second on. `random`: each token with probability 1/2."""

    @property
    def sets(self) -> int:
        """Row sets that the index uses (a random index: that it can use)."""
        return 1 if self.tokens == 1 or self.index in ("zeros", "ones") else 2


def draw_inputs(params: Select01Params, *, device: torch.device, generator: torch.Generator, magnitude: float) -> dict[str, torch.Tensor]:
    """Buffers of x, the norm's parameters, the six rows and the index."""
    return {
        "x": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
        **draw_parameters(params, device=device, generator=generator),
        **draw_modulations(params, _FORMS, device=device, generator=generator),
        "index": _draw_index(params, params.index, device=device, generator=generator),
    }


def view_inputs(params: Select01Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """The arguments in the buffers of `draw_inputs`, by name."""
    rows = view_modulations(params, _FORMS, buffers)
    return {
        "x": view_rows(params, buffers["x"]),
        "weight": buffers.get("weight"),
        "bias": buffers.get("bias"),
        **{name: rows[name].squeeze(1) for name in ROWS},
        "index": buffers["index"][..., 0] if params.strided else buffers["index"],
    }


def draw_unusual_inputs(
    params: Select01Params, buffers: Mapping[str, torch.Tensor], *, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """The buffers of `draw_inputs` with unusual parameters and rows, and an index of any pattern: one set only, or samples that differ.

    The index holds 0 and 1 only: other integers mean set 1, but models never pass them.
    """
    import torch

    made = draw_unusual(params, buffers, generator=generator, modulations=ROWS)
    patterns = ("zeros", "ones", "random", "random", "per_sample")
    pattern = patterns[int(torch.randint(len(patterns), (), generator=generator, device=buffers["index"].device))]
    return {**made, "index": _draw_index(params, pattern, device=buffers["index"].device, generator=generator)}


def draw_residual_gate(params: Select01Params, *, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Buffer of a gate per element: the width of an activation, the magnitude of a gate."""
    import torch

    shape = (params.batch, params.tokens, 2 * params.hidden if params.strided else params.hidden)
    values = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
    return values.mul_(MODULATION_SPREAD).to(getattr(torch, params.dtype))


def _draw_index(params: Select01Params, pattern: str, *, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """`[batch, tokens]`. A strided case has `[batch, tokens, 2]` with the other set beside each index, so a dense read gives wrong rows."""
    import torch

    shape = (params.batch, params.tokens)
    token = torch.arange(params.tokens, device=device).expand(shape)
    values = {
        "step": lambda: token >= params.tokens - params.tokens // 2,
        "zeros": lambda: token < 0,
        "ones": lambda: token >= 0,
        "alternating": lambda: token % 2 == 1,
        "random": lambda: torch.randint(2, shape, generator=generator, device=device) == 1,
        "per_sample": lambda: (torch.randint(2, (params.batch, 1), generator=generator, device=device) == 1).expand(shape),
    }[pattern]()
    if params.strided:
        values = torch.stack((values, ~values), dim=-1)
    return values.to(getattr(torch, params.index_dtype)).contiguous()


def select01_bytes(params: Select01Params, activations: int) -> int:
    """Bytes that any implementation must move: `activations` tensors `[B, L, C]`, the index, the rows of the sets that it asks for, and
    the norm's parameters, each once."""
    rows = 3 * params.sets * params.batch + len(params.parameters)
    return (
        activations * params.rows * params.hidden * ITEM_SIZES[params.dtype]
        + params.rows * INDEX_ITEM_SIZES[params.index_dtype]
        + rows * params.hidden * params.modulation_item_size
    )


def select01_flops(params: Select01Params) -> int:
    """Operations of the norm and of `* (1 + scale) + shift`; `1 + scale` counts once per row that the index asks for."""
    return norm_flops(params) + (params.sets - 1) * params.batch * params.hidden


def described(params: Select01Params) -> str:
    """Such as `2x2048x3072 bf16 affine`, followed by an unusual index."""
    return label(
        params,
        "" if params.index == "step" else params.index,
        "" if params.index_dtype == "int32" else f"{params.index_dtype} index",
    )


def select01_case(laid: Laid, *activations: Layout) -> dict[str, Any]:
    """The fields of Params that axes and options do not give. The index's values are not read: no kernel's support depends on them.

    Args:
        activations: x and the tensors that may be strided like it.
    """
    return {
        "affine": laid.weight is not None,
        "modulation_dtype": "activation" if laid.scale0.dtype == laid.x.dtype else "float32",
        "strided": not all(each.is_contiguous for each in activations),
        "index_dtype": laid.index.dtype_name,
    }
