"""Sizes, inputs and labels that the cases of all modulated norms share. Imports torch inside its functions only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from .modulation import Form, shape_of

if TYPE_CHECKING:
    import torch

LARGEST_HIDDEN = 8192
"""Widest row that the kernels keep in registers."""
ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}
SHORT_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
MODULATION_SPREAD = 0.5
"""Standard deviation of drawn scales, shifts and gates: their values have no effect on cost and little on error."""
ROW_SPACE: dict[str, tuple[int | range, ...]] = {"batch": (1, 2, 3, 4), "hidden": (range(256, 8193, 256), range(128, 8193, 8))}
"""Random cases: half of the widths are a multiple of 256, and the others any multiple of 8.  Narrower rows than 128 that are strided, too,
fill memory's sectors of 32 bytes badly, so that no kernel comes near the limit."""
FRAMED_SPACE = {**ROW_SPACE, "frames": (1, 4, 16)}
LARGEST_MODULATION = 3.0
"""Largest magnitude of an unusual scale, shift or gate: six times the usual spread, so that a float16 residual sum stays in range."""


class ModulatedParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x is `[batch, tokens, hidden]`."""

    batch: int = 1
    tokens: int
    hidden: int
    frames: int = 1
    """Frames F of a per-frame modulation; divides tokens."""
    norm: Literal["layer", "rms"] = "layer"
    affine: bool = False
    """Whether the norm has a weight (and, a layer norm, a bias), in the dtype of the modulation."""
    eps: float = 1e-6
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    modulation: Form = "batch"
    """Form of scale and shift."""
    modulation_dtype: Literal["activation", "float32"] = "activation"
    strided: bool = False
    """Whether activations are column slices of wider rows, and modulations chunk views of one tensor, as in models."""

    def __post_init__(self) -> None:
        for name in ("batch", "tokens", "frames"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        if not 8 <= self.hidden <= LARGEST_HIDDEN or self.hidden % 8:
            raise ValueError(f"hidden is {self.hidden}; it must be a multiple of 8 from 8 to {LARGEST_HIDDEN}")
        if self.frames > 1 and "frame" not in self.forms:
            raise ValueError(f"frames is {self.frames}; it must be 1 unless a modulation has the form 'frame'")
        if self.tokens % self.frames:
            raise ValueError(f"frames is {self.frames}; it must divide tokens ({self.tokens})")
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise ValueError(f"eps is {self.eps}; it must be positive and finite")

    @property
    def forms(self) -> tuple[Form, ...]:
        """The form of every modulation."""
        return (self.modulation, self.modulation)

    @property
    def rows(self) -> int:
        """Rows that one launch normalises."""
        return self.batch * self.tokens

    @property
    def unaligned(self) -> bool:
        """Whether 16 does not divide the stride of a row, in elements: Triton then loads no vectors. Strided rows lie in wider ones."""
        return not self.strided and self.hidden % 16 != 0

    @property
    def per_token(self) -> bool:
        """Whether each row has its own scale, shift or gate, which a kernel then keeps in no register for the next row."""
        return self.modulation == "token"

    @property
    def scalar(self) -> bool:
        """Whether a kernel loads no row of scales, shifts or gates."""
        return self.modulation == "scalar"

    @property
    def modulation_item_size(self) -> int:
        return 4 if self.modulation_dtype == "float32" else ITEM_SIZES[self.dtype]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the norm's affine parameters."""
        if not self.affine:
            return ()
        return ("weight", "bias") if self.norm == "layer" else ("weight",)

    def modulation_shape(self, form: Form) -> tuple[int, ...]:
        return shape_of(form, batch=self.batch, tokens=self.tokens, frames=self.frames, hidden=self.hidden)


ParamsT = TypeVar("ParamsT", bound=ModulatedParams)


def narrowed(params: ParamsT, *fields: str) -> ParamsT:
    """The same work with the forms in `fields` as a call has them: the narrowest form that reads the same values (see `form_of`)."""

    def narrowest(form: str) -> str:
        if (form == "token" and params.tokens == 1) or (form == "frame" and params.frames == 1):
            form = "batch"
        return "channel" if form == "batch" and params.batch == 1 else form

    return msgspec.structs.replace(params, **{name: narrowest(getattr(params, name)) for name in fields})


def draw_rows(params: ModulatedParams, *, device: torch.device, generator: torch.Generator, magnitude: float) -> torch.Tensor:
    """Buffer of one activation: `[batch, tokens, hidden]`, twice as wide where the case is strided (see `view_rows`)."""
    import torch

    from fusebench.accuracy.inputs import normal_with_outliers

    width = 2 * params.hidden if params.strided else params.hidden
    shape = (params.batch, params.tokens, width)
    return normal_with_outliers(shape, dtype=getattr(torch, params.dtype), device=device, generator=generator, magnitude=magnitude)


def view_rows(params: ModulatedParams, buffer: torch.Tensor) -> torch.Tensor:
    """The activation in its buffer: the last `hidden` columns."""
    return buffer[..., -params.hidden :]


