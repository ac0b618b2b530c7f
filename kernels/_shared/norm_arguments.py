"""Refuses arguments that no modulated norm may take, and says how the accepted ones lie in memory."""

from __future__ import annotations

import math
from typing import NamedTuple

from .layout import ACTIVATION_DTYPES, Layout, refuse, remembered
from .modulated_params import LARGEST_HIDDEN
from .modulation import Broadcast, broadcast

MOST_ROWS = 2**31 - 1
"""Kernels count rows in 32 bits (offsets are 64 bits wide)."""
NORMS = ("layer", "rms")


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
        return self.batch * self.tokens


@remembered
def plan(
    op: str,
    x: Layout,
    residual: Layout | None,
    gate: Layout | None,
    weight: Layout | None,
    bias: Layout | None,
    scale: Layout,
    shift: Layout,
    eps: float,
    norm: str,
) -> Plan:
    """Check one call of `op`; `residual` and `gate` are None for ops without them.

    Raises:
        KernelArgumentError: naming the argument, what came and what is accepted.
    """
    check_rows(op, "x", x)
    if residual is not None:
        if residual.shape != x.shape or residual.dtype != x.dtype:
            refuse(op, "residual", str(residual), f"{list(x.shape)} in {x.dtype}, like x")
        check_rows(op, "residual", residual)
        _check_device(op, "residual", residual, x)
    check_norm(op, x, weight, bias, eps, norm)
    return Plan(
        *x.shape,
        scale=broadcast(op, "scale", scale, x),
        shift=broadcast(op, "shift", shift, x),
        gate=None if gate is None else broadcast(op, "gate", gate, x),
    )


def check_rows(op: str, name: str, x: Layout) -> None:
    """x must be `[B, S, D]` with neighbouring channels; its other strides are free."""
    if len(x.shape) != 3 or x.dtype_name not in ACTIVATION_DTYPES or x.shape[2] % 8 or not 8 <= x.shape[2] <= LARGEST_HIDDEN:
        refuse(op, name, str(x), f"[B, S, D] in bfloat16, float16 or float32, D a multiple of 8 from 8 to {LARGEST_HIDDEN}")
    if x.strides[2] != 1:
        refuse(op, name, f"strides {tuple(x.strides)}", "a last stride of 1")
    if x.shape[0] * x.shape[1] > MOST_ROWS:
        refuse(op, name, f"{x.shape[0] * x.shape[1]} rows", f"at most {MOST_ROWS}")


def check_norm(op: str, x: Layout, weight: Layout | None, bias: Layout | None, eps: float, norm: str, *, suffix: str = "") -> None:
    """The norm's kind, its epsilon and its affine parameters `[D]`, each None or in x's dtype or float32.

    Args:
        suffix: of the parameters' names, for an op with several norms: `2` for weight2 and bias2.
    """
    if norm not in NORMS:
        refuse(op, "norm", repr(norm), "'layer' or 'rms'")
    if not (math.isfinite(eps) and eps > 0):
        refuse(op, "eps", str(eps), "a positive finite number")
    if bias is not None and (weight is None or norm == "rms"):
        found = "norm rms" if norm == "rms" else f"no weight{suffix}"
        refuse(op, f"bias{suffix}", f"a tensor with {found}", f"None, unless a layer norm has a weight{suffix}")
    for name, parameter in ((f"weight{suffix}", weight), (f"bias{suffix}", bias)):
        if parameter is None:
            continue
        if parameter.shape != x.shape[2:] or parameter.dtype_name not in (x.dtype_name, "float32") or not parameter.is_contiguous:
            dtypes = " or ".join(dict.fromkeys((x.dtype_name, "float32")))
            refuse(op, name, str(parameter), f"contiguous [{x.shape[2]}] in {dtypes}, or None")
        _check_device(op, name, parameter, x)


def _check_device(op: str, name: str, tensor: Layout, x: Layout) -> None:
    if tensor.device != x.device:
        refuse(op, name, f"device {tensor.device}", f"{x.device}, like x")
