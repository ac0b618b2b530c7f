"""Feed-forwards without a pass over their widest tensor: the product before it applies the GELU, and nothing is concatenated after it."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.activations import GELU

from ..linear_gelu import reason_not_plain
from ..op_calls import SiteOp


class FusedGelu(GELU):
    """The first layer of a feed-forward and its GELU in one launch."""

    fused: SiteOp

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.fused(self.proj, hidden_states) if self.approximate == "tanh" else super().forward(hidden_states)
        return made


def product_of_both(layer: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """`layer(torch.cat([first, second], dim=-1))` without the concatenation, for tensors `[B, S, C1]` and `[B, S, C2]`.

    On a GPU a product of each with its columns of the weight, where the second one adds to the first.  That rounds the first product once
    more, and moves `[B, S, C]` of the result twice more where the concatenation moves both inputs twice: on FLUX.1-dev 57 MB, not 283 MB.
    """
    if reason_not_plain(layer, first) or first.dtype != second.dtype:
        joined: torch.Tensor = layer(torch.cat([first, second], dim=-1))
        return joined
    of_first, of_second = layer.weight.split([first.shape[-1], second.shape[-1]], dim=1)
    made = torch.nn.functional.linear(first, of_first, layer.bias).flatten(0, -2)
    add = add_product if torch.compiler.is_compiling() else _add_product
    add(made, second.flatten(0, -2), of_second)
    return made.view(*first.shape[:-1], -1)


def _add_product(made: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> None:
    made.addmm_(rows, weight.t())


add_product = torch.library.custom_op(
    "fusebench_models::add_product", _add_product, mutates_args=("made",), schema="(Tensor(a!) made, Tensor rows, Tensor weight) -> ()"
)
"""The same for torch.compile, whose Inductor makes the sum a kernel of its own where no other kernel of the block reads it."""
add_product.register_fake(lambda made, rows, weight: None)
