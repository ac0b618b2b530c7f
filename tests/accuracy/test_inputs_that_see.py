"""Kernels of the shipped ops that are right for the inputs of models only: each fails, and the honest one beside it passes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.accuracy import check_kernel
from fusebench.accuracy.draws import Special, plant, special_draws
from fusebench.accuracy.inputs import rotary_table, shuffled_positions, unusual_channels
from fusebench.registry import Collection, Kernel, load_collection
from fusebench.registry.signature import argument_names
from fusebench.schema import Accuracy, Close, KernelId, Language, Role
from helpers.matrices import few

Function = Callable[..., Any]
CPU = torch.device("cpu")
KERNELS = Path(__file__).parents[2] / "kernels"
OPS = ("qknorm_rope", "norm_scale_shift", "norm_scale_shift_gate_select01", "norm_tanh_mul_add", "rotary_embedding")
CASES: dict[str, dict[str, Any]] = {
    "qknorm_rope": {"tokens": 24, "heads": 3, "head_dim": 64, "layout": "neox"},
    "rotary_embedding": {"tokens": 24, "heads": 3, "head_dim": 64, "layout": "neox"},
    "norm_scale_shift": {"batch": 2, "tokens": 24, "hidden": 96, "affine": True},
    "norm_tanh_mul_add": {"batch": 2, "tokens": 24, "hidden": 96, "affine": True},
    "norm_scale_shift_gate_select01": {"batch": 2, "tokens": 24, "hidden": 96},
}


@pytest.fixture(scope="module")
def collection() -> Collection:
    loaded = load_collection([KERNELS], entry_points=False, only=OPS, operators=False)
    assert not loaded.problems
    return loaded


def check(collection: Collection, name: str, function: Function, seed: int = 1, **changes: Any) -> Accuracy:
    """The gate's judgement of `function(split, arguments)`, which calls the op's split chain."""
    op = collection.op(name)
    split = collection.kernel(f"{name}/{op.split_reference}")

    def candidate(*values: Any, **options: Any) -> Any:
        return function(split, dict(zip(argument_names(op.schema), values, strict=False)) | options)

    kernel = Kernel(
        candidate, KernelId(name, "candidate", 1), role=Role.PEER, language=Language.TORCH, contract=Close(), requires=(), note=""
    )
    kernel.op = op
    return check_kernel(kernel, op, op.parse_params(CASES[name] | changes), split=split, device=CPU, seed=seed)


def honest(split: Kernel, arguments: dict[str, Any]) -> Any:
    return split(**arguments)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("changes", few([{}, {"tokens": 2}, {"dtype": "float16"}, {"dtype": "float32"}], {"dtype": "float16"}), ids=str)
def test_an_honest_kernel_passes(collection: Collection, name: str, changes: dict[str, Any]) -> None:
    accuracy = check(collection, name, honest, **changes)
    assert accuracy.passed, accuracy.reason


def changed(name: str, change: Callable[[Any], Any]) -> Function:
    """The split chain, with one argument replaced."""

    def function(split: Kernel, arguments: dict[str, Any]) -> Any:
        return split(**arguments | {name: change(arguments[name])})

    return function


def assumes_arange(split: Kernel, arguments: dict[str, Any]) -> Any:
    positions = arguments["positions"]
    return split(**arguments | {"positions": torch.arange(len(positions), dtype=positions.dtype)})


def starts_at_the_first(split: Kernel, arguments: dict[str, Any]) -> Any:
    positions = arguments["positions"]
    return split(**arguments | {"positions": (positions[0] + torch.arange(len(positions), dtype=positions.dtype)) % len(positions)})


def sorts_positions(split: Kernel, arguments: dict[str, Any]) -> Any:
    return split(**arguments | {"positions": arguments["positions"].sort().values})


def usual_table(table: torch.Tensor) -> torch.Tensor:
    rows, rotary = table.shape
    angles = torch.arange(rows)[:, None] * 1e4 ** (-torch.arange(0, rotary, 2) / rotary)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(table.dtype)


def sine_from_cosine(table: torch.Tensor) -> torch.Tensor:
    cos, sin = table.chunk(2, dim=-1)
    return torch.cat((cos, sin.sign() * (1 - cos.square()).clamp(min=0).sqrt()), dim=-1)


def clamped(split: Kernel, arguments: dict[str, Any]) -> Any:
    x = arguments["x"]
    return split(**arguments | {"x": torch.where(x.isfinite(), x.clamp(-1e6, 1e6), x)})


def flushes_subnormals(split: Kernel, arguments: dict[str, Any]) -> Any:
    x = arguments["x"]
    return split(**arguments | {"x": torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, 0.0, x)})


def blends(split: Kernel, arguments: dict[str, Any]) -> Any:
    """Selects by multiplication, which carries a NaN of the other set along."""
    one = arguments["index"].unsqueeze(-1).to(arguments["x"].dtype)
    y, _ = split(**arguments)
    gate = arguments["gate0"].unsqueeze(1) * (1 - one) + arguments["gate1"].unsqueeze(1) * one
    return y, gate


def naive_tanh(split: Kernel, arguments: dict[str, Any]) -> Any:
    gate = arguments["gate"].float()
    tanh = ((2 * gate).exp() - 1) / ((2 * gate).exp() + 1)
    return split(**arguments | {"gate": torch.where(tanh.isnan(), tanh, gate).to(arguments["gate"].dtype)})


DEFECTS: list[tuple[str, Function, dict[str, Any]]] = [
    ("qknorm_rope", assumes_arange, {}),
    ("qknorm_rope", assumes_arange, {"tokens": 2}),
    ("qknorm_rope", starts_at_the_first, {}),
    ("qknorm_rope", sorts_positions, {}),
    ("qknorm_rope", changed("cos_sin_cache", usual_table), {}),
    ("qknorm_rope", changed("cos_sin_cache", usual_table), {"tokens": 2}),
    ("qknorm_rope", changed("cos_sin_cache", sine_from_cosine), {}),
    ("qknorm_rope", changed("cos_sin_cache", torch.nan_to_num), {}),
    ("qknorm_rope", changed("q_weight", torch.ones_like), {}),
    ("qknorm_rope", changed("eps", lambda eps: 1e-6), {}),
    ("rotary_embedding", assumes_arange, {}),
    ("rotary_embedding", changed("cos_cache", usual_table), {}),
    ("rotary_embedding", changed("cos_cache", usual_table), {"positions": "index"}),
    ("norm_scale_shift", clamped, {}),
    ("norm_scale_shift", clamped, {"tokens": 2}),
    ("norm_scale_shift", flushes_subnormals, {"dtype": "float16"}),
    ("norm_scale_shift", changed("eps", lambda eps: 1e-6), {}),
    ("norm_scale_shift", changed("eps", lambda eps: 2 * eps), {}),
    ("norm_scale_shift", changed("weight", torch.abs), {}),
    ("norm_scale_shift", changed("weight", torch.nan_to_num), {}),
    ("norm_scale_shift", changed("weight", lambda weight: weight.clamp(0, 2)), {}),
    ("norm_scale_shift", changed("bias", torch.zeros_like), {}),
    ("norm_scale_shift", changed("scale", lambda scale: scale.clamp(-2, 2)), {}),
    ("norm_scale_shift", changed("shift", lambda shift: shift.clamp(-2, 2)), {}),
    ("norm_scale_shift_gate_select01", blends, {}),
    ("norm_scale_shift_gate_select01", changed("index", torch.ones_like), {"index": "ones"}),
    ("norm_scale_shift_gate_select01", changed("index", torch.zeros_like), {"index": "zeros"}),
    ("norm_tanh_mul_add", naive_tanh, {}),
    ("norm_tanh_mul_add", changed("gate", lambda gate: gate.clamp(-1.5, 1.5)), {}),
]


@pytest.mark.parametrize(("name", "function", "changes"), DEFECTS)
def test_a_kernel_that_is_right_for_models_inputs_only_fails(
    collection: Collection, name: str, function: Function, changes: dict[str, Any]
) -> None:
    accuracy = check(collection, name, function, **changes)
    assert not accuracy.passed
    assert "exceeds" in accuracy.reason or ", expected " in accuracy.reason, accuracy.reason


def trusts_the_ends(split: Kernel, arguments: dict[str, Any]) -> Any:
    positions = arguments["positions"]
    if int(positions[0]) == 0 and int(positions[-1]) == len(positions) - 1:
        return assumes_arange(split, arguments)
    return split(**arguments)


def table_of_three_rows(split: Kernel, arguments: dict[str, Any]) -> Any:
    """Computes every row of the table from the first two, as a kernel that has found out its regularity."""
    table = arguments["cos_sin_cache"].double()
    first, second = (torch.complex(*row.chunk(2)) for row in table[:2])
    rows = first * (second / first) ** torch.arange(len(table))[:, None]
    made = torch.cat((rows.real, rows.imag), dim=-1)
    return split(**arguments | {"cos_sin_cache": made.to(arguments["cos_sin_cache"].dtype)})


@pytest.mark.parametrize("function", [trusts_the_ends, table_of_three_rows])
def test_a_shortcut_for_regular_positions_or_tables_is_found(collection: Collection, function: Function) -> None:
    found = [check(collection, "qknorm_rope", function, seed) for seed in range(4)]
    assert any(not accuracy.passed for accuracy in found), "a draw sees it now and then: one of these four"
    assert check(collection, "qknorm_rope", honest).passed


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_positions_of_a_check_are_in_range_and_never_those_of_a_timed_call() -> None:
    for tokens, batch in ((1, 1), (2, 1), (2, 3), (50, 1)):
        usual = torch.arange(tokens, dtype=torch.int32).repeat(batch)
        drawn = [shuffled_positions(usual, tokens, generator=generator(seed)) for seed in range(20)]
        assert all(positions.dtype == usual.dtype and positions.shape == usual.shape for positions in drawn)
        assert all(int(positions.min()) >= 0 and int(positions.max()) < tokens for positions in drawn)
        assert tokens == 1 or not any(torch.equal(positions, usual) for positions in drawn)
    assert any(len(positions.unique()) < 50 for positions in drawn), "some repeat positions"
    assert any(len(positions.unique()) == 50 for positions in drawn), "some permute them"
    assert any(int(one[0]) == 0 and int(one[-1]) == 49 and not torch.equal(one, usual) for one in drawn), "some keep the ends"


def test_a_table_turns_by_even_angles_from_random_phases_with_one_amplitude_per_pair() -> None:
    tables = [rotary_table(40, 16, device=CPU, generator=generator(seed)) for seed in (1, 2)]
    for table in tables:
        turns = torch.complex(*table.chunk(2, dim=-1))
        amplitudes = turns.abs()
        torch.testing.assert_close(amplitudes, amplitudes[:1].expand_as(amplitudes))
        assert 0.5 <= float(amplitudes.min()) < float(amplitudes.max()) <= 1.5
        steps = turns[1:] / turns[:-1]
        torch.testing.assert_close(steps, steps[:1].expand_as(steps))
        assert math.isclose(float(steps[0, 0].angle()), 1.0), "the first pair turns by one radian a row, as every rotary embedding's"
    assert not torch.allclose(tables[0], tables[1])


def test_some_channels_become_unusual_and_the_others_stay() -> None:
    values = torch.randn(3, 400).bfloat16()
    made = unusual_channels(values, generator=generator(1))
    stayed = (made == values).all(0)
    assert 0.6 < float(stayed.float().mean()) < 0.9
    far = made[:, ~stayed].float()
    assert 2**-4 <= float(far.abs().min()) < 0.2
    assert 3 < float(far.abs().max()) <= 4
    assert 0.3 < float((far < 0).float().mean()) < 0.7


def test_what_is_unusual_keeps_shapes_dtypes_and_everything_that_is_timed(collection: Collection) -> None:
    for name in OPS:
        op = collection.op(name)
        params = op.parse_params(CASES[name])
        buffers: Mapping[str, torch.Tensor] = op.buffers(params, device=CPU, generator=generator(3))
        before = {key: value.clone() for key, value in buffers.items()}
        made = op.unusual(params, buffers, generator=generator(4))
        assert {key: (value.shape, value.dtype, value.stride()) for key, value in made.items()} == {
            key: (value.shape, value.dtype, value.stride()) for key, value in before.items()
        }
        assert all(torch.equal(buffers[key], value) for key, value in before.items())
        if "positions" in before:
            assert torch.equal(before["positions"], torch.arange(24)), "timed calls walk the table in order"


def test_values_that_only_untrusted_kernels_get() -> None:
    buffers = {"x": torch.randn(128, 96, generator=torch.Generator().manual_seed(0)).mul_(3.0)}
    gates = {kind for kinds in special_draws(buffers) for kind in kinds}
    assert gates.isdisjoint({Special.LONE_INF, Special.PLAIN, Special.NEAR_CONSTANT})
    buffers["x"][:, 5] *= 100.0
    plant(buffers, (Special.PLAIN,), random.Random(0))
    assert 2.5 < float(buffers["x"].std()) < 3.5
    assert float(buffers["x"].abs().max()) < 20.0
    plant(buffers, (Special.LONE_INF,), random.Random(0))
    assert set(torch.isinf(buffers["x"]).sum(1).tolist()) == {0, 1}


def _layer_norm(x: torch.Tensor, variance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *, wide: torch.dtype) -> torch.Tensor:
    values = x.to(wide)
    mean = values.mean(-1, keepdim=True)
    return (values - mean) * torch.rsqrt(variance(values, mean) + 1e-6)


def _two_passes(values: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    return (values - mean).square().mean(-1, keepdim=True)


def _by_blocks(values: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Welford's formula for blocks of 32 threads, merged."""
    blocks = values.unflatten(-1, (32, -1))
    means = blocks.mean(-1)
    within = (blocks - means.unsqueeze(-1)).square().sum(-1)
    return (within.sum(-1, keepdim=True) + blocks.shape[-1] * (means - mean).square().sum(-1, keepdim=True)) / values.shape[-1]