def draw_parameters(params: ModulatedParams, *, device: torch.device, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Buffers of the norm's weight and bias; a parameter that the case lacks has none."""
    import torch

    from fusebench.accuracy.inputs import norm_weight

    dtype = torch.float32 if params.modulation_dtype == "float32" else getattr(torch, params.dtype)
    made = {name: norm_weight(params.hidden, dtype=dtype, device=device, generator=generator) for name in params.parameters}
    if "bias" in made:
        made["bias"] -= 1.0
    return made


def draw_modulations(
    params: ModulatedParams, forms: Mapping[str, Form], *, device: torch.device, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Buffers of the modulations in `forms`. In a strided case, modulations of one form share a tensor (scalars do not)."""
    import torch

    dtype = torch.float32 if params.modulation_dtype == "float32" else getattr(torch, params.dtype)
    made = {}
    for names, form in _packs(params, forms):
        *leading, width = params.modulation_shape(form)
        values = torch.randn((*leading, len(names) * width), generator=generator, device=device, dtype=torch.float32)
        made["_".join(names)] = values.mul_(MODULATION_SPREAD).to(dtype)
    return made


def draw_unusual(
    params: ModulatedParams,
    buffers: Mapping[str, torch.Tensor],
    *,
    generator: torch.Generator,
    parameters: Sequence[str] = ("weight", "bias"),
    modulations: Sequence[str],
    most: float = LARGEST_MODULATION,
) -> dict[str, torch.Tensor]:
    """`buffers` with some channels of the norm's parameters and of the modulations far from their usual values, of both signs.

    Args:
        modulations: parts of the buffers' names; `gate` chooses `gate` and `gate_scale_shift`.
        most: largest magnitude of a modulation.
    """
    from fusebench.accuracy.inputs import UNUSUAL_SHARE, unusual_channels

    made = dict(buffers)
    for name, values in buffers.items():
        if name in parameters:
            made[name] = unusual_channels(values, generator=generator)
        elif set(name.split("_")) & set(modulations):
            # A scalar is one channel for all.
            share = 0.5 if values.shape[-1] == 1 else UNUSUAL_SHARE
            made[name] = unusual_channels(values, generator=generator, most=most, share=share)
    return made


def view_modulations(params: ModulatedParams, forms: Mapping[str, Form], buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The modulations in their buffers, by name."""
    views = {}
    for names, _ in _packs(params, forms):
        views |= dict(zip(names, buffers["_".join(names)].chunk(len(names), dim=-1), strict=True))
    return views


def _packs(params: ModulatedParams, forms: Mapping[str, Form]) -> list[tuple[Sequence[str], Form]]:
    """Names that share a buffer, with their form."""
    packs: dict[Form, list[str]] = {}
    alone: list[tuple[Sequence[str], Form]] = []
    for name, form in forms.items():
        if params.strided and form != "scalar":
            packs.setdefault(form, []).append(name)
        else:
            alone.append(((name,), form))
    return alone + [(tuple(names), form) for form, names in packs.items()]


def activation_bytes(params: ModulatedParams, activations: int) -> int:
    """Bytes of so many tensors like x."""
    return activations * params.rows * params.hidden * ITEM_SIZES[params.dtype]


def modulation_bytes(params: ModulatedParams, forms: Sequence[Form]) -> int:
    """Bytes of the modulations and of the norm's parameters, each read once."""
    elements = sum(math.prod(params.modulation_shape(form)) for form in forms) + len(params.parameters) * params.hidden
    return elements * params.modulation_item_size


def norm_flops(params: ModulatedParams) -> int:
    """Operations of the norm and of `* (1 + scale) + shift`, for all rows."""
    norm = 5 if params.norm == "layer" else 3  # mean's sum, difference, square and its sum, product; an RMS norm has the last three
    per_row = 4 if params.norm == "layer" else 3  # means, eps, reciprocal root
    rows = params.rows * ((norm + len(params.parameters) + 2) * params.hidden + per_row)
    return rows + math.prod(params.modulation_shape(params.modulation))


def label(params: ModulatedParams, *extras: str) -> str:
    """Such as `4096x3072 bf16`, followed by each unusual setting of norm and modulation."""
    batch = f"{params.batch}x" if params.batch > 1 else ""
    named: dict[str, Any] = {
        params.norm: params.norm != "layer",
        "affine": params.affine,
        f"F{params.frames}" if params.modulation == "frame" else params.modulation: params.modulation != "batch",
        "fp32 modulation": params.modulation_dtype == "float32",
        "strided": params.strided,
    }
    words = [name for name, wanted in named.items() if wanted]
    return " ".join((f"{batch}{params.tokens}x{params.hidden} {SHORT_DTYPES[params.dtype]}", *words, *(extra for extra in extras if extra)))


def shrunk(params: ParamsT, rows: int) -> ParamsT:
    """The same case with at most `rows` rows, and as many frames as fit."""
    batch = min(params.batch, max(1, rows))
    tokens = min(params.tokens, max(1, rows // batch))
    frames = min(params.frames, tokens)
    return msgspec.structs.replace(params, batch=batch, tokens=tokens - tokens % frames, frames=frames)
