"""Calls of the kernels that turn heads in CUDA C++ (kernels/_shared/rotary_heads.py), as their tests compile them."""

from __future__ import annotations

from typing import Any

import torch

MULTIPROCESSORS = 132
"""Of an H200."""


def call_of(rotary_heads: Any, *, head_dim: int = 128, rotary: int = 0, interleaved: bool = False, norm: bool = True, k_heads: int = 24,
            rows: int = 4096, dtype: torch.dtype = torch.bfloat16, aligned: bool = True) -> Any:  # fmt: skip
    """A `Call` of the module `rotary_heads` with 24 heads of q; all of a head is turned unless `rotary` says how much."""
    return rotary_heads.Call(
        head_dim=head_dim, rotary=rotary or head_dim, q=rotary_heads.Heads(24, 0, 24 * head_dim),
        k=rotary_heads.Heads(k_heads, 0, k_heads * head_dim), rows=rows, tokens=rows, dtype=dtype, cache_dtype=torch.float32,
        interleaved=interleaved, norm=norm, round_norm=False, affine=norm, position_bytes=8, joint=True, aligned=aligned,
        cache_aligned=True,
    )  # fmt: skip
