"""Projections of two streams into one tensor: the same values without a concatenation, and whatever is more than a product is called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")

from fusebench.models.configurations import feed_forward
from fusebench.models.configurations.streams import pack_projections, project, side_by_side

HEAD_DIM = 4


@pytest.fixture
def concatenations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for every concatenation from now on."""
    made: list[int] = []
    concatenate = torch.cat

    def noted(parts: Any, dim: int = 0) -> torch.Tensor:
        made.append(len(parts))
        return concatenate(parts, dim=dim)

    monkeypatch.setattr(torch, "cat", noted)
    return made


def streams_of(samples: int = 1, *, bias: bool = True) -> list[tuple[torch.Tensor, list[torch.nn.Linear]]]:
    """Three tokens of six channels and five of eight, each with layers to q, k and v of three heads."""
    torch.manual_seed(0)
    shapes = ((3, 6), (5, 8))
    return [(torch.randn(samples, tokens, width), [torch.nn.Linear(width, 12, bias=bias) for _ in range(3)]) for tokens, width in shapes]


def by_hand(streams: Any) -> list[torch.Tensor]:
    """Each projection by its layer, joined and cut into heads."""
    parts = [[layer(tokens) for layer in layers] for tokens, layers in streams]
    return [torch.cat(alike, dim=1).unflatten(-1, (-1, HEAD_DIM)) for alike in zip(*parts, strict=True)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@torch.no_grad()
def test_plain_layers_write_into_one_tensor(concatenations: list[int], bias: bool, packed: bool) -> None:
    streams = streams_of(bias=bias)
    due = by_hand(streams)
    concatenations.clear()
    projected = project(streams, HEAD_DIM, packed=packed)
    assert [heads.is_contiguous() for stream in projected.streams for heads in stream] == [not packed] * 6
    assert all(map(torch.equal, projected.joined(), due))
    first, second = projected.streams
    first[0].fill_(1)  # an op in place
    second[2].fill_(2)
    query, _, value = projected.joined()
    assert torch.equal(query[:, :3], torch.ones(1, 3, 3, HEAD_DIM))
    assert torch.equal(value[:, 3:], torch.full((1, 5, 3, HEAD_DIM), 2.0))
    assert concatenations == []


class Attention(torch.nn.Module):
    """The layers of two streams, named as diffusers names them."""

    def __init__(self, streams: Any) -> None:
        super().__init__()
        (self.add_q_proj, self.add_k_proj, self.add_v_proj), (self.to_q, self.to_k, self.to_v) = (layers for _, layers in streams)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The columns of every product from now on."""
    made: list[int] = []

    def noted(product: Any, *given: Any, out: torch.Tensor) -> torch.Tensor:
        made.append(out.shape[1])
        result: torch.Tensor = product(*given, out=out)
        return result

    for name in ("mm", "addmm"):
        monkeypatch.setattr(torch, name, functools.partial(noted, getattr(torch, name)))
    return made


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_packed_weights_take_one_product_for_each_stream(products: list[int], bias: bool) -> None:
    streams = streams_of(bias=bias)
    attention, due = Attention(streams), by_hand(streams)
    before = {name: (parameter, parameter.clone()) for name, parameter in attention.named_parameters()}
    project(streams, HEAD_DIM)
    assert products == [12] * 6
    pack_projections(attention)
    for name, parameter in attention.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])
    products.clear()
    assert all(map(torch.equal, project(streams, HEAD_DIM).joined(), due))
    assert products == [36] * 2
    addresses = [parameter.data_ptr() for parameter in attention.parameters()]
    pack_projections(attention)
    assert [parameter.data_ptr() for parameter in attention.parameters()] == addresses, "packed weights are packed again"


@torch.no_grad()
def test_weights_that_moved_apart_again_take_their_own_products(products: list[int]) -> None:
    streams = streams_of()
    pack_projections(Attention(streams))
    layer = streams[0][1][1]
    layer.weight.data = layer.weight.data * 2  # as fusing an adapter does
    due = by_hand(streams)
    products.clear()
    assert all(map(torch.equal, project(streams, HEAD_DIM).joined(), due))
    assert products == [12, 12, 12, 36]


@torch.no_grad()
def test_layers_with_an_adapter_are_not_packed() -> None:
    streams = streams_of()
    with_adapter(streams)
    attention = Attention(streams)
    pack_projections(attention)
    ends = [layer.weight.data_ptr() + layer.weight.nbytes for layer in (attention.to_q, attention.to_k)]
    assert ends[0] != attention.to_k.weight.data_ptr()
    assert attention.add_q_proj.weight.data_ptr() + attention.add_q_proj.weight.nbytes == attention.add_k_proj.weight.data_ptr()


class Adapted(torch.nn.Linear):
    """A layer with an adapter: more than its own product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def with_adapter(streams: Any) -> None:
    layer = streams[1][1][2]
    streams[1][1][2] = Adapted(layer.in_features, layer.out_features)


def with_hook(streams: Any) -> None:
    streams[0][1][0].register_forward_hook(lambda module, given, result: result + 1)


def with_own_forward(streams: Any) -> None:
    layer = streams[0][1][1]
    layer.forward = lambda x: torch.nn.functional.linear(x, layer.weight) * 2


@pytest.mark.parametrize("change", [with_adapter, with_hook, with_own_forward])
@torch.no_grad()
def test_a_layer_that_does_more_is_called(concatenations: list[int], change: Callable[[Any], None]) -> None:
    streams = streams_of()
    plain = by_hand(streams)
    change(streams)
    due = by_hand(streams)
    assert not all(map(torch.equal, due, plain))
    concatenations.clear()
    assert all(map(torch.equal, project(streams, HEAD_DIM).joined(), due))
    assert concatenations == [2, 2, 2]


def test_gradients_flow_and_samples_stay_apart(concatenations: list[int]) -> None:
    streams = streams_of()
    project(streams, HEAD_DIM).joined()[0].sum().backward()
    assert streams[1][1][0].weight.grad is not None
    with torch.no_grad():
        two = streams_of(samples=2)
        due = by_hand(two)
        projected = project(two, HEAD_DIM)
        # Where an op flattens samples and tokens it must get a view, not a copy.
        assert projected.streams[1][0].flatten(0, 1).data_ptr() == projected.streams[1][0].data_ptr()
        assert all(map(torch.equal, projected.joined(), due))


@torch.no_grad()
def test_streams_that_lie_side_by_side_are_a_view(concatenations: list[int]) -> None:
    whole = torch.randn(1, 8, 6)
    first, second = whole[:, :3], whole[:, 3:]
    found = side_by_side(first, second)
    assert (found.data_ptr(), concatenations) == (whole.data_ptr(), [])
    assert torch.equal(found, whole)


@pytest.mark.parametrize(
    "parts",
    [
        lambda whole: (whole[:, 3:], whole[:, :3]),
        lambda whole: (whole[:, :2], whole[:, 3:]),
        lambda whole: (whole[:, :3].clone(), whole[:, 3:]),
        lambda whole: (whole[..., :6][:, :3], whole[..., :6][:, 3:]),
        lambda whole: (whole.expand(2, -1, -1)[:, :3], whole.expand(2, -1, -1)[:, 3:]),
    ],
    ids=["the wrong order", "a gap", "two tensors", "gaps between rows", "two samples"],
)
@torch.no_grad()
def test_other_streams_are_concatenated(
    concatenations: list[int], parts: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
) -> None:
    first, second = parts(torch.randn(1, 8, 7))
    found = side_by_side(first, second)
    assert concatenations == [2]
    assert torch.equal(found, torch.cat([first, second], dim=1))


@pytest.mark.parametrize("name", ["flux1_dev", "flux2_dev"])
@torch.no_grad()
def test_single_stream_blocks_of_flux_concatenate_their_activation_alone(concatenations: list[int], name: str) -> None:
    """The first one joins what double-stream blocks leave apart, which FLUX.2 does outside its blocks."""
    from fusebench.models.building import build, full_config
    from fusebench.models.catalogue import load_model
    from fusebench.models.op_calls import OpCalls

    model, counts = load_model(name), {}
    for blocks in (1, 2):
        config = full_config(model, tiny=True, layers={"num_single_layers": blocks})
        transformer = build(model, config, device=torch.device("cpu"), dtype=torch.float32)
        generator = torch.Generator().manual_seed(1)
        latents = model.latents(model.tiny_shapes, config, generator=generator)
        conditioning = model.conditioning(model.tiny_shapes, config, dtype=torch.float32, generator=generator)
        with model.substituted(transformer, OpCalls()):
            model.predict(transformer, latents, torch.tensor(500.0), conditioning)
            concatenations.clear()
            model.predict(transformer, latents, torch.tensor(500.0), conditioning)
        counts[blocks] = len(concatenations)
    assert counts[2] == counts[1] + 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("bias", "adapter"), [(True, False), (False, False), (True, True)])
@torch.no_grad()
def test_inductor_copies_nothing_on_the_way_to_attention(bias: bool, adapter: bool) -> None:
    """Neither to join two streams, nor before an op that overwrites one of them."""
    from torch._inductor.utils import run_and_get_code

    streams = streams_of(bias=bias)
    pack_projections(Attention(streams))
    if adapter:
        with_adapter(streams)

    def attended(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        projected = project(streams, HEAD_DIM)
        feed_forward.add_product(projected.streams[1][0][0].flatten(1), rows, weight)
        query, key, value = (each.transpose(1, 2) for each in projected.joined())
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    given = torch.randn(5, 2), torch.randn(12, 2)
    due = attended(*given)
    found, (code,) = run_and_get_code(torch.compile(attended, fullgraph=True), *given)
    torch.testing.assert_close(found, due)
    assert ("cpp_fused" in code) is adapter
