"""`fusebench ab`: this checkout's kernels against those of a git commit, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ..errors import UsageError
from ..schema import CacheState, ExitCode
from .shared.measuring_options import BudgetOption, CacheOption, OutOption, RoundsOption, TimerOption, WaitOption
from .shared.options import (
    CaseOption,
    DeviceOption,
    EvidenceOption,
    JsonOption,
    KernelOption,
    KernelsOption,
    OpOption,
    SuiteOption,
    TimeoutOption,
    a_number,
)
from .shared.output import command_line, say_what_is_kept
from .static_command import AllowOption, ArchOption, JobsOption
from .static_command import CacheOption as NoCacheOption

if TYPE_CHECKING:
    from ..config import Project
    from ..runner.ab.command import IdenticalSource
    from ..runner.session import Outcome
    from ..schema import SamplingPlan
    from ..stats.sequential import Plan
    from ..store.comparison_record import Comparison

S = TypeVar("S", bound="SamplingPlan | Plan")

BaseOption = Annotated[
    str | None,
    typer.Option(
        "--base", metavar="REF", help="Commit, branch or tag; its merge base with HEAD is compared with (the commit itself by --exact)."
    ),
]
ExactOption = Annotated[bool, typer.Option("--exact", help="Compare with REF itself, not with its merge base with HEAD.")]
BaseKernelsOption = Annotated[
    Path | None, typer.Option("--base-kernels", metavar="DIR", help="A folder of kernels as the base, instead of a commit's.")
]
MarginOption = Annotated[
    float | None,
    typer.Option(
        "--margin",
        metavar="SHARE",
        min=0.001,
        max=1.0,
        callback=a_number,
        help="Change that does not matter; 0.004 (0.4 %) on a GPU, 0.1 on a CPU, 0.05 of the instructions with --static.",
        show_default=False,
    ),
]
StaticOption = Annotated[
    bool,
    typer.Option("--static", help="Compare the compiled kernels only, for the targets of --arch; times nothing and needs no GPU."),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with one that was stopped: a folder, an id or `latest`.  Repeat its command with this option: its finished cases are "
        "taken over; device, versions, kernels and settings must be the same.",
        show_default=False,
    ),
]
TimeIdenticalOption = Annotated[
    bool, typer.Option("--time-identical", help="Time every kernel with identical code in both revisions, instead of two per case.")
]


def ab(
    *,
    suite: SuiteOption = None,
    base: BaseOption = None,
    exact: ExactOption = False,
    base_kernels: BaseKernelsOption = None,
    op: OpOption = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    device: DeviceOption = "auto",
    kernels: KernelsOption = None,
    out: OutOption = None,
    budget: BudgetOption = None,
    wait: WaitOption = 0.0,
    cache: CacheOption = CacheState.COLD,
    timer: TimerOption = "auto",
    rounds: RoundsOption = None,
    margin: MarginOption = None,
    time_identical: TimeIdenticalOption = False,
    resume: ResumeOption = None,
    evidence: EvidenceOption = True,
    static: StaticOption = False,
    arch: ArchOption = None,
    allow_incomparable: AllowOption = False,
    jobs: JobsOption = None,
    no_cache: NoCacheOption = False,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Compare this checkout's kernels, uncommitted changes included, with those of a git commit.

    Both revisions are checked on the same inputs and timed in the same rounds, until every pair is decided: slower, faster, or inside the
    margin.  A change counts when five fresh processes repeat it.  Kernels made of the same files, or compiled to the same machine code,
    pass; two of them per case are timed to show the noise.  A kernel that has become less accurate is a regression, however fast it is.

    Where every file of the kernels folders is the same, there is nothing to compare: the command says so at once and measures nothing.
    --time-identical measures all the same, as an A/A check.

    --static compares registers, spills, occupancy and instructions, and times nothing.  --allow-incomparable, --jobs and --no-cache are as
    in `fusebench static`.

    A regression brings evidence: the compiled code of both revisions is compared.  The hardware counters of the first four are compared
    too, if Nsight Compute can read them (--no-evidence leaves both out).

    The run's folder, which ends in _ab, holds ab.json, samples.parquet and report.md.

    Exit codes: 0 pass or improvement, 1 regression of speed or accuracy, 4 undecided, 5 a kernel of this checkout failed.
    """
    from ..device import resolve_device
    from ..device.toolchain import require_torch_for
    from ..store.files import require_writable
    from ..timing.timers.select import require_timer
    from .shared.selection import resolve_selection, with_kernels

    if (base is None) == (base_kernels is None):
        raise UsageError("say what to compare with: --base REF (a commit, branch or tag), or --base-kernels DIR, and not both")
    if static:
        from ..runner.evidence.base_checkout import BaseChoice
        from .shared.static_work import StaticOptions, compare_static

        choice = BaseChoice(ref=base, exact=exact, folder=base_kernels)
        chosen = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels, load_kernels=False)
        raise typer.Exit(compare_static(chosen, choice, StaticOptions(kernel, arch, margin, allow_incomparable, jobs, no_cache, json)))
    require_timer(timer)
    selection = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels, load_kernels=False)
    target = resolve_device(device)
    require_timer(timer, target.kind)
    require_torch_for(target)
    if out is not None:
        require_writable(out, instead="name another with --out DIR")

    from ..runner.evidence.base_checkout import BaseChoice

    choice = BaseChoice(ref=base, exact=exact, folder=base_kernels)
    choice.require(selection.project)

    from ..report.ab import ab_document, print_ab
    from ..runner.ab.command import ComparisonRequest, IdenticalSource, measure_comparison
    from ..runner.ab.strategy import ComparisonOptions, default_looks
    from ..runner.run.options import default_plan
    from .shared.evidence_work import evidence_tools
    from .shared.output import console, print_json
    from .shared.progress import make_reporter

    selection = with_kernels(selection, silence_s=kernel_timeout)
    request = ComparisonRequest(
        project=selection.project,
        collection=selection.collection,
        cases=selection.cases,
        base=choice,
        device=target,
        timer=timer,
        plan=with_given(default_plan(target.kind, cache), rounds=rounds),
        options=ComparisonOptions(
            looks=with_given(default_looks(target.kind), margin=margin),
            kernel=kernel,
            time_identical=time_identical,
            command=command_line(),
        ),
        budget_s=budget,
        wait_s=wait,
        silence_s=kernel_timeout,
        out=out,
        resume=resume,
        evidence=evidence_tools() if evidence else None,
    )
    outcome = measure_comparison(request, make_reporter())
    if isinstance(outcome, IdenticalSource):
        _print_identical(outcome, target.name, selection.project, json=json)
        raise typer.Exit(ExitCode.PASS)
    _write_report(outcome)
    if outcome.interruption is not None:
        say_what_is_kept(outcome, resume=not outcome.record.complete)
        raise outcome.interruption
    if json:
        print_json(ab_document(outcome.record, outcome.folder))
    else:
        print_ab(outcome.record, console())
        typer.echo(f"run: {outcome.folder}")
    raise typer.Exit(ExitCode(outcome.record.exit_code))


def _print_identical(outcome: IdenticalSource, device: str, project: Project, *, json: bool) -> None:
    from ..device.environment import git_state
    from ..report.ab import identical_document, identical_line
    from .shared.output import print_json

    if json:
        print_json(identical_document(outcome.base, device, git_state(project.root, {})))
    else:
        typer.echo(identical_line(outcome.base))


def _write_report(outcome: Outcome[Comparison]) -> None:
    from ..report.ab import ab_markdown
    from ..store.comparison_folder import write_report

    if outcome.folder is not None:
        write_report(outcome.folder, ab_markdown(outcome.record))


def with_given(settings: S, **given: float | None) -> S:
    """`settings` with the given options."""
    import msgspec

    return msgspec.structs.replace(settings, **{name: value for name, value in given.items() if value is not None})
