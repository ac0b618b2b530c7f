"""Small records of `ab`, `ncu` and `model`."""

from __future__ import annotations

import math

import msgspec

from fusebench.counters.records import Capture, CaptureStatus, CounterRun, Launch
from fusebench.schema import (
    AAPair,
    CacheState,
    Case,
    Confirmation,
    ConfirmationOutcome,
    Environment,
    Estimate,
    Finding,
    Role,
    SamplingPlan,
    Verdict,
    VerdictKind,
    models,
)  # fmt: skip
from fusebench.stats.bisection import Side
from fusebench.stats.sequential import Plan
from fusebench.store.bisection_record import Basis, Bisection, Commit, Probe
from fusebench.store.comparison_record import BaseRevision, ComparedCase, ComparedKernel, Comparison, RevisionPresence

CASE = Case(suite="s", name="c", op="scale", params={"size": 8})


def comparison() -> Comparison:
    """With an interval that has no upper end, which JSON cannot write as a number."""
    open_ended = Estimate(1.01, 0.0, math.inf)
    return Comparison(
        id="abcd1234", created="2026-07-27T07:25:47+00:00", command="fusebench ab", timer="host",
        plan=SamplingPlan(replicates=4, rounds=5, cache=CacheState.WARM, trim=0.1), looks=Plan(),
        environment=Environment(device="cpu", device_name="Toy", python="3.12", platform="x", fusebench="0"),
        base=BaseRevision(asked="main"),
        cases=[ComparedCase(case=CASE, shape="8", control_ratio=open_ended)],
        kernels=[
            ComparedKernel(
                case="c", suite="s", op="scale", kernel="scale/a@1", role=Role.FUSED, presence=RevisionPresence.BOTH,
                verdict=Verdict(kind=VerdictKind.PASS, reason="identical source files", change=open_ended),
            )
        ],
        aa_pairs=[AAPair(case="s:c", kernel="scale/a@1", time_us=3.0, change=open_ended, kind=VerdictKind.UNDECIDED)],
    )  # fmt: skip


def bisection() -> Bisection:
    """A search that was stopped after the ends and one step, of which a commit was not measured."""
    good, bad = (Commit(commit=letter * 40, parents=("0" * 40,), author="A <a@b>", date="2026-07-27", subject=letter) for letter in "ab")
    finding = Finding(
        kind=VerdictKind.REGRESSION, change=Estimate(1.2, 1.1, math.inf), p_slower=0.001, p_faster=1.0, margin=0.02, replicates=8,
        next_look=None, reason="slower",
    )  # fmt: skip
    ends = Probe(
        commit=bad.commit, subject="b", against=good.commit, basis=Basis.TIMED, side=Side.SLOW, reason="slower", finding=finding,
        confirmation=Confirmation(outcome=ConfirmationOutcome.CONFIRMED, estimates=(1.2, 1.21), agreeing=2), margin=0.02, time_us=12.5,
        slower=True, changed_files=("scale/plain.py",), folder="1_ab",
    )  # fmt: skip
    other = Probe(commit="c" * 40, subject="c", against=good.commit, basis=Basis.SAME_SOURCE, side=Side.FAST, reason="identical source")
    return Bisection(
        id="abcd1234", created="2026-07-27T07:25:47+00:00", command="fusebench bisect", kernel="scale/plain@1", case=CASE, device="cpu",
        device_name="Toy", settings="0" * 16, good=good, bad=bad, commits=5, groups=4, error_rate=0.05, size=1.2, probes=[ends, other],
        suspects=[bad], step=ends, warnings=["one"], reason="stopped", complete=False, exit_code=4,
    )  # fmt: skip


