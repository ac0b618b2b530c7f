"""vLLM's rotary embedding: the whole op in one launch, in place."""

from __future__ import annotations

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "rotary_embedding", "peer_vllm", version=1, role="peer", language="cuda", requires=("vllm",), install="vllm",
    note="vLLM rotary_embedding; a position offset is a view into the table",
)  # fmt: skip
def peer_vllm(call: Arguments) -> None:
    """Overwrites q and k."""
    rotary_embedding = library_function("vllm._custom_ops:rotary_embedding")
    size = call.head_dim or call.q.shape[-1]
    assert call.positions is not None, "declined by supports"
    q_rows = call.q.view(call.positions.shape[0], -1)
    k_rows = None if call.k is None else call.k.view(call.positions.shape[0], -1)
    rotary_embedding(call.positions, q_rows, k_rows, size, call.cos_cache[call.position_offset :], call.layout == "neox")


@peer_vllm.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.caches == "joint", "vLLM takes one joint table"),
        (p.positions == "int64", "vLLM takes int64 positions"),
        (not (p.packed and p.rank == 4), "q and k are four-dimensional views, which vLLM's rows of tokens may not fit"),
    )
