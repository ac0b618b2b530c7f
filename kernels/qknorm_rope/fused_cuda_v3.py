"""The fusion with a vector of a head to each lane in CUDA C++ (`_shared/head_vectors.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

from fusebench import kernel
from fusebench.errors import KernelArgumentError

from .._shared.head_vectors import declined
from .._shared.head_vectors import specialise_call as a_vector_to_each_lane
from .._shared.rotary_heads import launch
from .fused_cuda_v2 import described
from .op import ITEM_SIZES, Arguments, Params


@kernel(
    "qknorm_rope", "fused_cuda", version=3, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a vector per lane, whole sectors for heads of 80 and 96 too; pairs meet by shuffles at any distance",
)  # fmt: skip
def fused_cuda(call: Arguments) -> None:
    """Overwrites q and k."""
    call.checked()
    call.require_gpu(interpreted=False)
    if (reason := declined(call.layout, call.cos_sin_cache.shape[1], call.q.shape[2], call.q.element_size(), norm=True)) is not None:
        raise KernelArgumentError(f"{fused_cuda.id}: argument q: {reason}; call fused_triton, or dispatch, which picks it")
    launch(
        described(call), call.q, call.k, call.q_weight, call.k_weight, call.cos_sin_cache, None, call.positions,
        position_offset=call.position_offset, eps=call.eps, specialised=a_vector_to_each_lane,
    )  # fmt: skip


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return declined(params.layout, params.rotary, params.head_dim, ITEM_SIZES[params.dtype], norm=True) or True
