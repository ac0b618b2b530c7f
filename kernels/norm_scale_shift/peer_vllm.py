"""vLLM's RMS norm: a part of the op."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_parts import NORM
from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "norm_scale_shift", "peer_vllm", version=1, role="peer", language="cuda", requires=("vllm",), install="vllm", covers=NORM,
    note="vLLM rms_norm",
)  # fmt: skip
def peer_vllm(call: Arguments) -> torch.Tensor:
    """Returns norm(x) `[B, S, D]`."""
    y = torch.empty_like(call.x)
    library_function("vllm._custom_ops:rms_norm")(y, call.x, call.weight, call.eps)
    return y


@peer_vllm.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.norm == "rms", "vLLM has an RMS norm only"),
        (p.affine, "vLLM's rms_norm is called with a weight"),
        (p.modulation_dtype == "activation" or p.dtype == "float32", "vLLM takes a weight of the rows' dtype"),
        (not p.strided, "x is a column slice of wider rows; vLLM's output lies differently"),
    )
