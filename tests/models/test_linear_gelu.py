"""A linear layer and its GELU as one product: what it computes, when it is not used and why, and that calls are counted.

On a CPU the epilogue's GELU is the exact one, so tests that admit a CPU compare with that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu

from fusebench.models import linear_gelu
from fusebench.models.linear_gelu import EPILOGUE, LINEAR_GELU, LinearGelu
from fusebench.models.op_calls import OpCall, OpCalls
from fusebench.models.verification import verify_calls

pytest.importorskip("diffusers")

from fusebench.models.building import build, full_config
from fusebench.models.catalogue import load_model
from fusebench.models.configurations.feed_forward import product_of_both


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the epilogue serve a CPU."""
    monkeypatch.setattr(linear_gelu, "DEVICES", ("cpu",))


def layer_of(inputs: int = 6, outputs: int = 10, *, bias: bool = True) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(inputs, outputs, bias=bias)


@torch.no_grad()
def test_a_cpu_gets_the_gelu_by_tanh_and_says_why() -> None:
    layer, x, op = layer_of(), torch.randn(2, 3, 6), LinearGelu()
    assert torch.equal(op(layer, x), gelu(layer(x), approximate="tanh"))
    assert not torch.equal(
        op(layer, x), torch._addmm_activation(layer.bias, x.flatten(0, 1), layer.weight.t(), use_gelu=True).view(2, 3, 10)
    )
    (fallback,) = op.fallbacks
    assert "needs a GPU" in fallback.reason


@pytest.mark.parametrize("shape", [(3, 6), (1, 3, 6), (2, 3, 6)])
@torch.no_grad()
def test_the_epilogue_takes_any_number_of_samples_and_any_strides(on_cpu: None, shape: tuple[int, ...]) -> None:
    layer, op = layer_of(), LinearGelu()
    for x in (torch.randn(shape), torch.randn(*shape[:-1], 8)[..., 1:7], torch.randn(*shape[:-1], 12)[..., ::2]):
        assert op.explain(layer, x).kernel == EPILOGUE
        torch.testing.assert_close(op(layer, x), gelu(layer(x)))
    assert op.fallbacks == []


def with_hook(layer: torch.nn.Linear) -> None:
    layer.register_forward_hook(lambda module, given, result: result + 1)


def with_own_forward(layer: torch.nn.Linear) -> None:
    layer.forward = lambda x: torch.nn.functional.linear(x, layer.weight) * 2  # type: ignore[method-assign]


def without_bias(layer: torch.nn.Linear) -> None:
    layer.bias = None  # type: ignore[assignment]


@pytest.mark.parametrize(("change", "reason"), [(with_hook, "hooks"), (with_own_forward, "forward of its own"), (without_bias, "no bias")])
@torch.no_grad()
def test_a_layer_that_is_more_or_less_is_called(on_cpu: None, change: Callable[[Any], None], reason: str) -> None:
    layer, x, op = layer_of(), torch.randn(3, 6), LinearGelu()
    change(layer)
    assert torch.equal(op(layer, x), gelu(layer(x), approximate="tanh"))
    assert reason in op.fallbacks[0].reason