def _one_pass(values: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    return (values.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [64, 256, 3072])
@pytest.mark.parametrize("magnitude", [1.0, 100.0])
def test_nearly_constant_rows_tell_a_variance_of_one_pass_from_a_right_one(dtype: torch.dtype, width: int, magnitude: float) -> None:
    x = torch.randn(64, width, generator=torch.Generator().manual_seed(1)).mul_(magnitude).to(dtype)
    plant({"x": x}, (Special.NEAR_CONSTANT,), random.Random(2))
    assert x.isfinite().all()
    assert float((x.double().mean(-1) / x.double().std(-1)).min()) > 300
    due = _layer_norm(x, _two_passes, wide=torch.float64)
    split = torch.nn.functional.layer_norm(x.float(), (width,), eps=1e-6).to(dtype)

    def times_the_splits(variance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
        own = _layer_norm(x, variance, wide=torch.float32).to(dtype)
        return float((own.double() - due).norm() / (split.double() - due).norm())

    assert times_the_splits(_two_passes) < 1.1
    assert times_the_splits(_by_blocks) < 1.1
    assert times_the_splits(_one_pass) > 5.0


def test_float32_rows_are_never_nearly_constant() -> None:
    x = torch.randn(8, 64)
    before = x.clone()
    plant({"x": x}, (Special.NEAR_CONSTANT,), random.Random(2))
    assert torch.equal(x, before)
