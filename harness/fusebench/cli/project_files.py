"""The files of a new project, by path: a small op, its split chain, a fused kernel, a suite and a script for CI."""

from __future__ import annotations

TABLE = """\
[tool.fusebench]
kernels = ["kernels"]
suites = ["suites"]
results = "results"
"""
"""The section of pyproject.toml."""

OP = '''\
"""silu_mul: the gated activation y = silu(gate) * x of a feed-forward block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import fusebench
import msgspec
from fusebench import Op, axis, define_op, tensor

if TYPE_CHECKING:
    import torch


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tokens: int
    hidden: int
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"


class Arguments(fusebench.Arguments, axes={"N": "tokens", "D": axis("hidden", least=1)}, returns={"y": "x"}):
    x: torch.Tensor = tensor("N D", contiguous=True)
    gate: torch.Tensor = tensor("N D", contiguous=True)


@define_op
class SiluMul(Op):
    name, Params, Arguments = "silu_mul", Params, Arguments
    space = {"hidden": (1024, range(64, 8192, 8))}  # the widths of random cases

    def buffers(self, params, *, device, generator, magnitude=1.0):
        import torch  # here, so that suites are read without it
        from fusebench.accuracy.inputs import normal_with_outliers

        drawn = {"dtype": getattr(torch, params.dtype), "device": device, "generator": generator, "magnitude": magnitude}
        return {name: normal_with_outliers((params.tokens, params.hidden), **drawn) for name in ("x", "gate")}

    def reference(self, params, arguments):
        x, gate = (arguments[name].double() for name in ("x", "gate"))
        return {"y": gate * gate.sigmoid() * x}

    def minimum_bytes(self, params):
        return 3 * params.tokens * params.hidden * (4 if params.dtype == "float32" else 2)

    def bytes_written(self, params):
        return self.minimum_bytes(params) // 3

    def flops(self, params):
        return 5 * params.tokens * params.hidden
'''

SPLIT = '''\
"""The chain that models run today: errors and speedups are relative to it."""

import torch
import torch.nn.functional as F

from fusebench import kernel

from .op import Arguments


@kernel("silu_mul", "split_torch", version=1, role="split", language="torch", note="silu, then product")
def split_torch(call: Arguments) -> torch.Tensor:
    return F.silu(call.gate) * call.x
'''

FUSED = '''\
"""One launch.  A new idea is a new file with the next version."""

import torch
import triton
import triton.language as tl

from fusebench import kernel, launchable

from .op import Arguments

BLOCK = 1024


@triton.jit
def _silu_mul(x_ptr, gate_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    gate = tl.load(gate_ptr + at, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, (gate * tl.sigmoid(gate) * x).to(y_ptr.dtype.element_ty), mask=mask)


@kernel("silu_mul", "fused_triton", version=1, role="fused", language="triton")
def fused_triton(call: Arguments) -> torch.Tensor:
    call.checked()
    call.require_gpu()
    y = call.allocate()
    if y.numel():
        launchable(_silu_mul)[(triton.cdiv(y.numel(), BLOCK),)](call.x, call.gate, y, y.numel(), BLOCK=BLOCK)
    return y
'''

SUITE = """\
[suite]
name = "silu_mul"
description = "the shapes that my model runs"

[[case]]
name = "text_512"
op = "silu_mul"
params = { tokens = 512, hidden = 1024 }
source = "512 text tokens"

[[case]]
name = "image_1024"
op = "silu_mul"
params = { tokens = 1024, hidden = 1024 }
source = "1024 image tokens"
"""

CI = """\
#!/usr/bin/env bash
# For any CI system: the accuracy of all kernels; where there is a GPU, also their speed against BASE, in the same rounds.
set -euo pipefail
cd "$(dirname "$0")/.."
fusebench check --suite silu_mul
if nvidia-smi -L > /dev/null 2>&1; then
  fusebench ab --suite silu_mul --base "${BASE:-origin/main}"
fi
"""

FILES = {
    "kernels/silu_mul/op.py": OP,
    "kernels/silu_mul/split_torch.py": SPLIT,
    "kernels/silu_mul/fused_triton_v1.py": FUSED,
    "suites/silu_mul.toml": SUITE,
    "ci/fusebench.sh": CI,
}
