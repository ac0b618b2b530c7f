"""The fusion over heads of any width in CUDA C++ (`_shared/rotary_heads.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

from fusebench import kernel
from fusebench.errors import KernelArgumentError

from .._shared.rotary_heads import Call, Heads, declined, launch
from .op import ITEM_SIZES, Arguments, Params


@kernel(
    "qknorm_rope", "fused_cuda", version=2, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="two vectors per lane, both halves of a neox pair; heads of 80 and 96 leave no power of two idle",
)  # fmt: skip
def fused_cuda(call: Arguments) -> None:
    """Overwrites q and k."""
    call.checked()
    call.require_gpu(interpreted=False)
    if (reason := declined(call.layout, call.cos_sin_cache.shape[1], call.q.shape[2], call.q.element_size(), norm=True)) is not None:
        raise KernelArgumentError(f"{fused_cuda.id}: argument cos_sin_cache: {reason}; call fused_triton, or dispatch, which picks it")
    launch(
        described(call), call.q, call.k, call.q_weight, call.k_weight, call.cos_sin_cache, None, call.positions,
        position_offset=call.position_offset, eps=call.eps,
    )  # fmt: skip


def described(call: Arguments) -> Call:
    """What decides the launch's code and grid."""
    q, k, cache = call.q, call.k, call.cos_sin_cache
    tokens, q_heads, head_dim = q.shape
    weights = 0 if call.q_weight is None or call.k_weight is None else call.q_weight.data_ptr() | call.k_weight.data_ptr()
    return Call(
        head_dim=head_dim, rotary=cache.shape[1], q=Heads(q_heads, 0, q.stride(0)), k=Heads(k.shape[1], 0, k.stride(0)),
        rows=tokens, tokens=tokens, dtype=q.dtype, cache_dtype=cache.dtype, interleaved=call.layout == "interleaved", norm=True,
        round_norm=call.round_norm, affine=call.q_weight is not None, position_bytes=call.positions.element_size(), joint=True,
        aligned=(q.data_ptr() | k.data_ptr() | weights) % 16 == 0, cache_aligned=cache.data_ptr() % 16 == 0,
    )  # fmt: skip


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return declined(params.layout, params.rotary, params.head_dim, ITEM_SIZES[params.dtype], norm=True) or True
