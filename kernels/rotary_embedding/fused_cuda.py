"""The rotation in CUDA C++ (`_shared/rotary_heads.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

from fusebench import Bitwise, kernel
from fusebench.errors import KernelArgumentError

from .._shared.rotary_heads import Call, Heads, declined, launch
from ._plan import Plan
from .op import ITEM_SIZES, Arguments, Params

NO_HEADS = Heads(0, 0, 0)


@kernel(
    "rotary_embedding", "fused_cuda", version=1, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    contract=Bitwise("rotary_embedding/split_torch@1"), note="both halves of a pair in one lane, lanes without regard to warps",
)  # fmt: skip
def fused_cuda(call: Arguments) -> None:
    """Overwrites q and k."""
    plan = call.checked()
    call.require_gpu(interpreted=False)
    if (reason := declined(call.layout, plan.rotary, plan.head_dim, call.q.element_size(), norm=False)) is not None:
        raise KernelArgumentError(f"{fused_cuda.id}: argument cos_cache: {reason}; call fused_triton, or dispatch, which picks it")
    launch(
        described(call, plan), call.q, call.k, None, None, call.cos_cache, call.sin_cache, call.positions,
        position_offset=call.position_offset, eps=0.0,
    )  # fmt: skip


def described(call: Arguments, plan: Plan) -> Call:
    """What decides the launch's code and grid."""
    q, k, cosines, sines, positions = call.q, call.k, call.cos_cache, call.sin_cache, call.positions
    caches = cosines.data_ptr() | (0 if sines is None else sines.data_ptr())
    return Call(
        head_dim=plan.head_dim, rotary=plan.rotary, q=Heads(*plan.q), k=NO_HEADS if plan.k is None else Heads(*plan.k),
        rows=plan.rows, tokens=plan.tokens, dtype=q.dtype, cache_dtype=cosines.dtype, interleaved=call.layout == "interleaved",
        norm=False, round_norm=False, affine=False, position_bytes=0 if positions is None else positions.element_size(),
        joint=sines is None, aligned=(q.data_ptr() | (0 if k is None else k.data_ptr())) % 16 == 0, cache_aligned=caches % 16 == 0,
    )  # fmt: skip


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return declined(params.layout, params.rotary, params.head_dim, ITEM_SIZES[params.dtype], norm=False) or True
