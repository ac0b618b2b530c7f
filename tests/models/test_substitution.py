"""Fused ops in the tiny configuration of each model, held against the model's own output."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from fusebench.errors import UsageError
from fusebench.models.building import build, full_config
from fusebench.models.catalogue import load_model
from fusebench.models.op_calls import OpCalls

pytest.importorskip("diffusers")

WAN_CALLS = {
    "first block: norm1": 2,
    "output norm": 2,
    "block: self-attention residual, norm2": 6,
    "block: cross-attention residual, norm3": 6,
    "block: feed-forward residual, norm1 of the next": 4,
    "self-attention: q and k": 6,
    "block: feed-forward, GELU": 6,
}
"""Two forwards of three blocks."""
QWEN_BLOCK = (
    "block: image q and k",
    "block: text q and k",
    "block: norm1 of the image",
    "block: norm1 of the text",
    "block: image residual, norm2",
    "block: text residual, norm2",
    "block: image feed-forward, GELU",
    "block: text feed-forward, GELU",
)
DOUBLE_AND_SINGLE = {
    "double block: image q and k": 2,
    "double block: text q and k": 2,
    "single block: q and k": 2,
    "double block: norm1 of the image": 2,
    "double block: norm1 of the text": 2,
    "single block: norm": 2,
    "output norm": 1,
    "double block: image residual, norm2": 2,
    "double block: text residual, norm2": 2,
}
"""Two blocks of each kind."""
CALLS = {
    "flux1_dev": {
        "double block: image q and k": 2,
        "double block: text q and k": 2,
        "single block: q and k": 2,
        "first double block: norm1 of the image": 1,
        "first double block: norm1 of the text": 1,
        "first single block: norm": 1,
        "double block: image residual, norm2": 2,
        "double block: text residual, norm2": 2,
        "double block: image feed-forward residual, norm1 of the next": 1,
        "double block: text feed-forward residual, norm1 of the next": 1,
        "single block: residual, norm of the next": 1,
        "last single block: residual, output norm": 1,
        "double block: image feed-forward, GELU": 2,
        "double block: text feed-forward, GELU": 2,
        "single block: feed-forward, GELU": 2,
    },
    "flux2_dev": DOUBLE_AND_SINGLE
    | {
        "double block: image feed-forward, SwiGLU": 2,
        "double block: text feed-forward, SwiGLU": 2,
        "single block: feed-forward, SwiGLU": 2,
    },
    **dict.fromkeys(("wan2_1_t2v_1_3b", "wan2_1_t2v_14b", "wan2_2_ti2v_5b"), WAN_CALLS),
    "hunyuan_video": {
        "double block: video q and k": 2,
        "double block: text q and k": 2,
        "single block: q and k": 2,
        "double block: norm1 of the video": 2,
        "double block: norm1 of the text": 2,
        "single block: norm": 2,
        "output norm": 1,
        "double block: video residual, norm2": 2,
        "double block: text residual, norm2": 2,
        "double block: video feed-forward, GELU": 2,
        "double block: text feed-forward, GELU": 2,
        "single block: feed-forward, GELU": 2,
    },
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
EXACT = ("flux1_dev", "flux2_dev", "wan2_1_t2v_1_3b", "wan2_1_t2v_14b", "wan2_2_ti2v_5b")
"""Models whose own operations round as the split chains do: on a CPU, where dispatch runs these chains, their outputs are equal."""
TRACED = (
    "flux1_dev",
    "flux2_dev",
    "hunyuan_video",
    "wan2_1_t2v_1_3b",
    "wan2_2_ti2v_5b",
    "qwen_image",
    "qwen_image_edit_2511",
    "z_image_turbo",
)


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
    with model.substituted(transformer, calls), calls.record() as recorded:
        fused = model.predict(transformer, latents, timestep, conditioning)
    assert own.isfinite().all()
    assert own.shape == latents.shape
    if name in EXACT:
        assert torch.equal(own, fused)
    assert Counter(call.site for call in recorded) == CALLS[name]
    assert model.expected_calls(config) == CALLS[name]
    assert {site.name: site.op for site in model.sites} == {call.site: call.op for call in recorded}
    assert torch.equal(model.predict(transformer, latents, timestep, conditioning), own), "the substitution is not taken out again"


@torch.no_grad()
def test_a_block_of_z_image_makes_q_k_and_v_in_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    model, device, dtype = load_model("z_image_turbo"), torch.device("cpu"), torch.float32
    config, shapes = full_config(model, tiny=True), model.tiny_shapes
    transformer = build(model, config, device=device, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    latents = model.latents(shapes, config, generator=generator)
    conditioning = model.conditioning(shapes, config, dtype=dtype, generator=generator)
    timestep = model.scheduler(shapes, config, 4, device=device).timesteps[1]
    own = model.predict(transformer, latents, timestep, conditioning)
    widths: list[int] = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *given, out: widths.append(out.shape[1]) or product(*given, out=out))
    model.arrange(transformer)
    with model.substituted(transformer, OpCalls()):
        fused = model.predict(transformer, latents, timestep, conditioning)
    assert widths == [3 * transformer.layers[0].attention.to_q.out_features] * 6
    torch.testing.assert_close(fused, own)


@pytest.mark.parametrize("name", sorted(set(CALLS) - set(EXACT)))
@torch.no_grad()
def test_fused_ops_are_as_close_to_float32_as_the_models_own(name: str) -> None:
    """In float32 both compute the same formulas, to the last bit.  In bfloat16 the ops round less often than the model's own norms do, so
    that their errors against float32 are of one size: over 8 draws their ratio was 0.87 to 1.12, and 1.00 of all together."""
    model, device = load_model(name), torch.device("cpu")
    config, shapes = full_config(model, tiny=True), model.tiny_shapes
    transformer = build(model, config, device=device, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    timestep = torch.tensor(500.0)  # its thousandth is exact in bfloat16, in which models round it
    draws = [
        (
            model.latents(shapes, config, generator=generator).to(torch.bfloat16),
            model.conditioning(shapes, config, dtype=torch.bfloat16, generator=generator),
        )
        for _ in range(4)
    ]
    found: dict[tuple[str, torch.dtype], torch.Tensor] = {}
    for dtype in (torch.bfloat16, torch.float32):
        transformer.to(dtype)
        inputs = [(latents.to(dtype), _as(dtype, conditioning)) for latents, conditioning in draws]
        found["own", dtype] = torch.stack([model.predict(transformer, latents, timestep, given) for latents, given in inputs])
        with model.substituted(transformer, OpCalls()):
            found["fused", dtype] = torch.stack([model.predict(transformer, latents, timestep, given) for latents, given in inputs])
    exact = found["own", torch.float32]
    assert torch.equal(found["fused", torch.float32], exact)
    own, fused = ((found[side, torch.bfloat16].float() - exact).square().mean().sqrt() for side in ("own", "fused"))
    assert own < 0.03 * exact.square().mean().sqrt()
    assert fused < 1.1 * own


def _as(dtype: torch.dtype, value: Any) -> Any:
    """Floating-point tensors of nested inputs in another dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _as(dtype, each) for key, each in value.items()}
    return [_as(dtype, each) for each in value] if isinstance(value, list) else value


