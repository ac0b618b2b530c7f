"""`fusebench ci`: the jobs behind `ci/nightly` and `ci/pull_request`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError

if TYPE_CHECKING:
    from ..ci.outcome import JobOutcome
    from ..ci.steps import Steps
    from ..config import Project

ci = typer.Typer(help="Jobs for a CI system: the nightly, and the gate of a pull request.", no_args_is_help=True)

OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the files that the job leaves; made when absent.")]
WaitOption = Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0.0, help="Wait this long for the GPU to become idle.")]


@ci.command(short_help="Run, judge, and write files for people and CI.")
def nightly(
    *,
    suite: Annotated[str, typer.Option("--suite", metavar="NAME|PATH", help="Suite to measure.")] = "nightly",
    device: Annotated[str, typer.Option("--device", metavar="cuda|cuda:N", help="GPU to measure on.")] = "cuda",
    wait: WaitOption = 1800.0,
    budget: Annotated[float | None, typer.Option("--budget", metavar="SECONDS", min=1.0, help="Stop measuring after this long.")] = None,
    out: OutOption = Path("ci-nightly"),
    export: Annotated[
        list[str] | None, typer.Option("--export", metavar="FORMAT", help="A further format of `fusebench report`; repeatable.")
    ] = None,
    upload: Annotated[str, typer.Option("--upload", metavar="DIR|URL", help="Copy the run's folder into this one.")] = "",
    static_only: Annotated[
        bool, typer.Option("--static-only", help="For a runner without a GPU: judge the compiled kernels, measure nothing.")
    ] = False,
    arch: Annotated[list[str] | None, typer.Option("--arch", metavar="sm_90", help="Target of --static-only; repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Take a recorded run in place of a measurement; needs no GPU.")] = False,
    recorded: Annotated[
        str | None,
        typer.Option("--recorded", metavar="RUN", help="The run of --dry-run: a folder, or an id in results/history; the newest there."),
    ] = None,
) -> None:
    """Wait for an idle GPU, run, judge against the stored baseline, and write the files for people and CI.

    The folder of --out holds outcome.json, summary.md, junit.xml, annotations.txt, report.md, report.html and, after a regression or a
    failure, issue.md.

    Exit codes are those of `fusebench run` and `fusebench gate`, the worst of both: 0 pass; 1 regression; 2 configuration; 3 no GPU that is
    fit to measure; 4 undecided, or no baseline; 5 a kernel failed; 70 no run, or a fault.  Each says why in one line.
    """
    from ..ci.jobs import Nightly, recorded_run, static_gate
    from ..ci.jobs import nightly as carry_out
    from ..config import find_project

    project = find_project()
    if recorded is not None and not dry_run:
        raise UsageError("--recorded RUN: belongs to --dry-run; without it a run is measured")
    steps = _steps(project, out)
    if static_only:
        _leave(static_gate(suite, arch or [], steps), project, out)
    taken = recorded_run(project, recorded, out.resolve() / "recorded") if dry_run else None
    wanted = Nightly(suite=suite, device=device, wait_s=wait, budget_s=budget, recorded=taken, exports=tuple(export or ()), upload=upload)
    _leave(carry_out(wanted, project, out.resolve(), steps), project, out)


@ci.command(short_help="Find the commit behind a red nightly.")
def bisect(
    *,
    device: Annotated[str, typer.Option("--device", metavar="cuda|cuda:N", help="GPU to measure on.")] = "cuda",
    wait: WaitOption = 1800.0,
    budget: Annotated[float, typer.Option("--budget", metavar="SECONDS", min=1.0, help="Stop the search after this long.")] = 3600.0,
    out: OutOption = Path("ci-nightly"),
) -> None:
    """After a red nightly, find the commit behind its largest regression of speed.

    Reads outcome.json in the folder of --out, searches by `fusebench bisect` between the baseline's commit and the run's, and appends the
    answer to issue.md there.  The repository needs its history (fetch-depth: 0).

    Exit codes are those of `fusebench bisect`; 0 as well where the nightly holds no regression of speed.
    """
    from ..ci.bisecting import bisect_nightly, exit_code_of, issue_part, read_outcome
    from ..config import find_project

    project = find_project()
    outcome = read_outcome(out)
    options = ["--device", device, "--wait", f"{wait:g}", "--budget", f"{budget:g}"]
    step, said = bisect_nightly(outcome, _steps(project, out), options=options)
    typer.echo(said)
    if part := issue_part(step.document if step is not None else None):
        with (out / "issue.md").open("a") as issue:
            issue.write(part)
    raise typer.Exit(exit_code_of(step))


@ci.command("pull-request", short_help="Compare this checkout with the merge base.")
def pull_request(
    *,
    base: Annotated[str, typer.Option("--base", metavar="REF", help="Branch or commit; its merge base with HEAD is compared with.")],
    settings: Annotated[
        Path | None, typer.Option("--settings", metavar="FILE", help="File with the measurements; .fusebench/pull_request.toml by default.")
    ] = None,
    gpu: Annotated[str, typer.Option("--gpu", metavar="LABEL", help="Label of this runner, for the texts.")] = "",
    device: Annotated[str, typer.Option("--device", metavar="cuda|cuda:N", help="GPU to measure on.")] = "cuda",
    out: OutOption = Path("ci-pull-request"),
    static_only: Annotated[
        bool, typer.Option("--static-only", help="For a runner without a GPU: compare the compiled kernels, measure nothing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Take recorded documents of `ab --json` in place of measurements; needs no GPU.")
    ] = False,
    recorded: Annotated[
        Path | None, typer.Option("--recorded", metavar="DIR", help="Folder of the documents of --dry-run, OP.json each.")
    ] = None,
) -> None:
    """Compare this checkout with the merge base: first the compiled kernels, then, on the GPU, the ops that changed.

    The folder of --out holds outcome.json, summary.md, junit.xml, annotations.txt and comment.md.

    Exit codes: 0 pass or nothing changed; 1 regression; 2 configuration; 3 no GPU that is fit to measure; 4 undecided, or the time budget
    was spent; 5 a kernel failed; 70 a fault.  Each says why in one line.
    """
    from ..ci.findings import Declarations
    from ..ci.jobs import PullRequestJob
    from ..ci.jobs import pull_request as carry_out
    from ..ci.settings import read_settings
    from ..config import find_project

    project = find_project()
    if (recorded is not None) > dry_run:
        raise UsageError("--recorded DIR: belongs to --dry-run; without it the ops are measured")
    wanted = PullRequestJob(
        settings=read_settings(project.root, settings),
        base=base,
        gpu=gpu,
        device=device,
        static_only=static_only,
        recorded=(recorded or out / "recorded") if dry_run else None,
    )
    _leave(carry_out(wanted, project, Declarations(project.root, project.kernels), _steps(project, out)), project, out)


@ci.command(short_help="Print the comment of a pull request.")
def comment(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR...", help="Folders that the jobs of a pull request have left.")
    ] = None,
) -> None:
    """Print the pull request's comment over all its jobs: the text that replaces the one with the same hidden marker."""
    from ..ci.outcome import read_outcomes
    from ..ci.texts import comment as text_of

    typer.echo(text_of(read_outcomes(folders or ())), nl=False)


