"""planted: negate a vector in place, then wait on the device.

The op of `fusebench calibrate`. Its parameters set its time: more elements add work of the same kind, a longer wait adds only time. With a
delay of 0 there is one launch; otherwise there are two, in the same stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fusebench import Op, define_op

if TYPE_CHECKING:
    import torch


class PlantedParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    elements: int
    delay_ns: int = 0
    """Wait in nanoseconds of a 2 GHz clock; calibration measures its real length."""

    def __post_init__(self) -> None:
        if self.elements <= 0 or self.delay_ns < 0:
            raise ValueError(f"elements={self.elements}, delay_ns={self.delay_ns}: expected a positive number and no negative delay")


@define_op
class Planted(Op):
    name = "planted"
    Params = PlantedParams
    schema = "(Tensor(a!) x, *, int delay_ns=0) -> ()"
    outputs = ("x",)
    in_place = True
    split_reference = "negate_and_wait@1"
    baselines = ("negate_and_wait@1",)

    def buffers(
        self, params: PlantedParams, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> dict[str, torch.Tensor]:
        import torch

        return {"x": torch.randn(params.elements, device=device, generator=generator) * magnitude}

    def arguments(self, params: PlantedParams, buffers: Any) -> dict[str, Any]:
        return {"x": buffers["x"], "delay_ns": params.delay_ns}

    def reference(self, params: PlantedParams, arguments: Any) -> dict[str, torch.Tensor]:
        return {"x": -arguments["x"].double()}

    def params_of(self, x: torch.Tensor, *, delay_ns: int = 0) -> PlantedParams:
        return PlantedParams(elements=x.numel(), delay_ns=delay_ns)

    def minimum_bytes(self, params: PlantedParams) -> int:
        return 8 * params.elements

    def flops(self, params: PlantedParams) -> int:
        return params.elements

    def shape(self, params: PlantedParams) -> str:
        waits = f", then {params.delay_ns} ns" if params.delay_ns else ""
        return f"{params.elements} f32{waits}"

    def shrink(self, params: PlantedParams, rows: int) -> PlantedParams:
        return PlantedParams(elements=min(params.elements, rows), delay_ns=params.delay_ns)
