"""The plan of a norm_tanh call: the memory layout of its accepted arguments."""

from __future__ import annotations

from typing import NamedTuple

from fusebench.registry.argument_rules import Laid

from ..modulation import SCALAR, Broadcast, broadcast
from ..norm_arguments import check_bias


class TanhPlan(NamedTuple):
    """A checked call on x `[B, S, D]`."""

    batch: int
    tokens: int
    hidden: int
    residual: Broadcast
    gate: Broadcast
    scale2: Broadcast | None

    @property
    def rows(self) -> int:
        """Rows that one launch normalises."""
        return self.batch * self.tokens


def tanh_plan(laid: Laid) -> TanhPlan:
    """The plan of a call, with or without a second norm; residual, gate and scale2 come in any form of modulation.py.

    Raises:
        KernelArgumentError: naming the argument, what came and what is accepted.
    """
    check_bias(laid.op, laid.weight, laid.bias, laid.norm)
    second = "scale2" in laid.tensors
    if second:
        check_bias(laid.op, laid.weight2, laid.bias2, laid.norm, suffix="2")
    return TanhPlan(
        *laid.x.shape,
        residual=broadcast(laid.op, "residual", laid.residual, laid.x),
        gate=broadcast(laid.op, "gate", laid.gate, laid.x),
        scale2=broadcast(laid.op, "scale2", laid.scale2, laid.x) if second else None,
    )


def is_shifted(plan: TanhPlan, *, layer: bool) -> bool:
    """Whether the second norm takes y less the residual, rounded as y is.

    A layer norm does not change with a shift. Where one residual value serves all elements and is far larger than the gated norm, y has few
    distinct values, or one. The float32 mean of such a row is off by some 1e-7 of the residual, which may be more than the row's deviation:
    a row of equal values would give -1 or 1 instead of 0. The difference is exact there (Sterbenz), and its mean is small.
    """
    return layer and plan.scale2 is not None and plan.residual.addressing == SCALAR
