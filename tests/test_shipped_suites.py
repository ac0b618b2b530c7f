"""The suites that come with fusebench: their shapes, weights and sizes, and that the real ops refuse what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusebench.config import find_project
from fusebench.errors import UsageError
from fusebench.registry import load_collection
from fusebench.schema import Case, Suite
from fusebench.suites import list_suites, load_suite

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def shipped() -> dict[str, Suite]:
    project = find_project(REPOSITORY)
    collection = load_collection(project.kernels, kernels=False)
    return {listing.name: load_suite(listing.name, project, collection.ops) for listing in list_suites(project, collection.ops)}


def test_the_five_published_cases_have_their_published_shapes(shipped: dict[str, Suite]) -> None:
    def shape(case: Case) -> tuple[Any, ...]:
        keys = ("batch", "tokens", "heads", "head_dim", "rope_dim", "layout", "dtype")
        return (*(case.params[key] for key in keys), case.params.get("eps", 1e-6), case.weight)

    bf16 = ("interleaved", "bfloat16")
    assert {case.name: shape(case) for case in shipped["qknorm_rope"].cases} == {
        "flux_1024": (1, 4096, 24, 128, 128, *bf16, 1e-6, 1),
        "qwen_image_1024": (1, 4096, 32, 128, 128, *bf16, 1e-6, 1),
        "qwen_image_partial": (1, 4096, 32, 128, 64, *bf16, 1e-6, 1),
        "zimage_1024": (1, 4096, 30, 128, 128, *bf16, 1e-5, 1),
        "batch2_medium": (2, 2048, 24, 128, 128, *bf16, 1e-6, 1),
    }
    assert all(case.source for case in shipped["qknorm_rope"].cases)


def test_the_edges_cover_what_the_op_promises(shipped: dict[str, Suite]) -> None:
    params = [case.params for case in shipped["edges"].cases if case.op == "qknorm_rope"]
    assert {1, 2, 3, 5, 257} <= {each["tokens"] for each in params}
    assert {(32, 8), (32, 1)} <= {(each["heads"], each.get("kv_heads")) for each in params}
    sizes = {(size, layout) for size in (64, 80, 96, 128, 256) for layout in ("interleaved", "neox")}
    assert sizes <= {(each["head_dim"], each["layout"]) for each in params}
    assert {("round_norm", "interleaved"), ("round_norm", "neox")} <= {(each.get("mode"), each["layout"]) for each in params}
    assert {"float16", "float32"} <= {each.get("dtype") for each in params}
    for key, value in {"packed": True, "position_dtype": "int32", "cache_dtype": "activation", "affine": False}.items():
        assert any(each.get(key) == value for each in params), key
    assert any(each.get("rope_dim", each["head_dim"]) < each["head_dim"] for each in params)
    assert any(each.get("position_offset", 0) > 0 for each in params)


def test_the_smoke_suite_stays_small(shipped: dict[str, Suite]) -> None:
    assert 3 <= len(shipped["smoke"].cases) <= 4
    assert all(case.params["tokens"] <= 256 for case in shipped["smoke"].cases)


@pytest.mark.parametrize("change", ["tokens = -1", "rope_dim = 256", "heads = 0", "kv_heads = 5", "head_dim = 100", "eps = 0.0"])
def test_the_real_op_refuses_impossible_params(tmp_path: Path, change: str) -> None:
    key = change.split(" ", maxsplit=1)[0]
    values = {"tokens": "8", "heads": "4", "head_dim": "128", "layout": '"neox"'} | dict([change.split(" = ")])
    params = ", ".join(f"{name} = {value}" for name, value in values.items())
    file = tmp_path / "bad.toml"
    file.write_text(f'[suite]\nname = "bad"\n\n[[case]]\nname = "c"\nop = "qknorm_rope"\nparams = {{ {params} }}\n')
    project = find_project(REPOSITORY)
    with pytest.raises(UsageError, match=rf"bad.toml:7: case\[c\]\.params\.{key}: {key} is .*; it must"):
        load_suite(str(file), project, load_collection(project.kernels, kernels=False).ops)


MODELS = {
    # Launches per denoise step of each op without variants: calls per forward x forwards per step, from the models' forward passes.
    "flux1_dev": {"qknorm_rope": 19 + 19 + 38, "norm_scale_shift": 3, "residual_gate_norm_scale_shift": 2 * 19 + 2 * 18 + 37 + 1},
    "flux2_dev": {"qknorm_rope": 8 + 8 + 48, "norm_scale_shift": 9 + 8 + 48, "residual_gate_norm_scale_shift": 8 + 8},
    "qwen_image": {"qknorm_rope": 240, "norm_scale_shift": 2 * (61 + 60), "residual_gate_norm_scale_shift": 240},
    "qwen_image_edit_2511": {
        "qknorm_rope": 240,
        "norm_scale_shift": 120 + 2,
        "residual_gate_norm_scale_shift": 120,
        "norm_scale_shift_gate_select01": 120,
        "residual_norm_scale_shift_gate_select01": 120,
    },
    "z_image_turbo": {
        "qknorm_rope": 30 + 2 + 2,
        "norm_scale_shift": 30 + 2 + 1,
        "norm_tanh_mul_add": 30 + 2,
        "norm_tanh_mul_add_norm_scale": 30 + 2,
    },
    "wan2_1_t2v_1_3b": {"residual_gate_norm_scale_shift": 2 * (30 + 30 + 29), "norm_scale_shift": 4, "qknorm_across_heads_rope": 60},
    "wan2_1_t2v_14b": {"residual_gate_norm_scale_shift": 2 * (40 + 40 + 39), "norm_scale_shift": 4, "qknorm_across_heads_rope": 80},
    "wan2_2_ti2v_5b": {"residual_gate_norm_scale_shift": 2 * (30 + 30 + 29), "norm_scale_shift": 4, "qknorm_across_heads_rope": 60},
    "hunyuan_video": {"qknorm_rope": 20 + 20 + 40, "norm_scale_shift": 21 + 20 + 40, "residual_gate_norm_scale_shift": 20 + 20},
}


def test_there_is_a_suite_for_each_model(shipped: dict[str, Suite]) -> None:
    assert {name.removeprefix("models/") for name in shipped if name.startswith("models/")} == set(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_a_models_weights_are_its_launches_per_denoise_step(shipped: dict[str, Suite], model: str) -> None:
    cases = shipped[f"models/{model}"].cases
    counted = {op: sum(case.weight for case in cases if case.op == op and not case.variant) for op in MODELS[model]}
    assert counted == MODELS[model]
    assert all(case.source for case in cases)


@pytest.mark.parametrize("model", MODELS)
def test_a_models_tensor_parallel_variant_halves_the_heads_of_a_case_and_keeps_its_weight(shipped: dict[str, Suite], model: str) -> None:
    cases = {case.name: case for case in shipped[f"models/{model}"].cases}
    (name,) = [name for name, case in cases.items() if case.variant == "tp2"]
    halved, whole = cases[name], cases[name.removesuffix("_tp2")]
    assert halved.params == whole.params | {"heads": whole.params["heads"] // 2}
    assert (halved.op, halved.weight) == (whole.op, whole.weight)


def test_the_nightly_runs_every_op_and_model_suite(shipped: dict[str, Suite]) -> None:
    measured = {name for name in shipped if name not in ("smoke", "nightly", "calibration") and not name.startswith("edges")}
    assert shipped["nightly"].included.keys() == measured


def test_the_edges_are_every_edge_suite_and_every_op_has_one(shipped: dict[str, Suite]) -> None:
    assert shipped["edges"].included.keys() == {name for name in shipped if name.startswith("edges_")}
    assert {case.op for case in shipped["edges"].cases} == {case.op for suite in shipped.values() for case in suite.cases}


def test_a_shipped_text_stream_is_in_every_model_that_has_one(shipped: dict[str, Suite]) -> None:
    for model in set(MODELS) - {"wan2_1_t2v_1_3b", "wan2_1_t2v_14b", "wan2_2_ti2v_5b"}:  # theirs meets no op of ours
        assert any(case.params["tokens"] <= 512 for case in shipped[f"models/{model}"].cases), model
