"""norm_scale_shift: the adaptive norm of a diffusion transformer's block.

For every row x of D elements, with the scale and shift that apply to it:

    y = norm(x) * (1 + scale) + shift

norm is a layer norm, `(x - mean) * rsqrt(variance + eps) * weight + bias` with the population variance, or an RMS norm,
`x * rsqrt(mean(x^2) + eps) * weight`; weight and bias are optional.  Scale and shift come in any form of _shared/modulation.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fusebench import Op, define_op
from fusebench.errors import KernelArgumentError

from .._shared.layout import Layout, layout_of, optional_layout, remembered
from .._shared.modulated_params import (
    ITEM_SIZES,
    ModulatedParams,
    draw_modulations,
    draw_parameters,
    draw_rows,
    label,
    modulation_bytes,
    norm_flops,
    shrunk,
    view_modulations,
    view_rows,
)
from .._shared.modulation import form_of, widest

if TYPE_CHECKING:
    import torch


class Params(ModulatedParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case: x is `[batch, tokens, hidden]`."""


@define_op
class NormScaleShift(Op):
    name = "norm_scale_shift"
    Params = Params
    schema = "(Tensor x, Tensor? weight, Tensor? bias, Tensor scale, Tensor shift, *, float eps=1e-06, str norm='layer') -> Tensor"
    outputs = ("y",)
    split_reference = "split_torch@1"
    baselines = ("split_triton@1", "split_torch@1")
    dispatch_order = ("fused_triton", "fused_cuda")

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        return {
            "x": draw_rows(params, device=device, generator=generator, magnitude=magnitude),
            **draw_parameters(params, device=device, generator=generator),
            **draw_modulations(params, _forms(params), device=device, generator=generator),
        }

    def arguments(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {
            "x": view_rows(params, buffers["x"]),
            "weight": buffers.get("weight"),
            "bias": buffers.get("bias"),
            **view_modulations(params, _forms(params), buffers),
            "eps": params.eps,
            "norm": params.norm,
        }

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from .._shared.norm_chain import reference_modulation, reference_norm

        normed = reference_norm(arguments["x"], arguments["weight"], arguments["bias"], params.eps, params.norm)
        return {"y": reference_modulation(normed, arguments["scale"], arguments["shift"])}

    def params_of(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: torch.Tensor,
        shift: torch.Tensor,
        *,
        eps: float = 1e-6,
        norm: str = "layer",
    ) -> Params:
        return _params_of(layout_of(x), optional_layout(weight), optional_layout(bias), layout_of(scale), layout_of(shift), eps, norm)

    def fake(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: torch.Tensor,
        shift: torch.Tensor,
        *,
        eps: float = 1e-6,
        norm: str = "layer",
    ) -> torch.Tensor:
        return x.new_empty(x.shape)

    def minimum_bytes(self, params: Params) -> int:
        return 2 * params.rows * params.hidden * ITEM_SIZES[params.dtype] + modulation_bytes(params, params.forms)

    def flops(self, params: Params) -> int:
        return norm_flops(params)

    def shape(self, params: Params) -> str:
        return label(params)

    def shrink(self, params: Params, rows: int) -> Params:
        return shrunk(params, rows)


def _forms(params: Params) -> dict[str, Any]:
    return {"scale": params.modulation, "shift": params.modulation}


@remembered
def _params_of(x: Layout, weight: Layout | None, bias: Layout | None, scale: Layout, shift: Layout, eps: float, norm: str) -> Params:
    """The case that a call amounts to: of scale and shift the wider form, float32 if either is."""
    from .._shared.norm_arguments import plan

    plan(NormScaleShift.name, x, None, None, weight, bias, scale, shift, eps, norm)
    form, frames = widest(form_of(scale), form_of(shift))
    try:
        return Params(
            batch=max(1, x.shape[0]),  # an empty batch is a call like any other, and no kernel's support depends on the count
            tokens=max(frames, x.shape[1]),
            hidden=x.shape[2],
            frames=frames,
            norm=norm,  # type: ignore[arg-type]
            affine=weight is not None,
            eps=eps,
            dtype=x.dtype_name,  # type: ignore[arg-type]
            modulation=form,
            modulation_dtype="activation" if scale.dtype == shift.dtype == x.dtype else "float32",
            strided=not x.is_contiguous,
        )
    except ValueError as error:
        raise KernelArgumentError(f"{NormScaleShift.name}: {error}") from error
