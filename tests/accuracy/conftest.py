"""Two tiny ops to plant defects in: one that returns a new tensor, one that overwrites strided views of a packed buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import pytest
import torch

from fusebench.accuracy import check_kernel
from fusebench.accuracy.inputs import norm_weight, normal_with_outliers
from fusebench.registry import Kernel, Op
from fusebench.schema import Accuracy, Close, Contract, KernelId, Language, Role

Function = Callable[..., Any]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    rows: int = 96
    channels: int = 64
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm in float32, not yet rounded."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()


def split_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Two roundings, as two launches have them."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def reference_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.double()


class _ToyOp(Op):
    Params = Params
    split_reference = "split@1"
    baselines = ("split@1",)

    def params_of(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def minimum_bytes(self, params: Any) -> int:
        return 0

    def flops(self, params: Any) -> int:
        return 0

    def shape(self, params: Any) -> str:
        return f"{params.rows}x{params.channels}"

    def shrink(self, params: Params, rows: int) -> Params:
        return msgspec.structs.replace(params, rows=min(params.rows, rows))


class RmsScale(_ToyOp):
    """y = rms_norm(x) * weight, a new tensor."""

    name = "rms_scale"
    schema = "(Tensor x, Tensor weight) -> Tensor"
    outputs = ("y",)

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        dtype = getattr(torch, params.dtype)
        shape = (params.rows, params.channels)
        return {
            "x": normal_with_outliers(shape, dtype=dtype, device=device, generator=generator, magnitude=magnitude),
            "weight": norm_weight(params.channels, dtype=dtype, device=device, generator=generator),
        }

    def arguments(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        return {"x": buffers["x"], "weight": buffers["weight"]}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {"y": reference_norm(arguments["x"], arguments["weight"])}


class PackedNorm(_ToyOp):
    """q and k, the first two thirds of each row of a packed projection, normalised in place."""

    name = "packed_norm"
    schema = "(Tensor(a!) q, Tensor(b!) k, Tensor weight) -> ()"
    outputs = ("q", "k")
    in_place = True

    def buffers(
        self, params: Params, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
    ) -> Mapping[str, torch.Tensor]:
        dtype = getattr(torch, params.dtype)
        shape = (params.rows, 3, params.channels)
        return {
            "qkv": normal_with_outliers(shape, dtype=dtype, device=device, generator=generator, magnitude=magnitude),
            "weight": norm_weight(params.channels, dtype=dtype, device=device, generator=generator),
        }

    def arguments(self, params: Params, buffers: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        return {"q": buffers["qkv"][:, 0], "k": buffers["qkv"][:, 1], "weight": buffers["weight"]}

    def reference(self, params: Params, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {name: reference_norm(arguments[name], arguments["weight"]) for name in ("q", "k")}


def make_kernel(
    op: Op,
    name: str,
    function: Function,
    *,
    role: Role = Role.FUSED,
    contract: Contract | None = None,
    language: Language = Language.TORCH,
) -> Kernel:
    made = Kernel(function, KernelId(op.name, name, 1), role=role, language=language, contract=contract or Close(), requires=(), note="")
    made.op = op
    return made


def packed_split(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return split_norm(q, weight), split_norm(k, weight)


class Toys:
    """What the tests of the gate share."""

    Params = Params
    rms_scale = RmsScale()
    packed = PackedNorm()
    norm = staticmethod(norm)
    split_norm = staticmethod(split_norm)
    kernel = staticmethod(make_kernel)
    rms_split = make_kernel(rms_scale, "split", split_norm, role=Role.SPLIT)
    packed_split = make_kernel(packed, "split", packed_split, role=Role.SPLIT)

    @staticmethod
    def fused(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """An honest kernel of `rms_scale`: one rounding, its own allocation."""
        output = torch.empty_like(x)
        output.copy_(norm(x, weight))
        return output

    @staticmethod
    def packed_fused(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> None:
        """An honest kernel of `packed_norm`."""
        for tensor in (q, k):
            tensor.copy_(norm(tensor, weight))

    @classmethod
    def check(
        cls, op: Op, function: Function, params: Params | None = None, *, contract: Contract | None = None, **options: Any
    ) -> Accuracy:
        """The gate's judgement on `function` as a kernel of `op`."""
        role = options.pop("role", Role.FUSED)
        split = options.pop("split", cls.rms_split if op is cls.rms_scale else cls.packed_split)
        device = torch.device(options.pop("device", "cpu"))
        language = options.pop("language", Language.TORCH)
        kernel = make_kernel(op, "candidate", function, role=role, contract=contract, language=language)
        return check_kernel(kernel, op, params or Params(), split=split, device=device, **options)


@pytest.fixture
def toys() -> type[Toys]:
    return Toys
