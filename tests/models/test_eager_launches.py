"""Launches of eager torch without a device: what kind each is, their costs, and those of real models' steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("diffusers")

from fusebench.errors import RunRecordError, UsageError
from fusebench.models.building import full_config
from fusebench.models.catalogue import load_model
from fusebench.models.eager_times import chain_amounts, eager_times, main, step_amounts
from fusebench.models.measuring.eager_launches import KINDS, Costs, fit_costs, traced
from fusebench.models.stored import EAGER_FILE, read_eager
from fusebench.registry import Collection, load_collection
from fusebench.store.baselines import load_baseline

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
ROWS, COLUMNS = 1000, 2000
VALUES = 2.0
"""Millions of values of `[ROWS, COLUMNS]`."""


@pytest.fixture(scope="module")
def collection() -> Collection:
    return load_collection([ROOT / "kernels"], entry_points=False)


def _wide(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(ROWS, COLUMNS, dtype=dtype)


def _row() -> torch.Tensor:
    return torch.empty(COLUMNS, dtype=torch.bfloat16)


CALLS = {
    "sum of two": (lambda: _wide() + _wide(), {"launch": 1, "stream": 12.0}),
    "in place": (lambda: _wide().mul_(2), {"launch": 1, "stream": 8.0}),
    "broadcast": (lambda: _wide() * _row(), {"launch": 1, "walk16": VALUES}),
    "mixed types": (lambda: _wide() * _wide(torch.float32), {"launch": 1, "walk32": VALUES}),
    "mixed types and broadcast": (lambda: _wide(torch.float32) * _row(), {"launch": 1, "cast": VALUES}),
    "mixed types and strided": (lambda: _wide()[:, ::2] * _wide(torch.float32)[:, 1::2], {"launch": 1, "cast": VALUES / 2}),
    "strided": (lambda: _wide(torch.float32)[:, ::2] * 2, {"launch": 1, "walk32": VALUES / 2}),
    "wider copy": (lambda: _wide().float(), {"launch": 1, "walk32": VALUES}),
    "narrower copy": (lambda: _wide(torch.float32).bfloat16(), {"launch": 1, "stream": 12.0}),
    "transposing copy": (lambda: _wide().t().contiguous(), {"launch": 1, "walk16": VALUES}),
    "concatenation of rows": (lambda: torch.cat([_wide(), _wide()], dim=1), {"launch": 1, "stream": 16.0}),
    "concatenation of values": (lambda: torch.stack([_wide(), _wide()], dim=-1), {"launch": 1, "join": 2 * VALUES}),
    "concatenation in five dimensions": (
        lambda: torch.stack([_wide().view(1, ROWS, 20, -1)] * 2, dim=-1),
        {"launch": 2, "walk16": 2 * VALUES},
    ),
    "norm of rows": (lambda: torch.nn.functional.layer_norm(_wide(), (COLUMNS,)), {"launch": 1, "rows": 8.0}),
    "norm of heads": (lambda: torch.nn.functional.rms_norm(_wide().view(ROWS, -1, 100), (100,)), {"launch": 1, "heads": 8.0}),
    "norm of strided heads": (
        lambda: torch.nn.functional.rms_norm(_wide()[:, :1000].unflatten(1, (-1, 100)), (100,)),
        {"launch": 2, "heads": 4.0, "walk16": VALUES / 2},
    ),
    "product": (lambda: torch.nn.functional.linear(_wide(), _wide()), {}),
    "product that adds": (lambda: torch.empty(ROWS, ROWS, dtype=torch.bfloat16).addmm_(_wide(), _wide().t()), {}),
    "view": (lambda: _wide().view(ROWS, 2, -1).transpose(0, 1), {}),
}


@pytest.mark.parametrize(("call", "expected"), CALLS.values(), ids=CALLS)
def test_a_launch_has_the_amounts_of_its_kind(call: Any, expected: dict[str, float]) -> None:
    with FakeTensorMode():
        assert dict(traced(call).total()) == pytest.approx(expected)


SQUARE = 2 * ROWS * ROWS * COLUMNS
PRODUCTS = {
    "linear": (lambda: torch.nn.functional.linear(_wide(), _wide()), {"bfloat16": SQUARE}),
    "with bias, in float32": (
        lambda: torch.nn.functional.linear(_wide(torch.float32), _wide(torch.float32), torch.empty(ROWS)),
        {"float32": SQUARE},
    ),
    "that adds": (lambda: torch.empty(ROWS, ROWS, dtype=torch.bfloat16).addmm_(_wide(), _wide().t()), {"bfloat16": SQUARE}),
    "batched": (lambda: torch.empty(3, 4, 5) @ torch.empty(3, 5, 6), {"float32": 2 * 3 * 4 * 5 * 6}),
    "convolution": (
        lambda: torch.nn.functional.conv1d(torch.empty(2, 3, 10), torch.empty(5, 3, 4)),
        {"float32": 2 * (2 * 5 * 7) * (3 * 4)},
    ),
    "none": (lambda: _wide() + _wide(), {}),
}


@pytest.mark.parametrize(("call", "expected"), PRODUCTS.values(), ids=PRODUCTS)
def test_the_work_of_products_is_counted_by_dtype(call: Any, expected: dict[str, int]) -> None:
    with FakeTensorMode():
        assert traced(call).product_flops == expected


def test_planted_costs_are_found_again() -> None:
    planted = Costs({"launch": 2.0, "stream": 0.25, "walk16": 2.5, "walk32": 3.5, "cast": 5.0, "join": 8.0, "rows": 0.2, "heads": 1.0}, 0.0)
    calls = [{kind: 1.0 + (3 * number + 5 * place) % 7 for place, kind in enumerate(planted.by_kind)} for number in range(8)]
    found = fit_costs((one, planted.time_us(one)) for one in [*calls, *({kind: 4.0} for kind in planted.by_kind)])
    assert found.by_kind == pytest.approx(planted.by_kind)
    assert found.scatter == pytest.approx(0.0, abs=1e-9)


def test_stored_chains_take_what_the_stored_costs_say(collection: Collection) -> None:
    """A large and a small case, within three times the fit's scatter."""
    eager, baseline = read_eager(RESULTS), load_baseline(RESULTS, "NVIDIA H200")
    assert eager is not None
    assert baseline is not None
    costs = Costs(eager.costs_us, eager.scatter)
    for key in ("models/flux1_dev:norm_joint", "models/flux1_dev:norm_text"):
        case = next((one.case for one in baseline.cases if one.case.key == key), None)
        assert case is not None
        (measured,) = (
            one.measurement.time_us.value
            for one in baseline.results
            if one.case_key == key and one.kernel.endswith("/split_torch@1") and one.measurement is not None
        )
        assert costs.time_us(chain_amounts(collection, case)) == pytest.approx(measured, rel=3 * eager.scatter)


