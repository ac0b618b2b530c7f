"""Matrices of combinations of which `make test` runs a few, and `make test-all` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], *kept: Any) -> list[Any]:
    """`values` to parametrize a test with: those beyond `kept` are marked `exhaustive`.

    Raises:
        ValueError: one of `kept` is not among the values.
    """
    known = list(values)
    if missing := [one for one in kept if one not in known]:
        raise ValueError(f"{missing} not among {known}")
    return [
        one if one in kept else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.exhaustive) for one in known
    ]
