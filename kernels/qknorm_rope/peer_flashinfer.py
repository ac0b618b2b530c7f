"""FlashInfer's RMS norm of q and of k, then its RoPE: the three launches that its users run."""

from __future__ import annotations

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "qknorm_rope", "peer_flashinfer", version=1, role="peer", language="cuda", requires=("flashinfer",), install="flashinfer-python",
    note="FlashInfer rmsnorm of q, of k, then RoPE, all in place: three launches; a position offset is a view into the table",
)  # fmt: skip
def peer_flashinfer(call: Arguments) -> None:
    """Overwrites q and k; rounds after the norm in either mode."""
    rmsnorm = library_function("flashinfer.norm:rmsnorm")
    rope = library_function("flashinfer.rope:apply_rope_with_cos_sin_cache_inplace")
    tokens, _, head_dim = call.q.shape
    for x, weight in ((call.q, call.q_weight), (call.k, call.k_weight)):
        rows = x.view(-1, head_dim)
        rmsnorm(rows, weight, eps=call.eps, out=rows)
    table = call.cos_sin_cache[call.position_offset :]
    rope(call.positions, call.q.view(tokens, -1), call.k.view(tokens, -1), head_dim, table, is_neox=call.layout == "neox")


@peer_flashinfer.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.head_dim in (64, 128, 256), f"FlashInfer's RoPE takes head_dim 64, 128 and 256, not {p.head_dim}"),
        (p.dtype != "float32", "FlashInfer takes bfloat16 and float16"),
        (p.affine, "FlashInfer's rmsnorm needs a weight"),
        (p.cache_dtype == "float32", "FlashInfer takes a float32 table"),
        (not p.packed, "q and k are views of a packed projection; FlashInfer's rmsnorm takes rows of one stride"),
    )
