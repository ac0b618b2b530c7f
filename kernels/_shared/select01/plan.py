"""The plan of a select01 call: the memory layout of its accepted arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

from fusebench.registry.argument_rules import Laid
from fusebench.registry.layouts import refuse

from ..norm_arguments import check_bias
from .params import ROWS


class Plan(NamedTuple):
    """A checked call on x `[B, L, C]`; strides in elements."""

    batch: int
    tokens: int
    hidden: int
    row_strides: tuple[int, ...]
    """From sample to sample, of each of `select01_params.ROWS`."""
    index_strides: tuple[int, ...]

    @property
    def rows(self) -> int:
        return self.batch * self.tokens


def rows_of(call: Any) -> tuple[Any, ...]:
    """The six rows of a call, or their layouts, in the order of ROWS."""
    return call.scale0, call.shift0, call.gate0, call.scale1, call.shift1, call.gate1


def select01_plan(laid: Laid) -> Plan:
    """The plan of a call, with or without a residual.

    Raises:
        KernelArgumentError: naming the argument, what came and what is accepted.
    """
    check_bias(laid.op, laid.weight, laid.bias, "layer")
    rows = rows_of(laid)
    for name, row in zip(ROWS, rows, strict=True):
        if row.dtype != rows[0].dtype:
            refuse(laid.op, name, str(row), f"{rows[0].dtype}, like {ROWS[0]}: the six rows share one dtype")
    return Plan(*laid.x.shape, tuple(row.strides[0] for row in rows), tuple(laid.index.strides))
