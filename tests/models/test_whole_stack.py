"""The whole's step by the time of its blocks: exact where times are linear, and checked against a step of the whole or not, and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusebench.errors import UsageError
from fusebench.models.building import build, full_config
from fusebench.models.catalogue import load_model
from fusebench.models.denoise import Denoising
from fusebench.models.measuring import step_timing, whole_stack
from fusebench.models.measuring.whole_stack import extrapolated, shortened
from fusebench.models.variants import make_variant
from fusebench.schema.models import WholeStack

pytest.importorskip("diffusers")

CONSTANT_MS, BLOCK_MS = 3.0, {"split": 2.0, "fused": 1.5}


def test_linear_times_are_continued_exactly() -> None:
    rounds = {"split": [20.0, 40.0], "split with less doubles": [16.0, 32.0], "split with less singles": [17.0, 34.0]}
    found = extrapolated("split", rounds, {"doubles": (4, 10), "singles": (6, 8)}, {"doubles": 2, "singles": 3})
    # 2 and 4 ms a double block, 1 and 2 ms a single one, of which 6 and 2 are left out.
    assert found.rounds_ms == (20.0 + 6 * 2 + 2 * 1, 40.0 + 6 * 4 + 2 * 2)
    assert found.block_ms == {"doubles": 3.0, "singles": 1.5}


def test_a_smaller_stack_that_takes_no_less_tells_nothing() -> None:
    found = extrapolated("split", {"split": [20.0, 20.0], "split with less s": [16.0, 21.0]}, {"s": (4, 10)}, {"s": 2})
    assert (found.time_ms, found.rounds_ms) == (None, ())


class Stack(torch.nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Identity() for _ in range(blocks))


def checked(monkeypatch: pytest.MonkeyPatch, *, ran: int = 4, whole_s: float = 60.0, slower: float = 1.0, fits: bool = True) -> Any:
    """`whole_stack` of `ran` of 40 blocks, with a clock that counts blocks; the whole takes `slower` times as long as they say."""

    def variant(name: str, denoising: Any, transformer: Stack, collection: Any) -> Any:
        count = len(transformer.blocks)
        time_ms = (CONSTANT_MS + BLOCK_MS[name] * count) * (slower if count == 40 else 1.0)
        return SimpleNamespace(name=name, predict=lambda: time_ms)

    def build_whole() -> Stack:
        if not fits:
            raise UsageError("it needs 99 GiB")
        return Stack(40)

    monkeypatch.setattr(step_timing, "wall_ms", lambda step, device: step())
    monkeypatch.setattr(whole_stack, "make_variant", variant)
    model = SimpleNamespace(stacks={"num_layers": "blocks"})
    denoising: Any = SimpleNamespace(config={"num_layers": ran}, model=model, device=torch.device("cpu"), middle=lambda: ())
    collection: Any = None
    variants = [variant(name, denoising, Stack(ran), None) for name in BLOCK_MS]
    full, quiet = {"num_layers": 40}, lambda text: None
    return whole_stack.whole_stack(
        Stack(ran), variants, denoising, collection, full=full, build_whole=build_whole, rounds_s=1.0, whole_s=whole_s, say=quiet
    )


def test_the_whole_is_told_from_two_sizes_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    found: WholeStack = checked(monkeypatch)
    assert found.sizes == {"num_layers": 2}
    assert [(one.variant, one.block_ms, one.measured_ms) for one in found.steps] == [
        ("split", {"num_layers": 2.0}, 83.0),
        ("fused", {"num_layers": 1.5}, 63.0),
    ]
    assert [round(one.time_ms.value, 6) for one in found.steps if one.time_ms is not None] == [83.0, 63.0]
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(83 / 63)
    assert "split: a step of the whole takes 83.00 ms, by its blocks 83.00 ms (+0.0 %, within 5 %)" in found.checked


def test_a_whole_that_is_slower_than_its_blocks_say_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "by its blocks 83.00 ms (-10.7 %, more than 5 %)" in checked(monkeypatch, slower=1.12).checked


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"whole_s": 0.1}, "split: a step of the whole takes 83.00 ms"),
        ({"whole_s": 0.1}, "fused: not checked against the whole, whose step would take 0.063 of 0.017 s; raise --budget"),
        ({"whole_s": 0.01}, "split: not checked against the whole, whose step would take 0.083 of 0.01 s"),
        ({"fits": False}, "not checked against the whole: it needs 99 GiB"),
        (
            {"ran": 1},
            "one block of num_layers does not tell the time of a block: take at least 2; split: a step of the whole takes 83.00 ms;",
        ),
    ],
)
def test_what_was_not_checked_is_told(monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], said: str) -> None:
    assert said in checked(monkeypatch, **how).checked + ";"


def test_a_whole_model_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(monkeypatch, ran=40) is None


@torch.no_grad()
def test_a_shortened_model_runs_its_first_blocks_with_the_same_weights() -> None:
    model, device = load_model("wan2_1_t2v_1_3b"), torch.device("cpu")
    config = full_config(model, tiny=True) | {"num_layers": 3}
    transformer = build(model, config, device=device, dtype=torch.float32)
    denoising = Denoising(model, config, model.tiny_shapes, device=device, dtype=torch.float32)
    shorter = shortened(transformer, "blocks", 1)
    assert (len(shorter.blocks), len(transformer.blocks)) == (1, 3)
    assert shorter.blocks[0].scale_shift_table is transformer.blocks[0].scale_shift_table
    fused = make_variant("fused", denoising, shorter)
    assert fused.calls is not None
    with fused.calls.record() as recorded:
        own = fused.predict(*denoising.middle())
    assert len(recorded) == sum(model.expected_calls(config | {"num_layers": 1}).values())
    assert own.isfinite().all()
