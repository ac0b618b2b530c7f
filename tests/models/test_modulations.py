"""Modulations made ahead of the blocks: the same bits, each share launched before its blocks and waited for once."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")

from fusebench.models.configurations import modulations
from fusebench.models.configurations.modulations import Embedding, Plan


def layers_of(blocks: int, *, dtype: torch.dtype = torch.float32, bias: bool = True) -> list[list[torch.nn.Linear]]:
    """Two layers of each block, from 16 channels to 24 and 8."""
    torch.manual_seed(0)
    return [[torch.nn.Linear(16, width, bias=bias, dtype=dtype) for width in (24, 8)] for _ in range(blocks)]


def test_shares_double_from_the_first_block_on() -> None:
    assert [len(share) // 2 for share in Plan(layers_of(58)).shares] == [1, 1, 2, 4, 8, 16, 26]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("samples", [1, 2])
@torch.no_grad()
def test_the_bits_are_those_of_each_layer(dtype: torch.dtype, bias: bool, samples: int) -> None:
    blocks, given = layers_of(5, dtype=dtype, bias=bias), torch.randn(samples, 16, dtype=dtype)
    made = Embedding(Plan(blocks), given)
    for layer in itertools.chain(*blocks):
        assert torch.equal(made.of(layer).rows, layer(torch.nn.functional.silu(given)))


@torch.no_grad()
def test_a_layer_that_does_more_is_called_when_its_block_needs_it() -> None:
    blocks = layers_of(2)
    called: list[torch.nn.Module] = []
    blocks[1][0].register_forward_hook(lambda module, given, result: called.append(module))
    made = Embedding(Plan(blocks), torch.randn(1, 16))
    found = [made.of(layer).rows for layer in blocks[0]]
    assert (len(found), called) == (2, [])
    made.of(blocks[1][0])
    assert called == [blocks[1][0]]


def test_gradients_flow() -> None:
    blocks, given = layers_of(2), torch.randn(1, 16, requires_grad=True)
    made = Embedding(Plan(blocks), given)
    torch.cat([made.of(layer).rows for layer in itertools.chain(*blocks)], dim=1).sum().backward()
    assert given.grad is not None
    assert all(layer.weight.grad is not None for layer in itertools.chain(*blocks))


class _Stream:
    """Notes what is done with it."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self.name = log, name

    def wait_stream(self, other: _Stream) -> None:
        self._log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> int:
        self._log.append("event")
        return self._log.count("event") - 1

    def wait_event(self, event: int) -> None:
        self._log.append(f"{self.name} waits for event {event}")


@torch.no_grad()
def test_streams_fork_and_join_once_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each share is launched when the one before it is first used, and what the side stream reads and writes outlives its work."""
    log: list[str] = []
    side, own = _Stream(log, "side"), _Stream(log, "blocks")
    kept: list[tuple[int, _Stream]] = []
    monkeypatch.setattr(modulations, "side_stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: own)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext(log.append(f"on {stream.name}")))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: kept.append((tensor.numel(), stream)))
    blocks = layers_of(5)
    made = Embedding(Plan(blocks), torch.randn(1, 16))
    for number, layers in enumerate(blocks):
        log.append(f"block {number}")
        for layer in layers:
            made.of(layer)
    launch = ["side waits for blocks", "on side", "event"]
    assert log == [
        *launch,
        *("block 0", *launch, "blocks waits for event 0"),
        *("block 1", *launch, "blocks waits for event 1"),
        *("block 2", *launch, "blocks waits for event 2"),
        "block 3",
        *("block 4", "blocks waits for event 3"),
    ]
    assert kept == [(size, side) for share in (1, 1, 2, 1) for size in (16, share * (24 + 8))]


@torch.no_grad()
def test_flux_makes_all_its_modulations_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusebench.models.building import build, full_config
    from fusebench.models.catalogue import load_model
    from fusebench.models.op_calls import OpCalls

    model = load_model("flux1_dev")
    config = full_config(model, tiny=True)
    transformer = build(model, config, device=torch.device("cpu"), dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    latents = model.latents(model.tiny_shapes, config, generator=generator).to(torch.bfloat16)
    conditioning = model.conditioning(model.tiny_shapes, config, dtype=torch.bfloat16, generator=generator)
    made: list[Embedding] = []
    begin = Embedding.__init__

    def noted(self: Embedding, *args: Any) -> None:
        begin(self, *args)
        made.append(self)

    monkeypatch.setattr(Embedding, "__init__", noted)
    with model.substituted(transformer, OpCalls()):
        model.predict(transformer, latents, torch.tensor(500.0), conditioning)
    norms = [module for name, module in transformer.named_modules() if name.endswith(("norm1", "norm1_context", "norm", "norm_out"))]
    linears = {norm.linear for norm in norms if hasattr(norm, "linear")}
    (embedding,) = made
    assert set(embedding._made) == linears
    assert len(linears) == 2 * 2 + 2 + 1
