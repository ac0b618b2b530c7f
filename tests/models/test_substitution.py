"""Fused ops in the tiny configuration of each model, held against the model's own output."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from fusebench.errors import UsageError
from fusebench.models.building import build, full_config
from fusebench.models.catalogue import load_model
from fusebench.models.op_calls import OpCalls
from fusebench.models.substitution import require_known_classes, substituted

pytest.importorskip("diffusers")

WAN_CALLS = {
    "first block: norm1": 2,
    "output norm": 2,
    "block: self-attention residual, norm2": 6,
    "block: cross-attention residual, norm3": 6,
    "block: feed-forward residual, norm1 of the next": 4,
    "self-attention: q and k": 6,
}
"""Two forwards of three blocks."""
QWEN_BLOCK = (
    "block: image q and k",
    "block: text q and k",
    "block: norm1 of the image",
    "block: norm1 of the text",
    "block: image residual, norm2",
    "block: text residual, norm2",
)
CALLS = {
    "flux1_dev": {
        "double block: image q and k": 2,
        "double block: text q and k": 2,
        "single block: q and k": 2,
        "double block: norm1 of the image": 2,
        "double block: norm1 of the text": 2,
        "single block: norm": 2,
        "output norm": 1,
        "double block: image residual, norm2": 2,
        "double block: text residual, norm2": 2,
    },
    **dict.fromkeys(("wan2_1_t2v_1_3b", "wan2_1_t2v_14b", "wan2_2_ti2v_5b"), WAN_CALLS),
    "qwen_image": dict.fromkeys(QWEN_BLOCK, 2 * 2) | {"output norm": 2},
    "qwen_image_edit_2511": dict.fromkeys(QWEN_BLOCK, 2 * 2) | {"output norm": 2},
    "z_image_turbo": {
        "block: q and k": 2,
        "block: norm before the attention": 2,
        "block: attention's residual": 2,
        "block: feed-forward's residual": 2,
        "noise refiner: q and k": 2,
        "noise refiner: norm before the attention": 2,
        "noise refiner: attention's residual": 2,
        "noise refiner: feed-forward's residual": 2,
        "context refiner: q and k": 2,
        "output norm": 1,
    },
}
"""Calls per denoise step of each tiny model, counted by hand from its blocks."""
EXACT = ("flux1_dev", "wan2_1_t2v_1_3b", "wan2_1_t2v_14b", "wan2_2_ti2v_5b")
"""Models whose own operations round as the split chains do: on a CPU, where dispatch runs these chains, their outputs are equal."""


@pytest.mark.parametrize("name", CALLS)
@torch.no_grad()
def test_tiny_model_with_fused_ops(name: str) -> None:
    model, device, dtype = load_model(name), torch.device("cpu"), torch.bfloat16
    config, shapes = full_config(model, tiny=True), model.tiny_shapes
    transformer = build(model, config, device=device, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    latents = model.latents(shapes, config, generator=generator).to(dtype)
    conditioning = model.conditioning(shapes, config, dtype=dtype, generator=generator)
    timestep = model.scheduler(shapes, config, 4, device=device).timesteps[1]
    own = model.predict(transformer, latents, timestep, conditioning)
    calls = OpCalls()
    with substituted(model, transformer, calls), calls.record() as recorded:
        fused = model.predict(transformer, latents, timestep, conditioning)
    assert own.isfinite().all()
    assert own.shape == latents.shape
    if name in EXACT:
        assert torch.equal(own, fused)
    else:
        assert (own - fused).float().square().mean().sqrt() < 0.02 * own.float().square().mean().sqrt()
    assert Counter(call.site for call in recorded) == CALLS[name]
    assert model.expected_calls(config) == CALLS[name]
    assert {site.name: site.op for site in model.sites} == {call.site: call.op for call in recorded}
    assert torch.equal(model.predict(transformer, latents, timestep, conditioning), own), "the substitution is not taken out again"


def test_another_diffusers_is_refused() -> None:
    model = load_model("flux1_dev")
    changed = dict.fromkeys(model.forward_arguments, ("x",))
    model.forward_arguments = changed  # type: ignore[misc]
    with pytest.raises(UsageError, match=r"diffusers \S+ has \w+\(ids\), expected \(x\)"):
        require_known_classes(model)


def test_stacks_are_cut() -> None:
    model = load_model("flux1_dev")
    assert full_config(model, layers={"num_single_layers": 4})["num_single_layers"] == 4
    with pytest.raises(UsageError, match="has no stack 'blocks'; expected one of num_layers, num_single_layers"):
        full_config(model, layers={"blocks": 4})
    with pytest.raises(UsageError, match="has 1 to 38 of these blocks"):
        full_config(model, layers={"num_single_layers": 39})
