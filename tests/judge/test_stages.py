"""Shapes that a stage draws."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import torch

from fusebench.judge import stages
from fusebench.judge.layouts import other_layout, two_samples
from fusebench.registry import load_collection
from fusebench.schema import Case
from fusebench.schema.evaluation import Stage
from judge.bench import toy

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


@pytest.mark.parametrize(("stage", "most"), [(Stage.CHECK, 4), (Stage.QUICK, 4), (Stage.FINAL, 9)])
def test_only_the_last_stage_judges_every_case(stage: Stage, most: int) -> None:
    cases = [Case(name=f"c{number}", suite="s", op="o", params={}, weight=1.0, source="") for number in range(9)]
    drawn = [stages.chosen(cases, stage, random.Random(seed), lambda case: 1, "cuda") for seed in range(20)]
    assert {len(one) for one in drawn} == {most}
    assert {case.name for one in drawn for case in one} == {case.name for case in cases}


def test_the_quick_stage_leaves_out_cases_whose_values_take_long_to_move() -> None:
    cases = [Case(name=f"c{number}", suite="s", op="o", params={}, weight=1.0, source="") for number in range(3)]
    sizes = {"c0": 1 << 30, "c1": 1 << 20, "c2": 1 << 29}
    assert [one.name for one in stages.chosen(cases, Stage.QUICK, random.Random(0), lambda case: sizes[case.name], "cuda")] == ["c1"]
    assert [one.name for one in stages.chosen(cases[::2], Stage.QUICK, random.Random(0), lambda case: sizes[case.name], "cuda")] == ["c2"]


@pytest.mark.parametrize(
    ("op", "case", "field"),
    [
        ("norm_scale_shift", {"tokens": 33, "hidden": 64}, "strided"),
        ("norm_scale_shift", {"tokens": 33, "hidden": 64, "strided": True, "affine": True}, "strided"),
        ("qknorm_rope", {"tokens": 33, "heads": 2, "head_dim": 64, "layout": "neox", "packed": True}, "packed"),
        ("rotary_embedding", {"tokens": 33, "heads": 2, "head_dim": 64, "layout": "neox"}, "packed"),
    ],
)
def test_another_layout_has_other_strides_and_nothing_else(op: str, case: dict[str, object], field: str) -> None:
    params = OPS.op(op).parse_params(case)
    other = other_layout(OPS.op(op), params, torch.device("cpu"))
    assert other == msgspec.structs.replace(params, **{field: not getattr(params, field)})


def test_a_layout_is_compared_with_two_samples_where_the_op_takes_them() -> None:
    one = OPS.op("norm_scale_shift").parse_params({"tokens": 33, "hidden": 64})
    assert (two_samples(one).batch, two_samples(msgspec.structs.replace(one, batch=3)).batch) == (2, 3)
    refused = OPS.op("rotary_embedding").parse_params({"tokens": 3, "heads": 2, "head_dim": 64, "layout": "neox", "positions": "index"})
    assert two_samples(refused) == refused


def test_an_op_of_one_layout_has_no_other() -> None:
    """Its only true-or-false field, if any, changes shapes or options."""
    assert other_layout(toy().op("scale"), toy().op("scale").parse_params({"size": 8}), torch.device("cpu")) is None


def test_a_long_case_is_compared_at_many_tokens_too() -> None:
    op = OPS.op("norm_scale_shift")
    short, long = (op.parse_params({"hidden": 64, "tokens": tokens}) for tokens in (200, 1 << 20))
    assert stages.longer(op, short, Stage.CHECK, "cpu") == short
    cut = stages.longer(op, long, Stage.CHECK, "cpu")
    assert stages.CHECK_BYTES["cpu"] / 4 < op.minimum_bytes(cut) <= stages.CHECK_BYTES["cpu"]


def test_a_large_case_is_cut_on_a_cpu_where_it_is_timed() -> None:
    """One of 100 MB had no end within the budget of `quick`."""
    op = OPS.op("norm_scale_shift")
    small, large = (op.parse_params({"hidden": 3072, "tokens": tokens}) for tokens in (1024, 1 << 15))
    for stage in (Stage.QUICK, Stage.FINAL):
        assert stages.cut(op, small, stage, "cpu") == small
        assert stages.QUICK_BYTES["cpu"] / 4 < op.minimum_bytes(stages.cut(op, large, stage, "cpu")) <= stages.QUICK_BYTES["cpu"]
        assert stages.cut(op, large, stage, "cuda") == large


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("case", [{"tokens": 4608}, {"tokens": 1 << 17}, {"batch": 2, "tokens": 2048}])
def test_a_case_is_compared_at_tokens_that_16_divides_and_at_others(device: str, case: dict[str, int]) -> None:
    """Triton compiles other code for them; `tests/hostile` holds a kernel for each that is wrong there alone."""
    op = OPS.op("norm_scale_shift")
    params = op.parse_params({"hidden": 3072, **case})
    assert stages.longer(op, params, Stage.CHECK, device).tokens % 16 == 0
    assert all(params.batch * stages.small(op, params, random.Random(seed)).tokens % 16 for seed in range(40))


@pytest.mark.parametrize(
    ("stage", "device", "budget", "planned"),
    [
        (Stage.QUICK, "cuda", 180.0, 22.0),
        (Stage.QUICK, "cuda", 20.0, 15.0),
        (Stage.QUICK, "cpu", 180.0, 135.0),
        (Stage.FINAL, "cuda", 900.0, 675.0),
        (Stage.CHECK, "cpu", 60.0, 60.0),
    ],
)
def test_a_stage_that_times_plans_to_be_done_before_its_budget_ends(stage: Stage, device: str, budget: float, planned: float) -> None:
    assert stages.planned_s(stage, device, budget) == planned
