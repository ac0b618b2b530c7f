"""Estimates in words."""

from __future__ import annotations

from ..schema import Estimate


def describe_change(change: Estimate, digits: int = 1) -> str:
    """`+2.1% [+1.0%, +3.2%]` with `digits` decimals; an interval without bounds is named as such."""
    point = f"{change.value - 1:+.{digits}%}"
    if change.low <= 0.0 or change.high == float("inf"):
        return f"{point} [no interval: one replicate]"
    return f"{point} [{change.low - 1:+.{digits}%}, {change.high - 1:+.{digits}%}]"