def counters() -> CounterRun:
    launch = Launch(name="f", grid=(2, 1, 1), block=(128, 1, 1), metrics={"gpu__time_duration.sum": 23072.0})
    return CounterRun(
        id="abcd1234", created="2026-07-27T07:25:47+00:00", command="fusebench ncu", ncu_version="2025.3.1.0", metric_set="quick",
        metrics=("gpu__time_duration.sum",), cache_control="all", clock_control="none",
        environment=Environment(device="cuda", device_name="Toy", python="3.12", platform="x", fusebench="0"),
        cases=(Case(suite="s", name="c", op="scale", params={"size": 8}),),
        captures=(
            Capture(
                case="c", suite="s", op="scale", kernel="scale/a@1", role=Role.FUSED, shape="8", status=CaptureStatus.CAPTURED,
                minimum_bytes=64, launches=(launch,), report="01.ncu-rep", seconds=3.5,
            ),
        ),
    )  # fmt: skip


def model_record(*, psnr_db: float = 80.0, **changes: object) -> models.ModelRecord:
    """A reduced stack on a GPU: one variant faster, one that does not run."""
    fused = Estimate(1.25, 1.24, 1.26)
    after = (models.DriftStep(step=1, rms=1e-3, largest=5e-3, psnr_db=psnr_db),)
    drift = Verdict(kind=VerdictKind.PASS, reason="0.90 times the drift of the equivalent model")
    stages = (models.StageTime(stage="matmul", time_us=6000.0, launches=9), models.StageTime(stage="norm", time_us=3000.0, launches=4))
    record = models.ModelRecord(
        version=1, id="abcd1234", created="2026-07-27T07:25:47+00:00", command="fusebench model toy", environment={"device": "cuda"},
        model="toy", title="Toy, 64 x 64", tiny=False, layers={"num_layers": 2}, full_layers={"num_layers": 19}, shapes={"height": 64},
        dtype="bfloat16", weights="random", parameters=2_000_000_000, diffusers="0.42.1",
        calls=(models.SiteCalls(site="block: norm", op="scale", kernel="scale/a@1", calls=4, params={"size": 8}),),
        times=(
            models.StepTime(
                variant="split", rounds_ms=(10.0, 10.0), time_ms=Estimate(10.0, 9.9, 10.1), peak_bytes=2**30, sm_mhz=1755.4,
                gpu=models.GpuTime(rounds_ms=(9.5,), busy_ms=Estimate(9.5, 9.4, 9.6), span_ms=9.8),
            ),
            models.StepTime(
                variant="fused", rounds_ms=(8.0, 8.0), time_ms=Estimate(8.0, 7.9, 8.1), speedup=fused,
                gpu=models.GpuTime(rounds_ms=(7.6,), busy_ms=Estimate(7.6, 7.5, 7.7), span_ms=7.8, speedup=fused),
            ),
            models.StepTime(variant="compiled", error="Unsupported: graph break"),
        ),
        loops=(
            models.LoopTime(variant="split", steps=4, rounds_ms=(41.0,), time_ms=Estimate(41.0, 40.0, 42.0), steps_ms=40.0),
            models.LoopTime(
                variant="fused", steps=4, rounds_ms=(33.0,), time_ms=Estimate(33.0, 32.0, 34.0), steps_ms=32.0,
                speedup=Estimate(1.242, 1.24, 1.25),
            ),
        ),
        breakdowns=(
            models.Breakdown(variant="split", span_us=10_000.0, busy_us=9000.0, stages=stages),
            models.Breakdown(variant="fused", span_us=8000.0, busy_us=7500.0, stages=stages[:1]),
        ),
        explanation=models.Explanation(
            predicted_us=1500.0, measured_us=2000.0, stored="run 1", ops=(models.OpSaving(op="scale", predicted_us=1500.0),),
            causes=(models.Cause(cause="gaps", time_us=500.0),), remarks=("split is host-bound",),
        ),
        drift=models.Drift(variant="fused", steps=after, equivalent=after, equivalent_by="another order", limit=1.5, verdict=drift),
        verdicts={
            "fused": Verdict(kind=VerdictKind.IMPROVEMENT, reason="1.250x in one process"),
            "compiled": Verdict(kind=VerdictKind.ERROR, reason="Unsupported: graph break"),
        },
        acceptance={"fused": True}, exit_code=5,
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)
