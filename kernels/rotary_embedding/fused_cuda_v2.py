"""The rotation with a vector of a head to each lane in CUDA C++ (`_shared/head_vectors.cu`), compiled by NVRTC."""

from __future__ import annotations

from fusebench import Bitwise, kernel
from fusebench.errors import KernelArgumentError

from .._shared.head_vectors import declined
from .._shared.head_vectors import specialise_call as a_vector_to_each_lane
from .._shared.rotary_heads import launch
from .fused_cuda import described
from .op import ITEM_SIZES, Arguments, Params


@kernel(
    "rotary_embedding", "fused_cuda", version=2, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    contract=Bitwise("rotary_embedding/split_torch@1"), note="a vector per lane, whole sectors for heads of 80 and 96 too; shuffled pairs",
)  # fmt: skip
def fused_cuda(call: Arguments) -> None:
    """Overwrites q and k."""
    plan = call.checked()
    call.require_gpu(interpreted=False)
    if (reason := declined(call.layout, plan.rotary, plan.head_dim, call.q.element_size(), norm=False)) is not None:
        raise KernelArgumentError(f"{fused_cuda.id}: argument cos_cache: {reason}; call fused_triton, or dispatch, which picks it")
    launch(
        described(call, plan), call.q, call.k, None, None, call.cos_cache, call.sin_cache, call.positions,
        position_offset=call.position_offset, eps=0.0, specialised=a_vector_to_each_lane,
    )  # fmt: skip


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return declined(params.layout, params.rotary, params.head_dim, ITEM_SIZES[params.dtype], norm=False) or True
