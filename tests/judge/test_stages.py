"""Shapes that a stage draws."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fusebench.judge import stages
from fusebench.registry import load_collection

OPS = load_collection([Path(__file__).parents[2] / "kernels"], kernels=False, entry_points=False)


@pytest.mark.parametrize("case", [{"tokens": 4096}, {"batch": 2, "tokens": 4096}, {"tokens": 4096, "modulation": "token"}])
def test_a_small_shape_has_an_odd_number_of_tokens(case: dict[str, object]) -> None:
    """A kernel that works on pairs of tokens and forgets the last one is right at every shape that a model has."""
    op = OPS.op("norm_scale_shift")
    params = op.parse_params({"hidden": 64, **case})
    drawn = [stages.small(op, params, random.Random(seed)) for seed in range(40)]
    assert all(one.tokens % 2 == 1 for one in drawn)
    assert all(one.batch == params.batch for one in drawn)
    assert len({one.tokens for one in drawn}) > 5
