"""Sizes, inputs, bytes and operations that the cases of the two norm_tanh ops share. Imports torch inside its functions only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from fusebench.registry.layouts import Layout

from ..modulated_params import ITEM_SIZES, ModulatedParams, label, norm_flops
from ..modulation import Form, form_of

if TYPE_CHECKING:
    import torch

LARGEST_GATE = 64.0
"""Largest magnitude of an unusual gate: its tanh is 1, while exp(2 * 64) is beyond float32."""


class NormTanhParams(ModulatedParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x is `[batch, tokens, hidden]`; the norm and its eps are Z-Image's unless given.  `modulation` is the gate's form."""

    norm: Literal["layer", "rms"] = "rms"
    eps: float = 1e-5
    residual: Form = "token"
    """Form of the residual; `token` is the residual stream, a row for every row of x."""
    residual_dtype: Literal["activation", "float32"] = "activation"

    @property
    def forms(self) -> tuple[Form, ...]:
        return (self.modulation, self.residual)

    @property
    def residual_streams(self) -> int:
        """Rows that a row of output reads of x and of a residual stream, in x's dtype: a row of float32 counts as two of 16 bits."""
        return 1 + (self.residual_item_size // ITEM_SIZES[self.dtype] if self.residual == "token" else 0)

    @property
    def streams(self) -> int:
        """As `residual_streams`, with gates and scales of each token."""
        modulations = (self.modulation, *self.forms[2:])
        return self.residual_streams + modulations.count("token") * self.modulation_item_size // ITEM_SIZES[self.dtype]

    @property
    def shared_forms(self) -> tuple[Form, ...]:
        """The gate's, unless every token has its own."""
        return () if self.modulation == "token" else (self.modulation,)

    @property
    def residual_item_size(self) -> int:
        return 4 if self.residual_dtype == "float32" else ITEM_SIZES[self.dtype]


def draw_residual(params: NormTanhParams, *, device: torch.device, generator: torch.Generator, magnitude: float) -> torch.Tensor:
    """Buffer of the residual in its form, drawn like x; twice as wide where the case is strided (not a scalar; see `view_residual`).

    One value is no outlier channel. A value of 65 rounds y to multiples of 1/32 in float16, about a third of what the gated norm deviates
    by. A second layer norm would make that much of each element that lies near a tie and is rounded the other way.
    """
    import torch

    from fusebench.accuracy.inputs import normal_with_outliers

    *leading, width = params.modulation_shape(params.residual)
    dtype = torch.float32 if params.residual_dtype == "float32" else getattr(torch, params.dtype)
    if params.residual == "scalar":
        return torch.randn((*leading, width), generator=generator, device=device, dtype=torch.float32).mul_(magnitude).to(dtype)
    shape = (*leading, 2 * width if params.strided else width)
    return normal_with_outliers(shape, dtype=dtype, device=device, generator=generator, magnitude=magnitude)


APART = 0.05
"""Least distance from the row's mean in `apart_from_mean`, in deviations of the row.

Of 6144 float32 values (1e14, with outlier channels) the nearest lies some 1e-5 deviations from the mean. The error of its channel is then
the rounding of the mean, magnified 1e5 times. Two right layer norms, torch's and one that sums otherwise, judged by each other on three
draws of 16 equal rows: 22 of 60 judgements fail, by RMS; with 0.02 6 fail, with 0.05 1, all by a maximum, which the check draws again."""


def apart_from_mean(rows: torch.Tensor) -> torch.Tensor:
    """`[..., D]` with the values that are too near to their row's mean moved to `APART` deviations from it, each on its side."""
    import torch

    wide = rows.double()
    mean = wide.mean(-1, keepdim=True)
    distance, least = wide - mean, APART * wide.std(-1, correction=0, keepdim=True)
    return torch.where(distance.abs() < least, mean + torch.copysign(least, distance), wide).to(rows.dtype)


def view_residual(params: NormTanhParams, buffer: torch.Tensor) -> torch.Tensor:
    """The residual in its buffer: the last columns."""
    return buffer if params.residual == "scalar" else buffer[..., -params.hidden :]


def draw_second_parameters(params: NormTanhParams, *, device: torch.device, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Buffers `weight2` and, for a layer norm, `bias2` of a second norm."""
    import torch

    from fusebench.accuracy.inputs import norm_weight

    dtype = torch.float32 if params.modulation_dtype == "float32" else getattr(torch, params.dtype)
    made = {"weight2": norm_weight(params.hidden, dtype=dtype, device=device, generator=generator)}
    if params.norm == "layer":
        made["bias2"] = norm_weight(params.hidden, dtype=dtype, device=device, generator=generator) - 1.0
    return made


def gated_norm_bytes(params: NormTanhParams) -> int:
    """Bytes of x, the residual, the gate, the norm's parameters and y, each moved once."""
    activations = 2 * params.rows * params.hidden * ITEM_SIZES[params.dtype]
    residual = math.prod(params.modulation_shape(params.residual)) * params.residual_item_size
    shared = math.prod(params.modulation_shape(params.modulation)) + len(params.parameters) * params.hidden
    return activations + residual + shared * params.modulation_item_size


def gated_norm_flops(params: NormTanhParams) -> int:
    """Operations of the norm, of a product and a sum per element, and of a tanh per value of the gate, which counts one."""
    return norm_flops(params)  # counts two operations per element beside the norm, and one per value of the modulation


def second_norm_flops(params: NormTanhParams, parameters: int) -> int:
    """Operations of a second norm with that many affine parameters and of its product with `1 + scale2`, for all rows."""
    gates = math.prod(params.modulation_shape(params.modulation))
    # As many parameters as this norm has, and no shift.
    return norm_flops(params) - gates + params.rows * params.hidden * (parameters - len(params.parameters) - 1)


def describe(x: Layout, **values: Layout) -> dict[str, object]:
    """The fields of Params for the size of x, and the form of each of `values`, by field name."""
    found = {name: form_of(layout) for name, layout in values.items()}
    frames = next((count for form, count in found.values() if form == "frame"), 1)
    # A case has one frame count.  No kernel's support depends on it, so what has other frames is described as one row per token.
    forms = {name: "token" if form == "frame" and count != frames else form for name, (form, count) in found.items()}
    # An empty batch is a call like any other, and no kernel's support depends on the count.
    return {"batch": max(1, x.shape[0]), "tokens": max(frames, x.shape[1]), "hidden": x.shape[2], "frames": frames, **forms}


def tanh_label(params: NormTanhParams, extras: Sequence[str] = ()) -> str:
    """Such as `4128x3840 bf16 rms affine`, followed by each unusual setting of the residual."""
    named: Mapping[str, bool] = {
        f"{params.residual} residual": params.residual != "token",
        "fp32 residual": params.residual_dtype == "float32",
    }
    return label(params, *extras, *(name for name, wanted in named.items() if wanted))
