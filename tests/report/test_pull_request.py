"""The page for a pull request: the verdict first, small enough for a comment, errors of one magnitude, nothing hidden in a wall of text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType

import msgspec
import pytest

from fusebench.report.run.pages import only_suite
from fusebench.report.run.pull_request import LIMIT, ONE_OP_LIMIT, pull_request_page
from fusebench.schema import Estimate, ExitCode, OutputError, Result, Run, Status, Verdict, VerdictKind
from helpers.recorded_night import recorded_night


@pytest.fixture(scope="module")
def nightly() -> Run:
    return recorded_night()


def judged(run: Run, kinds: dict[str, VerdictKind], exit_code: ExitCode, reason: str = "5 % slower") -> Run:
    results = [
        msgspec.structs.replace(
            one, verdict=Verdict(kind=kinds.get(one.kernel, VerdictKind.PASS), reason=reason, change=Estimate(1.05, 1.04, 1.06))
        )
        if one.status is Status.MEASURED
        else one
        for one in run.results
    ]
    return msgspec.structs.replace(run, results=results, exit_code=int(exit_code))


def change_each(run: Run, kernel: str, **fields: object) -> Run:
    results = [msgspec.structs.replace(one, **fields) if one.kernel == kernel else one for one in run.results]
    return msgspec.structs.replace(run, results=results)


def test_a_nightly_fits_into_a_comment_and_holds_every_case(nightly: Run) -> None:
    page = pull_request_page(nightly)
    assert len(page) <= LIMIT
    counted = r"# Undecided: (\d+) undecided, (?:(\d+) improvement, )?(\d+) pass; advisory: \d+ regression, \d+ undecided, \d+ improvement"
    head = re.fullmatch(counted, page.splitlines()[0])
    assert head is not None, "one night without confirmation, against the stored baseline, leaves some undecided"
    assert sum(int(count) for count in head.groups(default="0")) == 730
    rows = re.findall(r"^\| \S+ \| .* \| (?:pass|improvement|undecided|\*\*).*\|$", page, re.M)
    assert len(rows) == len(nightly.cases)
    for suite in nightly.suites:
        assert f"<summary>{suite.name}: " in page
    assert page.count("not runnable here (540 kernel-case pairs)") == 1
    assert page.count("peer_sglang") == 1, "peers that are not installed are one line"


def test_one_op_fits_into_four_thousand_characters(nightly: Run) -> None:
    ops = {summary.case.suite for summary in nightly.cases if "/" not in summary.case.suite}
    assert len(ops) == 8
    for suite in ops:
        page = pull_request_page(only_suite(nightly, suite))
        assert len(page) <= ONE_OP_LIMIT, suite
        assert f"## {suite}: " in page
        assert "## Weighted speedups" in page or "weighted speedup" in page
        assert "To reproduce:\n\n```\nfusebench run --suite nightly" in page


@pytest.mark.parametrize("cases", [5, 60, pytest.param(700, marks=pytest.mark.exhaustive)])
def test_the_limit_holds_however_much_went_wrong(synthetic: ModuleType, cases: int) -> None:
    run = synthetic.make_run(cases=[f"case_{index}" for index in range(cases)], warnings=["w " * 500] * 30)
    kinds = dict.fromkeys((synthetic.FUSED, f"{synthetic.OP}/fused_cuda@1"), VerdictKind.REGRESSION)
    kinds |= {f"{synthetic.OP}/fused_triton@1": VerdictKind.UNDECIDED}
    bad = judged(run, kinds, ExitCode.REGRESSION, reason="slower " * 100)
    page = pull_request_page(bad)
    assert len(page) <= ONE_OP_LIMIT
    assert page.startswith(f"# Regression: {2 * cases} regression, {cases} undecided, ")
    assert "fusebench run --suite qknorm_rope --case case_0 --kernel qknorm_rope/fused_triton@2" in page
    for block in re.findall(r"(?:^\|.*\n)+", page, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


def test_regressions_come_first_with_the_command_that_reproduces_each(synthetic: ModuleType) -> None:
    run = judged(synthetic.make_run(cases=("flux_1024",)), {synthetic.FUSED: VerdictKind.REGRESSION}, ExitCode.REGRESSION)
    page = pull_request_page(run)
    assert page.startswith("# Regression: 1 regression, 5 pass\n")
    command = "`fusebench run --suite qknorm_rope --case flux_1024 --kernel qknorm_rope/fused_triton@2`"
    assert 0 < page.index("* **regression** `qknorm_rope/fused_triton@2` on qknorm_rope:flux_1024: 5 % slower") < page.index(command)
    assert page.index(command) < page.index("| case | shape |")


def test_a_crash_is_named_and_its_command_is_quoted_for_a_shell(synthetic: ModuleType) -> None:
    status = {("it's; rm -rf ~", synthetic.FUSED): (Status.CRASHED, "boom")}
    page = pull_request_page(synthetic.make_run(cases=("it's; rm -rf ~",), status=status, exit_code=int(ExitCode.KERNEL_FAILED)))
    assert page.startswith("# Kernel failed: ")
    assert """--case 'it'"'"'s; rm -rf ~' --kernel""" in page
    assert "boom" in page


@pytest.mark.parametrize(
    ("outputs", "shown"),
    [
        ([("y", 8.3, 9.0), ("v", 1.0, 1.25)], "0.92x"),
        ([("y", 0.013, 0.014)], "0.93x"),
        ([("y", 0.0, 0.0)], "0"),
        ([("y", 1e-3, 0.0)], "1.0e-03"),
    ],
)
def test_errors_are_multiples_of_the_split_chains(synthetic: ModuleType, outputs: Sequence[tuple[str, float, float]], shown: str) -> None:
    run = synthetic.make_run(cases=("flux_1024",))
    told = tuple(OutputError(name=name, unit="channel", rms=own, split_rms=split) for name, own, split in outputs)
    accuracy = msgspec.structs.replace(run.results[0].accuracy, outputs=told, rms_error=8.3)
    page = pull_request_page(change_each(run, synthetic.FUSED, accuracy=accuracy))
    assert f" | {shown} | measured |" in page
    assert "as a multiple of the split chain's, every output channel scaled to RMS 1" in page


def test_a_run_without_a_baseline_says_that_nothing_was_judged(synthetic: ModuleType) -> None:
    assert pull_request_page(synthetic.make_run()).startswith("# Measured: 30 kernel-case pairs timed, none judged\n")
    stopped = synthetic.make_run(complete=False)
    assert pull_request_page(stopped).startswith("# Incomplete: ")
    assert "> Incomplete run: not every case was measured, or not every suspect remeasured" in pull_request_page(stopped)


def test_an_advisory_result_is_counted_apart(synthetic: ModuleType) -> None:
    compiled = f"{synthetic.OP}/compiled@1"
    run = judged(synthetic.make_run(cases=("flux_1024",)), {compiled: VerdictKind.REGRESSION}, ExitCode.PASS)
    silent: list[Result] = [
        msgspec.structs.replace(one, verdict=msgspec.structs.replace(one.verdict, gating=False)) if one.kernel == compiled else one
        for one in run.results
    ]
    page = pull_request_page(msgspec.structs.replace(run, results=silent))
    assert page.startswith("# Pass: 5 pass; advisory: 1 regression\n")
    assert "**regression** (advisory) `qknorm_rope/compiled@1`" in page


def test_a_run_that_nothing_was_judged_of_says_so_and_why_once(synthetic: ModuleType) -> None:
    """Without a baseline and without a fused kernel: no `Pass`, one line for one reason, and no column of fused times."""
    run = synthetic.make_run(kernels=[synthetic.BASELINE, f"{synthetic.OP}/compiled@1"])
    kinds = dict.fromkeys((synthetic.BASELINE, f"{synthetic.OP}/compiled@1"), VerdictKind.INCOMPARABLE)
    page = pull_request_page(judged(run, kinds, ExitCode.PASS, "no baseline is stored"))
    assert page.startswith("# Not judged: 10 incomparable\n")
    assert page.count("no baseline is stored") == 1
    assert "on qknorm_rope:flux_1024 and 9 more:" in page
    assert "| split us | best other us | kernel |" in page
