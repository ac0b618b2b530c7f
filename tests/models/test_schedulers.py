"""Schedulers have the published settings, and the timesteps that diffusers' own pipelines make of them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusebench.models.building import full_config
from fusebench.models.catalogue import MODELS, load_model

diffusers = pytest.importorskip("diffusers")

FLUX = {
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 4096,
    "max_shift": 1.15,
    "shift": 3.0,
    "use_dynamic_shifting": True,
}
QWEN = {
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 8192,
    "max_shift": 0.9,
    "shift": 1.0,
    "shift_terminal": 0.02,
    "time_shift_type": "exponential",
    "use_dynamic_shifting": True,
}
WAN = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "num_train_timesteps": 1000}
PUBLISHED: dict[str, dict[str, Any]] = {
    "flux1_dev": FLUX,
    "flux2_dev": FLUX,
    "qwen_image": QWEN,
    "qwen_image_edit_2511": QWEN,
    "z_image_turbo": {"shift": 3.0, "use_dynamic_shifting": False},
    "wan2_1_t2v_1_3b": {**WAN, "flow_shift": 3.0},
    "wan2_1_t2v_14b": {**WAN, "flow_shift": 5.0},
    "wan2_2_ti2v_5b": {**WAN, "flow_shift": 5.0},
    "hunyuan_video": {"shift": 7.0, "use_dynamic_shifting": False},
}
"""Of the `scheduler/scheduler_config.json` in each model's repository on huggingface.co, or of diffusers' documentation where that says
another value for the resolution (Wan at 720 rows)."""
TOKENS = {"flux1_dev": 4096, "flux2_dev": 4096, "qwen_image": 4096, "qwen_image_edit_2511": 4096, "z_image_turbo": 4096}
"""Image tokens that are made at 1024 x 1024."""


def pipeline(file: str, function: str) -> Any:
    """A function of a pipeline's file, taken from its text: the file itself needs transformers."""
    tree = ast.parse((Path(diffusers.__file__).parent / "pipelines" / file).read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    space: dict[str, Any] = {"torch": torch}
    exec(compile(ast.Module([found], []), file, "exec"), space)
    return space[function]


def pipelines_own(name: str, steps: int) -> dict[str, Any]:
    """The arguments that the model's pipeline gives `set_timesteps`, by its own functions."""
    falling = np.linspace(1.0, 1 / steps, steps).tolist()
    published = PUBLISHED[name]
    if name == "flux2_dev":
        return {"sigmas": falling, "mu": pipeline("flux2/pipeline_flux2.py", "compute_empirical_mu")(TOKENS[name], steps)}
    if published.get("use_dynamic_shifting"):
        of = "qwenimage/pipeline_qwenimage.py" if "qwen" in name else "flux/pipeline_flux.py"
        ends = (published[key] for key in ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift"))
        return {"sigmas": falling, "mu": pipeline(of, "calculate_shift")(TOKENS[name], *ends)}
    if name == "hunyuan_video":
        return {"sigmas": np.linspace(1.0, 0.0, steps + 1)[:-1].tolist()}
    if name == "z_image_turbo":
        return {"sigmas": falling}
    return {"num_inference_steps": steps}


@pytest.mark.parametrize("name", MODELS)
def test_settings_and_timesteps_are_the_published_ones(name: str) -> None:
    model, device = load_model(name), torch.device("cpu")
    for steps in (model.steps, 4):
        own = model.scheduler(model.shapes, full_config(model), steps, device=device)
        assert {key: own.config[key] for key in PUBLISHED[name]} == PUBLISHED[name]
        published = type(own)(**PUBLISHED[name])
        published.set_timesteps(device=device, **pipelines_own(name, steps))
        torch.testing.assert_close(own.timesteps, published.timesteps, rtol=1e-6, atol=1e-4)
        torch.testing.assert_close(own.sigmas, published.sigmas, rtol=1e-6, atol=1e-6)


def test_z_image_makes_the_sigmas_of_its_pipeline() -> None:
    made = pipeline("z_image/pipeline_z_image.py", "get_default_z_image_sigmas")(8)
    assert made == pytest.approx(np.linspace(1.0, 1 / 8, 8).tolist())