@torch.no_grad()
def test_fused_projections_of_wan_reach_the_op_as_views() -> None:
    model, device = load_model("wan2_1_t2v_1_3b"), torch.device("cpu")
    config = full_config(model, tiny=True)
    transformer = build(model, config, device=device, dtype=torch.float32)
    for block in transformer.blocks:
        block.attn1.fuse_projections()
    generator = torch.Generator().manual_seed(1)
    latents = model.latents(model.tiny_shapes, config, generator=generator)
    conditioning = model.conditioning(model.tiny_shapes, config, dtype=torch.float32, generator=generator)
    own = model.predict(transformer, latents, torch.tensor(500.0), conditioning)
    calls = OpCalls()
    with model.substituted(transformer, calls), calls.record() as recorded:
        assert torch.equal(model.predict(transformer, latents, torch.tensor(500.0), conditioning), own)
    assert {call.params.packed for call in recorded if call.op == "qknorm_across_heads_rope"} == {True}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TRACED)
@torch.no_grad()
def test_blocks_with_fused_ops_trace_without_a_graph_break(name: str) -> None:
    model, device = load_model(name), torch.device("cpu")
    config = full_config(model, tiny=True)
    transformer = build(model, config, device=device, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    latents = model.latents(model.tiny_shapes, config, generator=generator).to(torch.bfloat16)
    conditioning = model.conditioning(model.tiny_shapes, config, dtype=torch.bfloat16, generator=generator)
    with model.substituted(transformer, OpCalls()):
        eager = model.predict(transformer, latents, torch.tensor(500.0), conditioning)
        for module in transformer.modules():
            if {kind.__name__ for kind in type(module).__mro__} & set(transformer._repeated_blocks):
                module.compile(fullgraph=True, backend="eager")
        assert torch.equal(model.predict(transformer, latents, torch.tensor(500.0), conditioning), eager)


def test_another_diffusers_is_refused() -> None:
    model = load_model("flux1_dev")
    changed = dict.fromkeys(model.forward_arguments, ("x",))
    model.forward_arguments = changed  # type: ignore[misc]
    with pytest.raises(UsageError, match=r"diffusers \S+ has \w+\(ids\), expected \(x\)"):
        model.require_known_classes()


def test_stacks_are_cut() -> None:
    model = load_model("flux1_dev")
    assert full_config(model, layers={"num_single_layers": 4})["num_single_layers"] == 4
    with pytest.raises(UsageError, match="has no stack 'blocks'; expected one of num_layers, num_single_layers"):
        full_config(model, layers={"blocks": 4})
    with pytest.raises(UsageError, match="has 1 to 38 of these blocks"):
        full_config(model, layers={"num_single_layers": 39})


@pytest.mark.parametrize("kind", ["one", "per frame", "per token"])
@torch.no_grad()
def test_timesteps_of_wan_are_embedded_once_per_frame_where_its_tokens_share_them(kind: str) -> None:
    """As an image's frame has timestep 0 among the others; a timestep of its own in one token puts every token on its own."""
    model, device = load_model("wan2_2_ti2v_5b"), torch.device("cpu")
    config = full_config(model, tiny=True)
    transformer = build(model, config, device=device, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    latents = model.latents(model.tiny_shapes, config, generator=generator).to(torch.bfloat16)
    text = model.conditioning(model.tiny_shapes, config, dtype=torch.bfloat16, generator=generator)["prompt"]
    frames, tokens = latents.shape[2], latents.shape[2] * latents.shape[3] * latents.shape[4] // 4
    timestep = torch.full((1, tokens), 500.0)
    timestep[:, : {"one": 0, "per frame": tokens // frames, "per token": 1}[kind]] = 0
    own = transformer(latents, timestep, text, return_dict=False)[0]
    calls = OpCalls()
    with model.substituted(transformer, calls), calls.record() as recorded:
        assert torch.equal(transformer(latents, timestep, text, return_dict=False)[0], own)
    modulated = [call.params for call in recorded if "next" in call.site]
    form = ("token", 1) if kind == "per token" else ("frame", frames)
    assert {(params.gate, params.modulation, params.frames) for params in modulated} == {(form[0], *form)}
