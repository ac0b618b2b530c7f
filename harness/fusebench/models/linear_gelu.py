"""A linear layer and the tanh GELU after it as one matrix product, whose epilogue adds the bias and applies the GELU.

torch.compile makes the GELU a kernel of its own, which reads and writes the widest tensor of a block.  `torch._addmm_activation` on CUDA
has cuBLASLt do it (`aten/src/ATen/native/cuda/Blas.cpp` of torch 2.11 to 2.13) with a contiguous result, a contiguous bias of one
dimension, and two rows or more.  Otherwise it multiplies first and then applies `gelu_` by tanh, in kernels of its own: so for a result in
rows of a wider tensor.  On a CPU it applies the exact GELU.  torch.compile neither decomposes it nor looks into it.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from .extra_call import ExtraCall

LINEAR_GELU = "linear_gelu"
"""Name of the call among those of ops."""
EPILOGUE = "torch._addmm_activation"
SPLIT = "torch linear, gelu"
DEVICES = ("cuda",)
"""Where the epilogue's GELU is the one by tanh."""
DTYPES = ("bfloat16", "float16", "float32")


class LinearGeluParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one call."""

    tokens: int
    """Rows of all samples."""
    inputs: int
    outputs: int
    dtype: str


class LinearGelu(ExtraCall):
    """Callable with a linear layer and its input `[..., C]`: `gelu(layer(x), approximate="tanh")`."""

    name = LINEAR_GELU
    kernel = EPILOGUE
    split = SPLIT

    def __init__(self, reason: str = "") -> None:
        disabled = os.environ.get("DISABLE_ADDMM_CUDA_LT") == "1"  # torch reads it once a process
        super().__init__(reason or ("DISABLE_ADDMM_CUDA_LT=1 keeps torch from cuBLASLt" if disabled else ""))

    def __call__(self, layer: Any, x: Any) -> Any:
        import torch

        reason = self.reason_split(layer, x)
        if not torch.compiler.is_compiling():
            self._count(reason)
        if reason:
            return torch.nn.functional.gelu(layer(x), approximate="tanh")
        made = torch._addmm_activation(layer.bias, x.flatten(0, -2), layer.weight.t(), use_gelu=True)
        return made.view(*x.shape[:-1], -1)

    def reason_split(self, layer: Any, x: Any) -> str:
        """Why a call runs the layer and the GELU one after the other; empty if the epilogue does both."""
        if self._reason:
            return self._reason
        if reason := reason_not_plain(layer, x):
            return reason
        if layer.bias is None:
            return "the layer has no bias"
        if str(x.dtype).removeprefix("torch.") not in DTYPES:
            return f"{x.dtype} is none of {', '.join(DTYPES)}"
        return "" if min(x.shape[:-1].numel(), *layer.weight.shape) > 1 else "cuBLASLt takes no matrix of a single row or column"

    def params_of(self, layer: Any, x: Any) -> LinearGeluParams:
        """The sizes of a call."""
        dtype = str(x.dtype).removeprefix("torch.")
        return LinearGeluParams(tokens=x.shape[:-1].numel(), inputs=x.shape[-1], outputs=layer.weight.shape[0], dtype=dtype)

    def shape(self, params: LinearGeluParams) -> str:
        """The sizes in words."""
        return f"{params.tokens}x{params.inputs}x{params.outputs} {params.dtype}"

    def minimum_bytes(self, params: LinearGeluParams) -> int:
        """Bytes that a call must read and write: input, weight and bias once, and the result."""
        values = params.tokens * (params.inputs + params.outputs) + (params.inputs + 1) * params.outputs
        return values * (4 if params.dtype == "float32" else 2)


def reason_not_plain(layer: Any, x: Any) -> str:
    """Why the layer itself must be called; empty where matrix products of a GPU's library with its weight may stand for it."""
    import torch

    if x.device.type not in DEVICES:
        return f"needs a GPU: on {x.device.type} the epilogue has another GELU"
    if reason := reason_of_layer(layer):
        return reason
    if x.dtype != layer.weight.dtype:
        return f"input {x.dtype}, weight {layer.weight.dtype}"
    if torch.is_grad_enabled():
        return "autograd needs the steps one by one"
    autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return "autocast chooses the dtypes" if autocast else ""


def reason_of_layer(layer: Any) -> str:
    """Why a layer is more, or something else, than a matrix product with its weight; empty if it is that."""
    import torch

    if type(layer) is not torch.nn.Linear:
        return f"the layer is {type(layer).__name__}, expected Linear"
    if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
        return "the layer has hooks or a forward of its own"
    return "" if type(layer.weight) is torch.nn.Parameter else f"the layer's weight is {type(layer.weight).__name__}, expected Parameter"
