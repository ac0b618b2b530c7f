"""Random weights: their dtypes and the statistics of the activations that they make; the memory that a step needs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.errors import UsageError
from fusebench.models.building import WEIGHTS, build, full_config, load
from fusebench.models.catalogue import load_model
from fusebench.models.memory import GIB, RESERVED_BYTES, _live_bytes, activation_bytes, needed_bytes, require_memory

pytest.importorskip("diffusers")
save_file = pytest.importorskip("safetensors.torch").save_file

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
    loaded = load(model, tmp_path, full_config(model, tiny=True), device=device, dtype=torch.bfloat16)
    assert dtypes == {name: parameter.dtype for name, parameter in loaded.named_parameters()}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A folder with the weights of a tiny Wan of three blocks in several parts, and the weights."""
    model, folder = load_model("wan2_1_t2v_1_3b"), tmp_path_factory.mktemp("weights")
    config = full_config(model, tiny=True) | {"num_layers": 3}
    built = build(model, config, device=torch.device("cpu"), dtype=torch.float32)
    built.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder, built.state_dict()


def loaded(folder: Path, layers: int = 3, **config: Any) -> Any:
    model = load_model("wan2_1_t2v_1_3b")
    asked = full_config(model, tiny=True) | {"num_layers": layers} | config
    return load(model, folder, asked, device=torch.device("cpu"), dtype=torch.float32)


def test_local_weights_need_no_accelerate(stored: tuple[Path, dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, weights = stored
    monkeypatch.setitem(sys.modules, "accelerate", None)
    found = loaded(folder)
    assert found.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in found.state_dict().items())
    tables = {name: buffer for name, buffer in found.named_buffers() if name not in weights}
    assert tables, "the rotary tables, which no file holds"
    assert all(buffer.isfinite().all() for buffer in tables.values())


def test_a_reduced_stack_has_the_first_blocks_of_local_weights(stored: tuple[Path, dict[str, torch.Tensor]]) -> None:
    folder, weights = stored
    found = loaded(folder, layers=2).state_dict()
    assert found.keys() == {name for name in weights if not name.startswith("blocks.2.")}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in found.items())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"layers": 4}, "its model has 3 num_layers, and 4 are to run; use --layers"),
        ({"ffn_dim": 7}, "its model has ffn_dim="),
    ],
)
def test_weights_of_another_configuration_are_refused(stored: tuple[Path, Any], config: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        loaded(stored[0], **config)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "config.json").write_text("[]"), "holds no model; expected a folder of WanTransformer3DModel"),
        (lambda folder: (folder / "config.json").write_text('{"_class_name": "Other"}'), "holds Other; expected"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda folder: (folder / f"{WEIGHTS}.index.json").write_text('{"weight_map": 5}'), "its weights cannot be read"),
        (lambda folder: (folder / f"{WEIGHTS}.index.json").unlink(), "its weights cannot be read"),
        (lambda folder: min(folder.glob("*.safetensors")).write_bytes(b"12345678"), "its weights cannot be read"),
        (lambda folder: save_file({"foreign.weight": torch.ones(2)}, min(folder.glob("*.safetensors"))), "'foreign.weight' of shape"),
        (lambda folder: save_file({}, min(folder.glob("*.safetensors"))), r"\d+ weights of WanTransformer3DModel are missing"),
    ],
)
def test_damaged_folders_are_refused(stored: tuple[Path, Any], tmp_path: Path, damage: Callable[[Path], Any], said: str) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(stored[0], folder)
    damage(folder)
    with pytest.raises(UsageError, match=said):
        loaded(folder)


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
