"""`fusebench gate`: a run judged against a baseline, with an exit code that CI can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..schema import ExitCode, Run, worst_exit_code
from .options import JsonOption
from .output import console, print_json, remark

if TYPE_CHECKING:
    from ..config import Project


def gate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run to judge: a folder, a run id or the start of one, or `latest`.")],
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="RUN", help="Judge against this run instead of the stored baseline of the run's device model."),
    ] = None,
    margin: Annotated[float, typer.Option("--margin", help="Share by which a kernel may be slower; 0.03 is 3 %.")] = 0.03,
    allow_incomparable: Annotated[
        bool,
        typer.Option("--allow-incomparable", help="Do not count what cannot be compared, or is missing from the run, as undecided."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Judge a run against a baseline, kernel by kernel and case by case.

    Exit codes: 0 pass; 1 a regression of speed or accuracy; 3 the run's device was not fit to measure; 4 undecided, incomparable, missing,
    or no baseline; 5 a kernel failed.
    """
    from ..config import find_project
    from ..report.calibrated import calibration_line
    from ..report.comparison import judgement_row, print_judgements
    from ..stats.comparability import fingerprint_differences
    from ..stats.gating import gate_exit_code, judge_run
    from ..stats.rule import MarginRule
    from ..stats.soundness import require_sound
    from ..stats.suite_changes import shrinkage, unexplained_improvements
    from ..stats.suite_rate import held_to_rate
    from ..store.calibration_note import with_calibration
    from ..store.finding import find_run
    from ..store.run_folder import read_run

    if not 0 < margin < 1:
        raise UsageError(f"--margin {margin:g}: expected a share between 0 and 1, for example 0.03 for 3 %")
    project = find_project()
    judged = with_calibration(read_run(find_run(run, project)), project.results)
    require_sound(judged)
    against = _baseline_of(judged, baseline, project)
    if against is None:
        message = (
            f"no baseline for {judged.environment.device_name}: nothing to judge run {judged.id} by; "
            "keep a run that you trust with `fusebench baseline promote RUN`, or name one with --baseline RUN"
        )
        remark("undecided", message)
        if json:
            print_json(
                {"run": judged.id, "baseline": None, "margin": margin, "exit_code": ExitCode.UNDECIDED, "reason": message, "judgements": []}
            )
        raise typer.Exit(ExitCode.UNDECIDED)
    require_sound(against, "baseline")
    rule = MarginRule(margin)
    judgements = held_to_rate(judge_run(judged, against, rule), judged, against, rule)
    shrunken = shrinkage(judged, against)
    unexplained = unexplained_improvements(judgements, {}, fingerprint_differences(judged, against))
    codes = [gate_exit_code(judgements, allow_incomparable=allow_incomparable)]
    if any(suite.unchecked for suite in shrunken) and not allow_incomparable:
        codes.append(ExitCode.UNDECIDED)  # what is no longer checked could be wrong by now
    if judged.exit_code == ExitCode.DEVICE_UNFIT:
        remark("unfit", f"run {judged.id} ended with exit code 3: its device was not fit to measure, so its times prove nothing")
        codes.append(ExitCode.DEVICE_UNFIT)
    code = worst_exit_code(codes)
    if json:
        rows = [judgement_row(judgement) for judgement in judgements]
        print_json(
            {
                "run": judged.id,
                "baseline": against.id,
                "margin": margin,
                "exit_code": code,
                "reason": "",
                "judgements": rows,
                "shrunken": shrunken,
                "unexplained": unexplained,
                "calibration": calibration_line(judged),
            }
        )
    else:
        output = console()
        output.print(f"run {judged.id} against baseline {against.id} ({against.environment.device_name}), margin {margin:.1%}")
        print_judgements(judgements, output)
        for suite in shrunken:
            output.print(str(suite))
        for one in unexplained:
            output.print(f"unexplained improvement  {one.case}  {one.kernel}  {one.reason}")
        output.print(calibration_line(judged))
    raise typer.Exit(code)


def _baseline_of(run: Run, named: str | None, project: Project) -> Run | None:
    from ..store.baselines import load_baseline
    from ..store.finding import find_run
    from ..store.run_folder import read_run

    if named is not None:
        return read_run(find_run(named, project))
    return load_baseline(project.results, run.environment.device_name)
