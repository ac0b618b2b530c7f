"""Axes, further checks and the plan of a modulated norm, shared by the argument declarations of the row norms."""

from __future__ import annotations

from typing import NamedTuple

from fusebench import axis
from fusebench.registry.argument_rules import Laid
from fusebench.registry.layouts import Layout, refuse

from .modulated_params import LARGEST_HIDDEN
from .modulation import Broadcast, broadcast

ROW_AXES = {"B": "batch", "S": "tokens", "D": axis("hidden", multiple_of=8, least=8, most=LARGEST_HIDDEN)}
"""Axes of the activations `[B, S, D]`."""
MOST_ROWS = 2**31 - 1
"""Kernels count rows in 32 bits (offsets are 64 bits wide)."""


class Plan(NamedTuple):
    """A checked call on x `[B, S, D]`."""

    batch: int
    tokens: int
    hidden: int
    scale: Broadcast
    shift: Broadcast
    gate: Broadcast | None

    @property
    def rows(self) -> int:
        """Rows that one launch normalises."""
        return self.batch * self.tokens


def modulated_plan(laid: Laid) -> Plan:
    """The plan of a call on x `[B, S, D]` with a scale, a shift and perhaps a gate, in any form of modulation.py.

    Raises:
        KernelArgumentError: naming the argument, what came and what is accepted.
    """
    check_bias(laid.op, laid.weight, laid.bias, laid.norm)
    gate = getattr(laid, "gate", None)
    return Plan(
        *laid.x.shape,
        scale=broadcast(laid.op, "scale", laid.scale, laid.x),
        shift=broadcast(laid.op, "shift", laid.shift, laid.x),
        gate=None if gate is None else broadcast(laid.op, "gate", gate, laid.x),
    )


def check_bias(op: str, weight: Layout | None, bias: Layout | None, norm: str, *, suffix: str = "") -> None:
    """Refuse a bias without a weight or of an RMS norm.

    Args:
        suffix: end of the parameters' names, for an op with several norms: `2` for weight2 and bias2.

    Raises:
        KernelArgumentError: the bias cannot apply.
    """
    if bias is not None and (weight is None or norm == "rms"):
        found = "norm rms" if norm == "rms" else f"no weight{suffix}"
        refuse(op, f"bias{suffix}", f"a tensor with {found}", f"None, unless a layer norm has a weight{suffix}")