def test_other_reasons(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of(), torch.randn(3, 6)
    assert "autograd" in LinearGelu().reason_split(layer, x)
    with torch.no_grad():
        with torch.autocast("cpu"):
            assert "autocast" in LinearGelu().reason_split(layer, x)
        assert "single row" in LinearGelu().reason_split(layer, x[:1])
        assert "input torch.float64" in LinearGelu().reason_split(layer, x.double())
        assert "float64 is none of" in LinearGelu().reason_split(layer_of().double(), x.double())
        assert "Sequential" in LinearGelu().reason_split(torch.nn.Sequential(layer), x)
        assert "not of sglang" in OpCalls(peer="sglang").at(LINEAR_GELU, "site", "place")._dispatcher.reason_split(layer, x)  # type: ignore[union-attr]
        monkeypatch.setenv("DISABLE_ADDMM_CUDA_LT", "1")
        assert "cuBLASLt" in LinearGelu().reason_split(layer, x)


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_product_of_both(on_cpu: None, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of(10, 6, bias=bias)
    first, second = torch.randn(2, 3, 4), torch.randn(2, 3, 6)
    due = layer(torch.cat([first, second], dim=-1))
    with monkeypatch.context() as patched:
        patched.setattr(torch, "cat", None)
        torch.testing.assert_close(product_of_both(layer, first, second), due)
    with_hook(layer)
    assert torch.equal(product_of_both(layer, first, second), due + 1)


class Example:
    """A tiny model, and the recorded calls of one step of it."""

    def __init__(self, name: str) -> None:
        self.model = load_model(name)
        self.config = full_config(self.model, tiny=True)
        self.transformer = build(self.model, self.config, device=torch.device("cpu"), dtype=torch.float32)
        generator = torch.Generator().manual_seed(1)
        self._latents = self.model.latents(self.model.tiny_shapes, self.config, generator=generator)
        self._given = self.model.conditioning(self.model.tiny_shapes, self.config, dtype=torch.float32, generator=generator)

    def predict(self) -> torch.Tensor:
        return self.model.predict(self.transformer, self._latents, torch.tensor(500.0), self._given)

    def recorded(self, break_it: Callable[[Any], None] = lambda transformer: None) -> list[OpCall]:
        calls = OpCalls()
        with self.model.substituted(self.transformer, calls), calls.record() as recorded:
            break_it(self.transformer)
            self.predict()
        return [call for call in recorded if call.op == LINEAR_GELU]


def texts(example: Example, calls: list[OpCall]) -> list[str]:
    found = verify_calls(example.model, example.config, calls, device="cuda")
    return [one.text for one in found if "linear_gelu" in one.text]


@torch.no_grad()
def test_planted_in_a_real_model_one_layer_left_alone_and_one_with_a_hook(on_cpu: None) -> None:
    example = Example("flux1_dev")
    assert texts(example, example.recorded()) == []

    def leave(transformer: Any) -> None:
        alone = transformer.transformer_blocks[1].ff.net[0]
        alone.forward = lambda x: gelu(alone.proj(x), approximate="tanh")

    calls = example.recorded(leave)
    del example.transformer.transformer_blocks[1].ff.net[0].forward
    assert texts(example, calls) == ["found 1 linear_gelu calls a step, expected 2; none at transformer_blocks.1.ff"]
    hook = example.transformer.single_transformer_blocks[0].proj_mlp.register_forward_hook(lambda *_: None)
    (text,) = texts(example, example.recorded())
    hook.remove()
    assert text.startswith("1 of 6 linear_gelu calls fell back: torch._addmm_activation: the layer has hooks")
    assert text.endswith("at single_transformer_blocks.0")


@pytest.mark.parametrize("name", ["flux1_dev", "flux2_dev", "hunyuan_video", "wan2_1_t2v_1_3b"])
@torch.no_grad()
def test_models_by_the_epilogue(on_cpu: None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exact GELU in the model's own forward, too, the epilogue changes no more than rounding."""
    example = Example(name)
    monkeypatch.setattr(torch.nn.functional, "gelu", lambda x, approximate="none": gelu(x))
    own = example.predict()
    with example.model.substituted(example.transformer, OpCalls()):
        fused = example.predict()
    torch.testing.assert_close(fused, own, rtol=1e-4, atol=1e-4)


@pytest.mark.exhaustive
@torch.no_grad()
def test_blocks_trace_without_a_graph_break(on_cpu: None) -> None:
    example = Example("flux1_dev")
    with example.model.substituted(example.transformer, OpCalls()):
        eager = example.predict()
        targets: list[Any] = []

        def noted(graph: torch.fx.GraphModule, inputs: Any) -> torch.fx.GraphModule:
            targets.extend(node.target for node in graph.graph.nodes)
            return graph

        for block in (*example.transformer.transformer_blocks, *example.transformer.single_transformer_blocks):
            block.compile(fullgraph=True, backend=noted)
        torch.testing.assert_close(example.predict(), eager, rtol=1e-4, atol=1e-4)
    assert torch._addmm_activation in targets
    assert torch.cat not in targets, "text and image are joined outside the compiled block or by their projections, and nothing within it"