def test_a_fused_step_keeps_one_launch_in_order_of_each_swiglu(collection: Collection) -> None:
    model = load_model("flux2_dev")
    config = full_config(model, tiny=True)
    left, noted = step_amounts(model, config, model.tiny_shapes, fused=collection)
    moved = sum(call.minimum_bytes for call in noted if call.site == "single block: feed-forward, SwiGLU")
    assert moved > 0
    assert left.amounts["inside"] == {"launch": config["num_single_layers"], "stream": pytest.approx(moved / 1e6)}


def test_chains_launch_as_many_kernels_as_their_trace_says(collection: Collection) -> None:
    """Strided heads among them, whose norm copies them first: CUPTI counted the launches of the stored run."""
    baseline = load_baseline(RESULTS, "NVIDIA H200")
    assert baseline is not None
    cases = {one.case.key: one.case for one in baseline.cases}
    counted = {
        one.case_key: one.measurement.kernels
        for one in baseline.results
        if one.kernel.endswith("/split_torch@1") and one.measurement is not None
    }
    assert len(counted) > 50
    assert {key: chain_amounts(collection, cases[key])["launch"] for key in counted} == counted


def test_a_step_that_embeds_fewer_timesteps_leaves_products_out(collection: Collection) -> None:
    """Wan2.2 5B embeds the timestep of every token, the substitution that of every frame."""
    found = {
        name: eager_times(load_model(name), {"num_layers": 2}, Costs(dict.fromkeys(KINDS, 1.0), 0.0), collection).products_left_out
        for name in ("wan2_2_ti2v_5b", "wan2_1_t2v_1_3b")
    }
    assert found["wan2_2_ti2v_5b"] > 0.1
    assert found["wan2_1_t2v_1_3b"] == pytest.approx(0.0, abs=1e-9)


def test_a_fused_step_leaves_less_than_diffusers_launches_and_no_launch_of_an_op(collection: Collection) -> None:
    model = load_model("z_image_turbo")
    config = full_config(model, tiny=True)
    split, none = step_amounts(model, config, model.tiny_shapes)
    left, noted = step_amounts(model, config, model.tiny_shapes, fused=collection)
    assert none == []
    assert len(noted) == sum(model.expected_calls(config).values())
    assert split.amounts["inside"]["launch"] > 20
    assert left.amounts["inside"]["launch"] == 0
    assert 0 < left.amounts["outside"]["launch"] < split.amounts["outside"]["launch"]


@pytest.mark.parametrize("name", ["hunyuan_video", "wan2_1_t2v_14b", "z_image_turbo"])
def test_the_stored_eager_times_are_those_of_todays_models(name: str, collection: Collection) -> None:
    """If not: `python -m fusebench.models.eager_times results`."""
    eager = read_eager(RESULTS)
    assert eager is not None
    found, kept = eager_times(load_model(name), eager.models[name].layers, Costs(eager.costs_us, 0.0), collection), eager.models[name]
    assert (found.layers, found.moved_bytes) == (kept.layers, kept.moved_bytes)
    assert found.split_us == pytest.approx(kept.split_us)
    assert found.left_us == pytest.approx(kept.left_us)
    assert found.products_left_out == pytest.approx(kept.products_left_out)


def test_a_file_that_cannot_be_read_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    assert read_eager(tmp_path) is None
    file = tmp_path / "models" / EAGER_FILE
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(RunRecordError, match=r"make it anew: `python -m fusebench\.models\.eager_times"):
        read_eager(tmp_path)


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected one argument"):
        main([])
    with pytest.raises(UsageError, match="holds records of no model; expected those of one GPU model"):
        main([str(tmp_path)])
