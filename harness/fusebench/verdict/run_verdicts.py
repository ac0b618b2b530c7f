"""Verdicts of a run: against the stored baseline of its device where there is one, and the exit code that follows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..schema import FAILED_STATUSES, ExitCode, Result, Run, Status, Verdict, VerdictKind, worst_exit_code
from ..store.baselines import load_baseline
from ..store.calibration_note import load_note, with_calibration
from .advisory import explain_advisory
from .compare_to_baseline import identical_line, judge_whole
from .margin_rule import MarginRule
from .record_validation import require_valid

_EXIT_CODES = {
    VerdictKind.ERROR: ExitCode.KERNEL_FAILED,
    VerdictKind.REGRESSION: ExitCode.REGRESSION,
    VerdictKind.UNDECIDED: ExitCode.UNDECIDED,
}


def require_judgeable(results_folder: Path, device_name: str) -> None:
    """Raise what `judged` would raise over the stored baseline and calibration of a device model.

    For before a run is made: what was measured could not be kept, since it is judged first.

    Raises:
        RunRecordError: one of them cannot be read, or holds what no measurement gives.
    """
    load_note(results_folder, device_name)
    baseline = load_baseline(results_folder, device_name)
    if baseline is not None:
        require_valid(baseline, "baseline")


def judged(run: Run, results_folder: Path, rule: MarginRule) -> Run:
    """`run` with a verdict on every result that has one, its exit code, and what its device's calibration says of verdicts.

    Without a stored baseline nothing can have regressed, and nothing is called a pass: verdicts are `incomparable` and say so.

    Suites that say less of what was asked for than they did in the baseline are among the warnings, as are improvements without a known
    cause.

    Raises:
        RunRecordError: the stored baseline or calibration cannot be read, or holds what no measurement gives.
    """
    run = with_calibration(run, results_folder)
    baseline = load_baseline(results_folder, run.environment.device_name)
    verdicts: dict[tuple[str, str], Verdict] = {}
    if baseline is not None:
        require_valid(baseline, "baseline")
        found = judge_whole(run, baseline, rule)
        verdicts = {(f"{one.suite}:{one.case}", one.kernel): one.verdict for one in found.judgements}
        suites = {summary.case.suite for summary in run.cases}
        remarks = [str(suite) for suite in found.shrunken if suite.suite in suites]
        remarks += [f"unexplained improvement of {one.kernel} on {one.suite}:{one.case}: {one.reason}" for one in found.unexplained]
        if any(spread.beyond for spread in found.identical):
            remarks.append(identical_line(found))
        run = msgspec.structs.replace(run, warnings=[*run.warnings, *remarks])
    missing = Verdict(
        kind=VerdictKind.INCOMPARABLE,
        reason=f"no baseline is stored for {run.environment.device_name}; keep a run as one with `fusebench baseline promote`",
    )
    results = [msgspec.structs.replace(result, verdict=_verdict(result, verdicts, missing)) for result in run.results]
    codes = [_EXIT_CODES.get(result.verdict.kind, ExitCode.PASS) for result in results if result.verdict is not None and result.gating]
    return msgspec.structs.replace(run, results=results, exit_code=worst_exit_code([*codes, ExitCode(run.exit_code)]))


def _verdict(result: Result, verdicts: dict[tuple[str, str], Verdict], missing: Verdict) -> Verdict | None:
    if result.status in FAILED_STATUSES:
        return explain_advisory(Verdict(kind=VerdictKind.ERROR, reason=result.reason, decides=result.decides), result.role)
    if result.status is Status.NOT_MEASURED:
        return explain_advisory(Verdict(kind=VerdictKind.UNDECIDED, reason=result.reason, decides=result.decides), result.role)
    if result.covers:
        return None  # its time is a part's, and there is nothing that it could be judged by
    judgement = verdicts.get((result.case_key, result.kernel))
    if result.status is Status.CHECKED:
        return judgement  # of its accuracy alone, where the baseline has one
    return (judgement or missing) if result.status is Status.MEASURED else None
