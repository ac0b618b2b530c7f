"""The denoise loop is timed with the fastest fused variant, and shortened where it would take too long."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from fusebench.models.measuring import step_timing, timed_variants
from fusebench.models.measuring.timed_variants import SmClock, timed_loops, timed_steps
from fusebench.schema import Estimate
from fusebench.schema.models import LoopTime, StepTime


class _Denoising:
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.looped: list[tuple[str, int]] = []

    def middle(self) -> tuple[()]:
        return ()

    def loop(self, predict: str, steps: int) -> Iterator[torch.Tensor]:
        self.looped.append((predict, steps))
        yield torch.zeros(1)


NAMES = ("split", "fused", "fused_compiled", "compiled", "peer:sglang")


def _loops(monkeypatch: pytest.MonkeyPatch, *, steps: int, slower: float = 1.0) -> tuple[tuple[LoopTime, ...], list[str], _Denoising]:
    step_ms = dict(zip(NAMES, (100.0, 80.0, 70.0, 60.0, 50.0), strict=True))
    times = [StepTime(variant=name, time_ms=Estimate(slower * ms, slower * ms, slower * ms)) for name, ms in step_ms.items()]
    denoising, notes = _Denoising(), list[str]()
    monkeypatch.setattr(step_timing, "wall_ms", lambda step, device: float(step().numel()))
    variants = [SimpleNamespace(name=name, predict=name) for name in NAMES]
    found = timed_loops(variants, denoising, times, steps, budget_s=30.0, say=lambda text: None, note=notes.append)  # type: ignore[arg-type]
    return found, notes, denoising


def test_the_fastest_variant_with_own_ops_stands_beside_split(monkeypatch: pytest.MonkeyPatch) -> None:
    found, notes, denoising = _loops(monkeypatch, steps=4)
    assert [(one.variant, one.steps, one.steps_ms) for one in found] == [("split", 4, 400.0), ("fused_compiled", 4, 280.0)]
    assert found[0].speedup is None
    assert found[1].speedup is not None
    assert notes == []
    assert denoising.looped[:4] == [("fused_compiled", 4), ("split", 4), ("split", 4), ("fused_compiled", 4)]


def test_no_loop_without_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _loops(monkeypatch, steps=0)[:2] == ((), [])


@pytest.mark.parametrize(("slower", "steps", "said"), [(10.0, 2, "it has 2 of 4 steps"), (1000.0, 0, "it is not timed")])
def test_a_loop_that_would_take_too_long_is_shorter_and_says_so(
    monkeypatch: pytest.MonkeyPatch, slower: float, steps: int, said: str
) -> None:
    found, notes, _ = _loops(monkeypatch, steps=4, slower=slower)
    assert [one.steps for one in found] == [steps] * len(found)
    assert bool(found) is bool(steps)
    assert said in notes[0]
    assert "raise --budget for more" in notes[0]


@pytest.mark.parametrize(("every_s", "kept"), [(0.0, [4, 5, 6]), (60.0, [])])
def test_rounds_so_far_are_kept_now_and_then(monkeypatch: pytest.MonkeyPatch, every_s: float, kept: list[int]) -> None:
    monkeypatch.setattr(step_timing, "wall_ms", lambda step, device: step())
    monkeypatch.setattr(step_timing, "MOST_ROUNDS", 6)
    monkeypatch.setattr(timed_variants, "KEEP_EVERY_S", every_s)
    turns = itertools.count()
    predictions = {"split": lambda: 10.0 + next(turns) % 3, "fused": lambda: 8.0}
    variants = [SimpleNamespace(name=name, predict=predict) for name, predict in predictions.items()]
    so_far: list[tuple[StepTime, ...]] = []
    found = timed_steps(
        variants,  # type: ignore[arg-type]
        _Denoising(),  # type: ignore[arg-type]
        budget_s=60.0,
        target=0.0,
        clock=SmClock(""),
        say=lambda text: None,
        keep=so_far.append,
    )
    assert [len(one.rounds_ms) for one in found] == [6, 6]
    assert [len(split.rounds_ms) for split, _ in so_far] == kept
    assert all(fused.speedup is not None and fused.rounds_ms == found[1].rounds_ms[: len(fused.rounds_ms)] for _, fused in so_far)
