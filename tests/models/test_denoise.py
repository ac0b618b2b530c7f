"""The scheduler's loop of each model at the fewest steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusebench.models.building import full_config
from fusebench.models.catalogue import MODELS, load_model
from fusebench.models.denoise import Denoising

pytest.importorskip("diffusers")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("steps", [1, 2])
def test_a_short_loop_has_finite_timesteps_and_latents(name: str, steps: int) -> None:
    model = load_model(name)
    config = full_config(model, tiny=True)
    denoising = Denoising(model, config, model.tiny_shapes, device=torch.device("cpu"), dtype=torch.float32)
    asked: list[float] = []

    def predict(latents: torch.Tensor, timestep: torch.Tensor) -> Any:
        asked.append(float(timestep))
        return torch.zeros_like(latents)

    found = denoising.trajectory(predict, steps)
    assert len(found) == len(asked) == steps
    assert all(0 <= one <= 1000 for one in asked)
    assert all(torch.isfinite(one).all() for one in found)
