"""`fusebench gate`: a run judged against a baseline, with an exit code that CI can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..schema import ExitCode, Run
from ..verdict.margins.rule import DEFAULT_MARGIN, MarginRule
from .shared.options import EvidenceOption, JsonOption
from .shared.output import console, print_json, remark
from .shared.results import Results, ResultsOption, open_results
from .shared.seals import require_unaltered, with_told_calibration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ..config import Project
    from ..evidence.attached import Key
    from ..schema import Attachment
    from ..verdict.baseline.compare_to_baseline import RunJudgement
    from ..verdict.baseline.judgement import Judgement


def gate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run to judge: a folder, a run id or the start of one, or `latest`.")],
    *,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="RUN", help="Judge against this run instead of the stored baseline of the run's device model."),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            metavar="SHARE",
            help="Share by which a kernel may be slower: 0.02 is 2 %.  By default it comes from the scatter between stored runs of the "
            "device model, by class of calls; without them it is 2 % (10 % on a CPU), and twice that for calls of several launches.",
            show_default=False,
        ),
    ] = None,
    allow_incomparable: Annotated[
        bool,
        typer.Option("--allow-incomparable", help="Do not count incomparable or missing results as undecided."),
    ] = False,
    allow_altered: Annotated[
        bool, typer.Option("--allow-altered", help="Judge a record that does not fit its seal, too; a warning says so.")
    ] = False,
    evidence: EvidenceOption = False,
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """Judge a run against a baseline, kernel by kernel and case by case.

    A run of selected suites, cases or kernels is judged against the same part of the baseline, and the rest is named.

    Exit codes: 0 pass; 1 a regression of speed or accuracy, or a slower choice of `dispatch` (another kernel than in the baseline, more
    than 1.05x its time in this run, intervals apart); 2 a record cannot be read, or does not fit its seal; 3 the run's device was not
    fit to measure; 4 undecided, incomparable, missing, or no baseline; 5 a kernel failed; 70 a fault of fusebench itself, which is no
    verdict.  Verdicts on peers
    and on the speed of kernels made by torch.compile are advisory: they never change the exit code, and their reasons say so.

    With --evidence the old and the new code of the kernels that regressed are compiled, which takes seconds and needs Triton.  Without a
    regression it costs nothing.
    """
    from ..config import find_project
    from ..report.comparison import judgement_row, spread_row
    from ..report.evidence.attached import evidence_row
    from ..report.run.summary import CONCLUSIONS, calibration_line
    from ..store.run_folder import read_run
    from ..store.scatter_file import load_scatter
    from ..verdict.baseline.compare_to_baseline import judge_run
    from ..verdict.exit_status import gate_exit_code
    from ..verdict.margins.words import change_coverage, fixed_margin, margin_rows
    from ..verdict.record_validation import require_valid

    if margin is not None and not 0 < margin < 1:
        example = f"{DEFAULT_MARGIN:g} for {100 * DEFAULT_MARGIN:.0f} %"
        raise UsageError(f"--margin {margin:g}: expected a share between 0 and 1, for example {example}")
    opened = open_results(results, find_project())
    project = opened.project
    folder = opened.find(run)
    judged = with_told_calibration(read_run(folder), project)
    require_valid(judged)
    reference = _baseline_of(judged, baseline, opened)
    against = read_run(reference) if reference is not None else None
    if against is not None:
        require_valid(against, "baseline")
    records = {folder: ("run", judged)} | ({reference: ("baseline", against)} if reference is not None and against is not None else {})
    require_unaltered(records, allowed=allow_altered)
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
    rule = MarginRule(margin, scatter=load_scatter(project.results, judged.environment.device_name), device=judged.environment.device)
    found = judge_run(judged, against, rule)
    code = gate_exit_code(
        found.judgements,
        found.shrunken,
        run_code=judged.exit_code,
        allow_incomparable=allow_incomparable,
        dispatch_lost=bool(found.dispatch_losses),
    )
    if judged.exit_code == ExitCode.DEVICE_UNFIT:
        remark("unfit", f"run {judged.id} ended with exit code 3: its device was not fit to measure, so its times prove nothing")
    if not judged.complete:
        left = f"what it lacks counts as missing; `fusebench run --resume {judged.id}` finishes it on such a device"
        remark("incomplete", f"run {judged.id} ended before it had measured every case, or remeasured every suspect; {left}")
    attached = _evidence(found.judgements, judged, against, project) if evidence else {}
    if json:
        rows = [judgement_row(one) | evidence_row(attached.get((f"{one.suite}:{one.case}", one.kernel))) for one in found.judgements]
        print_json(
            {
                "run": judged.id,
                "baseline": against.id,
                "margin": fixed_margin(rule, judged),
                "margins": margin_rows(rule, judged),
                "intervals": change_coverage(rule, judged),
                "exit_code": code,
                "reason": "",
                "judgements": rows,
                "shrunken": found.shrunken,
                "not_selected": found.not_selected,
                "not_selected_cases": found.not_selected_cases,
                "unexplained": found.unexplained,
                "dispatch_losses": found.dispatch_losses,
                "identical": [spread_row(spread) for spread in found.aa_spreads],
                "calibration": calibration_line(judged),
            }
        )
    else:
        _print(found, judged, against, rule, attached)
        console().print(f"gate: {CONCLUSIONS[code].lower()} (exit code {int(code)})", highlight=False)
    raise typer.Exit(code)


def _print(found: RunJudgement, judged: Run, against: Run, rule: MarginRule, attached: Mapping[Key, tuple[Attachment, ...]]) -> None:
    """Print every verdict except a plain pass."""
    from ..report.comparison import print_judgements
    from ..report.evidence.attached import evidence_parts
    from ..report.run.summary import calibration_line
    from ..verdict.baseline.joined import support_words
    from ..verdict.margins.words import margin_words
    from ..verdict.noise_floor import noise_line

    output = console()
    output.print(f"run {judged.id} against baseline {against.id} ({against.environment.device_name}), {support_words(against)}")
    if judged.id in {against.id, *(one.id for one in against.joined)}:
        output.print(f"run {judged.id} is part of this baseline, so it is judged by its own times, too; judge a run made after it")
    output.print(margin_words(rule, judged))
    print_judgements(found.judgements, output)
    for suite in found.shrunken:
        output.print(str(suite))
    for what, asked_for in (
        ("cases of the op {}", judged.selected_op),
        ("the cases {}", judged.selected_cases),
        ("the kernels {} and their baselines", judged.selected_kernels),
    ):
        if asked_for is not None:
            output.print(f"only {what.format(repr(asked_for))} were asked for, and are judged")
    if found.not_selected or found.not_selected_cases:
        output.print(f"not selected by this run, and not judged: {', '.join([*found.not_selected, *found.not_selected_cases])}")
    for one in found.unexplained:
        output.print(f"unexplained improvement  {one.suite}:{one.case}  {one.kernel}  {one.reason}")
    for loss in found.dispatch_losses:
        output.print(f"regression of dispatch  {loss}")
    output.print(noise_line(found.aa_spreads, found.judgements))
    for part in evidence_parts((kernel, case, one) for (case, kernel), found in attached.items() for one in found):
        output.print(part)
    output.print(calibration_line(judged))


def _evidence(judgements: Sequence[Judgement], run: Run, baseline: Run, project: Project) -> dict[Key, tuple[Attachment, ...]]:
    """Evidence about the kernels that regressed; empty, without loading anything, if none has."""
    from ..runner.evidence.regressions import explained_judgements, regressed

    if not any(regressed(one) for one in judgements):
        return {}
    from ..runner.evidence.providers import providers_of_gate
    from .shared.evidence_work import evidence_tools
    from .shared.selection import load_project

    ops = load_project(load_kernels=False)[1].ops
    return explained_judgements(judgements, run, providers_of_gate(project, ops, run, baseline, evidence_tools()))


def _baseline_of(run: Run, named: str | None, opened: Results) -> Path | None:
    """The folder of the baseline; None if there is none."""
    from ..naming import device_slug
    from ..store.baselines import baseline_folder

    if named is not None:
        return opened.find(named)
    opened.fetch_baseline(run.environment.device_name)
    folder = baseline_folder(opened.project.results, device_slug(run.environment.device_name))
    return folder if folder.exists() else None
