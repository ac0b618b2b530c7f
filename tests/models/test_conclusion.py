"""Rounds, ratios, verdicts and the exit code of a model's record."""

from __future__ import annotations

import itertools

import pytest
import torch

from fusebench.models import step_timing
from fusebench.models.command import conclude, exit_code
from fusebench.schema import Estimate, ExitCode, Verdict, VerdictKind
from fusebench.schema.models import Confirmation, Drift, ModelRecord, StepTime

CPU = torch.device("cpu")


def _times(fused: float, spread: float = 0.001) -> tuple[StepTime, ...]:
    split = [10.0 * (1 + spread * sign) for sign in (1, -1, 1, -1)]
    of_fused = [fused * (1 + spread * sign) for sign in (-1, 1, 1, -1)]
    ratio = step_timing.ratio(split, of_fused)
    return StepTime(variant="split", rounds_ms=tuple(split)), StepTime(variant="fused", rounds_ms=tuple(of_fused), speedup=ratio)


def _record(**changes: object) -> ModelRecord:
    texts = dict.fromkeys(("id", "command", "model", "title", "weights", "diffusers"), "")
    nothing: dict[str, object] = {name: {} for name in ("environment", "layers", "full_layers", "shapes")}
    plain = {"version": 1, "created": "2026-01-01T00:00:00+00:00", "dtype": "bfloat16", "tiny": True, "parameters": 1}
    return ModelRecord(**{**texts, **nothing, **plain, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fused_ms", "kind"), [(8.0, VerdictKind.IMPROVEMENT), (12.0, VerdictKind.REGRESSION), (10.0, VerdictKind.UNDECIDED)]
)
def test_verdict_of_a_planted_difference(fused_ms: float, kind: VerdictKind) -> None:
    times = _times(fused_ms)
    found = conclude(times, Confirmation(speedups={"fused": times[1].speedup or Estimate(1, 1, 1)}), comparable=True)
    assert found["fused"].kind is kind
    assert found["fused"].change is not None
    assert found["fused"].change.value == pytest.approx(fused_ms / 10.0)


def test_a_fresh_process_that_disagrees_leaves_it_undecided() -> None:
    found = conclude(_times(8.0), Confirmation(speedups={"fused": Estimate(0.99, 0.98, 1.01)}), comparable=True)
    assert found["fused"].kind is VerdictKind.UNDECIDED


def test_nothing_is_claimed_of_times_on_a_cpu() -> None:
    assert conclude(_times(12.0), None, comparable=False)["fused"].kind is VerdictKind.INCOMPARABLE


def test_a_variant_that_fails_is_an_error() -> None:
    found = conclude((StepTime(variant="compiled", error="Unsupported: graph break"),), None, comparable=True)
    assert (found["compiled"].kind, found["compiled"].reason) == (VerdictKind.ERROR, "Unsupported: graph break")


def _verdicts(kind: VerdictKind) -> dict[str, Verdict]:
    return {"fused": Verdict(kind=kind, reason="")}


def _drift(kind: VerdictKind) -> Drift:
    return Drift(variant="fused", steps=(), equivalent=(), equivalent_by="", limit=1.5, verdict=Verdict(kind=kind, reason=""))


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (_record(verdicts=_verdicts(VerdictKind.IMPROVEMENT), drift=_drift(VerdictKind.PASS)), ExitCode.PASS),
        (_record(verdicts=_verdicts(VerdictKind.REGRESSION)), ExitCode.REGRESSION),
        (_record(drift=_drift(VerdictKind.REGRESSION)), ExitCode.REGRESSION),
        (_record(verdicts=_verdicts(VerdictKind.UNDECIDED)), ExitCode.UNDECIDED),
        (_record(verdicts=_verdicts(VerdictKind.ERROR)), ExitCode.KERNEL_FAILED),
        (_record(findings=("12 of 57 calls fell back",), verdicts=_verdicts(VerdictKind.REGRESSION)), ExitCode.KERNEL_FAILED),
        (_record(failures=("drift: RuntimeError: no",)), ExitCode.KERNEL_FAILED),
        (_record(verdicts=_verdicts(VerdictKind.INCOMPARABLE)), ExitCode.PASS),
    ],
)
def test_exit_code(record: ModelRecord, code: ExitCode) -> None:
    assert exit_code(record) is code


def test_rounds_cancel_a_drift_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes 1 % longer than the one before, whichever variant it is: the ratio of equal variants stays one."""
    longer = itertools.count()
    took = {"split": 10.0, "fused": 5.0}

    def timed(step: object, device: object) -> float:
        return took[step()] * (1 + 0.01 * next(longer))  # type: ignore[operator]

    monkeypatch.setattr(step_timing, "_timed", timed)
    steps = {name: (lambda name=name: name) for name in took}
    rounds = step_timing.time_rounds(steps, device=CPU, budget_s=0.0)
    found = step_timing.ratio(rounds["split"], rounds["fused"])
    assert found.value == pytest.approx(2.0, rel=0.002)
    assert len(rounds["split"]) == step_timing.FEWEST_ROUNDS


def test_measuring_ends_at_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    values = itertools.cycle([10.0, 10.01])
    monkeypatch.setattr(step_timing, "_timed", lambda step, device: next(values))
    seen: list[int] = []
    rounds = step_timing.time_rounds(
        {"split": object, "fused": object}, device=CPU, budget_s=60.0, target=0.01, on_round=lambda done, width: seen.append(done)
    )
    assert len(rounds["split"]) == step_timing.FEWEST_ROUNDS == seen[-1]
