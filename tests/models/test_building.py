"""Random weights: their dtypes and the statistics of the activations that they make; the memory that a step needs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.errors import UsageError
from fusebench.models.building import build, full_config, load
from fusebench.models.catalogue import load_model
from fusebench.models.memory import GIB, RESERVED_BYTES, _live_bytes, activation_bytes, needed_bytes, require_memory

pytest.importorskip("diffusers")

DEEP = {
    "flux1_dev": {"num_layers": 8, "num_single_layers": 12},
    "flux2_dev": {"num_layers": 8, "num_single_layers": 12},
    "hunyuan_video": {"num_layers": 8, "num_single_layers": 12},
    "wan2_1_t2v_1_3b": {"num_layers": 20},
    "wan2_2_ti2v_5b": {"num_layers": 20},
}
"""Twenty blocks of each model: enough that a stream which explodes or dies out shows."""


@pytest.mark.parametrize("name", DEEP)
@torch.no_grad()
def test_the_residual_stream_keeps_its_size_through_the_depth(name: str) -> None:
    model, device = load_model(name), torch.device("cpu")
    config = full_config(model, tiny=True) | DEEP[name]
    transformer = build(model, config, device=device, dtype=torch.bfloat16)
    sizes: list[float] = []

    def note(_module: Any, _given: Any, made: Any) -> None:
        for stream in made if isinstance(made, tuple) else (made,):
            sizes.append(float(stream.float().square().mean().sqrt()))

    for stack in model.stacks.values():
        for block in getattr(transformer, stack):
            block.register_forward_hook(note)
    generator = torch.Generator().manual_seed(1)
    latents = model.latents(model.tiny_shapes, config, generator=generator).to(torch.bfloat16)
    conditioning = model.conditioning(model.tiny_shapes, config, dtype=torch.bfloat16, generator=generator)
    assert model.predict(transformer, latents, torch.tensor(500.0), conditioning).isfinite().all()
    assert len(sizes) >= 20
    assert min(sizes) > 0.5
    assert max(sizes) < 8


def test_dtypes_are_those_of_a_loaded_model(tmp_path: Path) -> None:
    model, device = load_model("wan2_1_t2v_1_3b"), torch.device("cpu")
    built = build(model, full_config(model, tiny=True), device=device, dtype=torch.bfloat16)
    dtypes = {name: parameter.dtype for name, parameter in built.named_parameters()}
    assert dtypes["blocks.1.scale_shift_table"] is dtypes["blocks.1.norm2.weight"] is torch.float32
    assert dtypes["condition_embedder.time_embedder.linear_1.weight"] is torch.float32
    assert dtypes["blocks.1.attn1.norm_q.weight"] is dtypes["condition_embedder.time_proj.weight"] is torch.bfloat16
    built.save_pretrained(tmp_path)
    if importlib.util.find_spec("accelerate") is None:
        with pytest.raises(UsageError, match="pip install accelerate"):
            load(model, tmp_path, device=device, dtype=torch.bfloat16)
    else:
        loaded = load(model, tmp_path, device=device, dtype=torch.bfloat16)
        assert dtypes == {name: parameter.dtype for name, parameter in loaded.named_parameters()}


def test_live_bytes_are_counted() -> None:
    given = torch.zeros(1000)
    with _live_bytes() as counter:
        first = given + 1
        second = first + 1
        del first
        third = second.view(10, 100) + 1
        del third
        second.add_(given)
    assert counter.most == 8000
    assert counter.now == 4000


def test_memory_that_a_model_needs() -> None:
    model, dtype = load_model("wan2_1_t2v_1_3b"), torch.bfloat16
    config, small = full_config(model), model.tiny_shapes
    stream = 32760 * 1536 * 2
    assert 8 * stream < activation_bytes(model, config, model.shapes, dtype) < 24 * stream  # no matrix of all tokens by all tokens
    weights = 1_418_996_800 * 2  # the published model's parameters, a few of them float32
    assert weights < needed_bytes(model, config, small, dtype) - RESERVED_BYTES < 1.1 * weights
    with pytest.raises(UsageError, match=r"needs 5 GiB, this GPU has 3 GiB free; use --layers num_layers=(\d+), or") as error:
        require_memory(model, config, small, dtype, free=3 * GIB)
    layers = int(str(error.value).split("num_layers=")[1].split(",")[0])
    assert 1 < layers < 30
    require_memory(model, config | {"num_layers": layers}, small, dtype, free=3 * GIB)
    with pytest.raises(UsageError, match="one block of each stack needs"):
        require_memory(model, config, small, dtype, free=GIB)
