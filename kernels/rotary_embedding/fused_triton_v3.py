"""For few tokens: a warp has a head of q and of k, and its first load comes soon after its start (`qknorm_rope/_few_tokens.py`)."""

from __future__ import annotations

from fusebench import Bitwise, kernel
from fusebench.registry.layouts import check_device

from ..qknorm_rope._few_tokens import CHOICES, Heads, Tile, declined, launch
from ._plan import OP
from .op import ITEM_SIZES, Arguments, Params


@kernel(
    "rotary_embedding", "fused_triton", version=3, role="fused", language="triton", replay=True,
    contract=Bitwise("rotary_embedding/split_torch@1"), note="for few tokens: asks for every operand at once, and soon after its start",
    choices=CHOICES,
)  # fmt: skip
def fused_triton(call: Arguments, choice: Tile | None = None) -> None:
    """Overwrites q and k."""
    plan = call.checked()
    check_device(OP, "q", call.q, interpreted=True)
    q, k = (each and Heads(each.heads, each.batch_stride, each.token_stride) for each in (plan.q, plan.k))
    launch(
        call.q, call.k, q, k, samples=plan.batch, tokens=plan.tokens, head_dim=plan.head_dim, cos_cache=call.cos_cache,
        sin_cache=call.sin_cache, positions=call.positions, position_offset=call.position_offset, layout=call.layout, norm=False,
        choice=choice,
    )  # fmt: skip


@fused_triton.supports
def _(params: Params) -> bool | str:
    return declined(params.layout, params.rows, params.rotary, ITEM_SIZES[params.dtype]) or True
