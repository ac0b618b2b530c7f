"""Rounds, ratios, verdicts and the exit code of a model's record."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import torch

from fusebench.device import nvml
from fusebench.models.command import accepted, conclude, exit_code, speedups_of
from fusebench.models.measuring import step_timing, timed_variants
from fusebench.models.measuring.timed_variants import SmClock
from fusebench.schema import Estimate, ExitCode, Verdict, VerdictKind
from fusebench.schema.models import Confirmation, Drift, LoopTime, ModelRecord, StepTime

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


def _compiled(fused_ms: float) -> tuple[StepTime, ...]:
    """A compiled variant that is slower than split, and one with fused ops in it."""
    split, fused = _times(fused_ms)
    slower = tuple(1.1 * one for one in split.rounds_ms)
    compiled = StepTime(variant="compiled", rounds_ms=slower, speedup=step_timing.ratio(split.rounds_ms, slower))
    return split, compiled, StepTime(variant="fused_compiled", rounds_ms=fused.rounds_ms, speedup=fused.speedup)


def test_fused_ops_inside_torch_compile_are_held_against_torch_compile_alone() -> None:
    name = "fused_compiled against compiled"
    times = _compiled(12.0)
    found = conclude(times, Confirmation(speedups=speedups_of(times)), comparable=True)
    assert (found[name].kind, found[name].gating) == (VerdictKind.REGRESSION, True)
    assert conclude(_compiled(9.0), None, comparable=True)[name].kind is VerdictKind.IMPROVEMENT
    assert name not in conclude(_times(9.0), None, comparable=True)


def test_torch_compile_alone_decides_no_exit_code() -> None:
    found = conclude(_compiled(9.0), None, comparable=True)
    assert (found["compiled"].kind, found["compiled"].gating) == (VerdictKind.REGRESSION, False)
    assert exit_code(_record(verdicts=found)) is ExitCode.PASS


def test_the_denoise_loop_is_advisory() -> None:
    loop = LoopTime(
        variant="fused", steps=4, rounds_ms=(80.0,), time_ms=Estimate(80, 79, 81), steps_ms=79.0, speedup=Estimate(0.5, 0.4, 0.6)
    )
    found = conclude(_times(9.0), None, comparable=True, loops=(loop,))
    assert (found["denoise loop"].kind, found["denoise loop"].gating) == (VerdictKind.REGRESSION, False)
    assert found["denoise loop"].reason.startswith("4 steps with fused: 0.500x")


@pytest.mark.parametrize(("fused_ms", "passes"), [(9.8, True), (9.9, False), (11.0, False)])
def test_the_rule_of_one_and_a_half_percent(fused_ms: float, passes: bool) -> None:
    assert accepted(_times(fused_ms)) == {"fused": passes}


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

    monkeypatch.setattr(step_timing, "wall_ms", timed)
    steps = {name: (lambda name=name: name) for name in took}
    rounds = step_timing.time_rounds(steps, device=CPU, budget_s=0.0)
    found = step_timing.ratio(rounds["split"], rounds["fused"])
    assert found.value == pytest.approx(2.0, rel=0.002)
    assert len(rounds["split"]) == step_timing.FEWEST_ROUNDS


def test_measuring_ends_at_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    values = itertools.cycle([10.0, 10.01])
    monkeypatch.setattr(step_timing, "wall_ms", lambda step, device: next(values))
    seen: list[int] = []
    rounds = step_timing.time_rounds(
        {"split": object, "fused": object}, device=CPU, budget_s=60.0, target=0.01, on_round=lambda done, width: seen.append(done)
    )
    assert len(rounds["split"]) == step_timing.FEWEST_ROUNDS == seen[-1]


def test_clocks_are_read_after_each_step_and_rounds_may_be_few(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(step_timing, "wall_ms", lambda step, device: 10.0)
    rounds = step_timing.time_rounds({"split": object, "fused": object}, device=CPU, budget_s=0.0, fewest=2, on_step=read.append)
    assert {name: len(values) for name, values in rounds.items()} == {"split": 2, "fused": 2}
    assert (read.count("split"), read.count("fused")) == (4, 4)


def test_the_mean_clock_of_each_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, values = SmClock(""), iter([1900.0, None, 1700.0])
    monkeypatch.setattr(clock, "_read", lambda uuid: next(values))
    for name in ("split", "fused", "split"):
        clock.note(name)
    assert (clock.mean("split"), clock.mean("fused")) == (1800.0, 0.0)


def test_a_reading_counts_for_the_step_that_runs_and_not_while_it_is_the_clock_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings by time: building, then 400 ms of `split`, then 60 ms of `fused`, in which NVML still gives the clock of `split`."""
    seconds = [0.0]
    clock = SmClock("", now=lambda: seconds[0])
    for at, mhz, ended in (
        (0.0, 1980.0, ""), (0.1, 1900.0, "split"),
        (0.15, 1100.0, ""), (0.25, 1800.0, ""), (0.4, 1700.0, ""), (0.5, 1600.0, "split"),
        (0.53, 1200.0, ""), (0.56, 1500.0, "fused"),
    ):  # fmt: skip
        seconds[0] = at
        monkeypatch.setattr(clock, "_read", lambda uuid, mhz=mhz: mhz)
        if ended:
            clock.note(ended)
        else:
            clock.look()
    assert clock.mean("split") == (1900 + 1800 + 1700 + 1600) / 4
    assert clock.mean("fused") == 1500


def test_a_thread_reads_the_clock_while_it_is_entered_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_variants, "CLOCK_EVERY_S", 0.001)
    monkeypatch.setattr(nvml, "open_monitor", _Nvml)
    with SmClock("GPU-1") as clock:
        deadline = time.monotonic() + 30
        while _Nvml.reads < 5 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert _Nvml.reads >= 5
    assert not any(thread.name == "fusebench-sm-clock" for thread in threading.enumerate())
    clock.note("split")
    assert clock.mean("split") == 1755.0


class _Nvml:
    reads = 0

    def sm_mhz(self, uuid: str) -> float:
        assert uuid == "GPU-1"
        type(self).reads += 1
        return 1755.0
