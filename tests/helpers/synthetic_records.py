"""Small records of `ab` and `ncu`."""

from __future__ import annotations

import math

from fusebench.counters.records import Capture, CaptureStatus, CounterRun, Launch
from fusebench.schema import AAPair, CacheState, Case, Environment, Estimate, Role, SamplingPlan, Verdict, VerdictKind
from fusebench.stats.sequential import Plan
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