@ci.command(short_help="Print a pull request's GPU labels as JSON.")
def gpus(
    settings: Annotated[
        Path | None, typer.Option("--settings", metavar="FILE", help="The file to read; .fusebench/pull_request.toml by default.")
    ] = None,
) -> None:
    """Print the GPU labels of a pull request as a JSON list: the matrix of its jobs."""
    import json

    from ..ci.settings import read_settings
    from ..config import find_project

    typer.echo(json.dumps(read_settings(find_project().root, settings).gpus))


def _steps(project: Project, out: Path) -> Steps:
    from ..ci.steps import Steps

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be made: {error.strerror or error}") from error
    return Steps(project.root, lambda line: typer.echo(line, err=True))


def _leave(outcome: JobOutcome, project: Project, out: Path) -> None:
    """Write the job's files, show its annotations on GitHub, and end with its exit code."""
    import msgspec

    from ..ci import texts
    from ..ci.findings import Declarations
    from ..report.escape import one_line

    outcome = msgspec.structs.replace(outcome, steps=[msgspec.structs.replace(step, document=None) for step in outcome.steps])
    # Of the same job alone: its steps may share the folder, and a folder that stays from one night to the next must not use them up.
    counter = out / "annotations.count"
    job = " ".join(os.environ.get(name, "") for name in ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_JOB")).strip()
    before, _, number = counter.read_text().rpartition(":") if counter.is_file() else ("", "", "")
    used = int(number) if job and before == job else 0
    notes = texts.annotate(outcome, Declarations(project.root, project.kernels), used)
    files = {
        "summary.md": texts.summary(outcome),
        "junit.xml": texts.junit(outcome),
        "annotations.txt": "".join(f"{note}\n" for note in notes),
    }
    files["outcome.json"] = msgspec.json.format(msgspec.json.encode(outcome), indent=1).decode() + "\n"
    files[counter.name] = f"{job}:{used + len(notes)}"
    if outcome.job == "nightly" and outcome.exit_code in (1, 5):
        files["issue.md"] = texts.issue(outcome)
    else:
        (out / "issue.md").unlink(missing_ok=True)
    if outcome.job != "nightly":
        files["comment.md"] = texts.comment([outcome])
    for name, content in files.items():
        (out / name).write_text(content)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for note in notes:
            typer.echo(note)
    for line in (outcome.title, *outcome.lines):
        typer.echo(one_line(line, 2000))
    raise typer.Exit(outcome.exit_code)
