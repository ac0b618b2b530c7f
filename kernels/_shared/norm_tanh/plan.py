"""The plan of a norm_tanh call: the memory layout of its accepted arguments."""

from __future__ import annotations

from typing import NamedTuple

from fusebench.registry.argument_rules import Laid

from ..modulation import Broadcast, broadcast
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
