"""Refuses arguments that no norm_tanh op may take, and says how the accepted ones lie in memory."""

from __future__ import annotations

from typing import NamedTuple

from .layout import Layout, remembered
from .modulation import Broadcast, broadcast
from .norm_arguments import check_norm, check_rows


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
        return self.batch * self.tokens


@remembered
def plan(
    op: str,
    residual: Layout,
    x: Layout,
    gate: Layout,
    weight: Layout | None,
    bias: Layout | None,
    weight2: Layout | None,
    bias2: Layout | None,
    scale2: Layout | None,
    eps: float,
    norm: str,
) -> TanhPlan:
    """Check one call of `op`; `weight2`, `bias2` and `scale2` are None for the op without a second norm.

    Raises:
        KernelArgumentError: naming the argument, what came and what is accepted.
    """
    check_rows(op, "x", x)
    check_norm(op, x, weight, bias, eps, norm)
    check_norm(op, x, weight2, bias2, eps, norm, suffix="2")
    return TanhPlan(
        *x.shape,
        residual=broadcast(op, "residual", residual, x),
        gate=broadcast(op, "gate", gate, x),
        scale2=None if scale2 is None else broadcast(op, "scale2", scale2, x),
    )
