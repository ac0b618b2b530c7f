"""For few tokens: a warp has a head of q and of k, and its first load comes soon after its start (`qknorm_rope/_few_tokens.py`)."""

from __future__ import annotations

from fusebench import kernel

from ._few_tokens import CHOICES, Heads, Tile, declined, launch
from .op import ITEM_SIZES, Arguments, Params


@kernel(
    "qknorm_rope", "fused_triton", version=3, role="fused", language="triton", replay=True,
    note="for few tokens: asks for every operand at once, and soon after its start", choices=CHOICES,
)  # fmt: skip
def fused_triton(call: Arguments, choice: Tile | None = None) -> None:
    """Overwrites q and k."""
    call.checked()
    call.require_gpu()
    q, k = call.q, call.k
    tokens, heads, head_dim = q.shape
    launch(
        q, k, Heads(heads, 0, q.stride(0)), Heads(k.shape[1], 0, k.stride(0)), samples=1, tokens=tokens, head_dim=head_dim,
        q_weight=call.q_weight, k_weight=call.k_weight, cos_cache=call.cos_sin_cache, sin_cache=None, positions=call.positions,
        position_offset=call.position_offset, eps=call.eps, layout=call.layout, norm=True, round_norm=call.round_norm, choice=choice,
    )  # fmt: skip


@fused_triton.supports
def _(params: Params) -> bool | str:
    return declined(params.layout, params.rows, params.rotary, ITEM_SIZES[params.dtype]) or True
