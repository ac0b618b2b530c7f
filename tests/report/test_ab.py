"""What `ab` prints: the table, the sentences around it and the document agree with the record."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from rich.console import Console

from fusebench.report import escape
from fusebench.report.ab import ab_document, ab_lines, ab_markdown, headline, print_ab
from fusebench.schema import AAPair, Accuracy, CacheState, Case, Environment, Estimate, Role, SamplingPlan, Verdict, VerdictKind
from fusebench.stats.sequential import Plan, judge
from fusebench.store.comparison_record import BaseRevision, ComparedCase, ComparedKernel, Comparison, RevisionPresence

CASE = Case(suite="qk", name="flux", op="qk", params={})
SLOWER = judge([math.log(1.02) + 0.001 * (-1) ** number for number in range(12)], 20.0)


def accuracy(rms: float) -> Accuracy:
    return Accuracy(
        passed=True, contract="close", rms_error=rms, max_error=rms, mean_error=0.0, split_rms_error=1e-3, split_max_error=1e-3,
        equal_to_split=0.5, within_loose_tolerance=True, draws=1, elements=10**6, seed=1,
    )  # fmt: skip


def kernel(name: str, kind: VerdictKind, reason: str = "because", **known: Any) -> ComparedKernel:
    fields: dict[str, Any] = {
        "case": "flux", "suite": "qk", "op": "qk", "kernel": f"qk/{name}", "role": Role.FUSED, "presence": RevisionPresence.BOTH,
        "changed_files": ("qk/k.py",), "verdict": Verdict(kind=kind, reason=reason),
    }  # fmt: skip
    return ComparedKernel(**(fields | known))


@pytest.fixture
def comparison() -> Comparison:
    slow = kernel(
        "slow@1", VerdictKind.REGRESSION, new_us=20.4, old_us=20.0, finding=SLOWER,
        new_accuracy=accuracy(2e-4), old_accuracy=accuracy(1e-4),
        verdict=Verdict(kind=VerdictKind.REGRESSION, reason="because", change=SLOWER.change),
    )  # fmt: skip
    return Comparison(
        id="abcd1234", created="2026-07-27T07:25:47+00:00", command="fusebench ab", timer="cupti",
        plan=SamplingPlan(replicates=12, rounds=20, cache=CacheState.COLD, trim=0.1), looks=Plan(),
        environment=Environment(
            device="cuda", device_name="NVIDIA H200", python="3.12", platform="x", fusebench="0", git_commit="f" * 40, git_dirty=True
        ),
        base=BaseRevision(asked="main", commit="0" * 40, merge_base=True),
        cases=[ComparedCase(case=CASE, shape="4096x24x128", copy_us=Estimate(26.1, 26.0, 26.2), stream_us=Estimate(23.5, 23.4, 23.6))],
        kernels=[
            slow,
            kernel("same@1", VerdictKind.PASS, "identical source files", changed_files=()),
            kernel("code@1", VerdictKind.PASS, "identical machine code", same_code=True),
            kernel("extra@1", VerdictKind.INCOMPARABLE, "new: the base revision has no such kernel", presence=RevisionPresence.NEW),
        ],
        aa_pairs=[
            AAPair(case="qk:flux", kernel="qk/same@1", time_us=20.0, change=Estimate(0.995, 0.99, 1.0), kind=VerdictKind.PASS),
            AAPair(case="qk:flux", kernel="control", time_us=20.0, change=Estimate(1.001, 0.99, 1.01), kind=VerdictKind.REGRESSION),
        ],
        warnings=["planted"], exit_code=1,
    )  # fmt: skip


def test_the_headline_says_what_was_compared_with_what(comparison: Comparison) -> None:
    assert headline(comparison) == (
        "ffffffffffff with uncommitted changes against 000000000000, the merge base of HEAD and main · NVIDIA H200 · timer cupti"
    )


def test_the_table_holds_both_times_the_change_and_how_much_the_error_grew(comparison: Comparison) -> None:
    console = Console(width=200, record=True, markup=False, force_terminal=False)
    print_ab(comparison, console)
    lines = console.export_text().splitlines()
    (row,) = [line for line in lines if line.strip().startswith("slow@1")]
    assert row.split() == [
        "slow@1", "20.00", "20.40", *SLOWER_WORDS, "12", "2.00", "x", "regression",
    ]  # fmt: skip
    assert any("same@1" in line and "pass: identical source" in line for line in lines)
    assert any("code@1" in line and "pass: identical machine code" in line for line in lines)
    assert any("extra@1" in line and "new: not compared" in line for line in lines)


SLOWER_WORDS = "{:+.2f} % [{:+.2f} %, {:+.2f} %]".format(
    *(100 * (end - 1) for end in (SLOWER.change.value, SLOWER.change.low, SLOWER.change.high))
).split()


def test_below_it_stand_findings_with_their_files_the_noise_and_how_far_to_trust_them(comparison: Comparison) -> None:
    lines = [line for line, _ in ab_lines(comparison)]
    assert lines[0] == "1 incomparable, 2 pass, 1 regression"
    assert "regression: qk/slow@1 on qk:flux: because (changed: qk/k.py)" in lines
    assert "qk/extra@1: new: the base revision has no such kernel" in lines
    assert "2 comparisons of identical code differed by up to 0.50 %; their times alone call 1 of them slower" in lines
    assert any(line.startswith("not calibrated on this GPU") for line in lines)
    assert "warning: planted" in lines


def test_the_report_holds_the_same_as_markdown(comparison: Comparison) -> None:
    text = ab_markdown(comparison)
    assert text.startswith("# ffffffffffff with uncommitted changes")
    assert "| slow@1 | 20.00 | 20.40 |" in text
    assert all(escape.markdown(line) in text for line, _ in ab_lines(comparison))


def test_the_document_is_json_and_holds_every_kernel(comparison: Comparison) -> None:
    document = json.loads(json.dumps(ab_document(comparison, None), allow_nan=False))
    assert document["exit_code"] == 1
    assert document["base"]["merge_base"] is True
    (row,) = [row for row in document["results"] if row["kernel"] == "qk/slow@1"]
    assert (row["base_us"], row["new_us"], row["replicates"], row["error_growth"]) == (20.0, 20.4, 12, pytest.approx(2.0))
    assert row["change"] == pytest.approx(1.02, abs=1e-3)
    assert (row["shape"], row["sol"], row["error_over_split"]) == ("4096x24x128", pytest.approx(23.5 / 20.4), pytest.approx(0.2))
