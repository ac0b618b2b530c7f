"""`fusebench static`: compiled code of kernels without a GPU, and a gate on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..schema import ExitCode
from .shared.options import CaseOption, JsonOption, KernelOption, KernelsOption, OpOption, SuiteOption

if TYPE_CHECKING:
    from ..config import Project
    from ..evidence.records import StaticReport
    from ..evidence.static_gate import StaticJudgement
    from .shared.selection import Selection

ArchOption = Annotated[
    list[str] | None,
    typer.Option("--arch", metavar="NAME", help="Architecture to compile for: sm_80, sm_90, sm_100, sm_120, gfx942 or gfx950; repeatable."),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", metavar="N", min=1, help="Compilations at once; as many as there are CPU cores by default.", show_default=False),
]
CacheOption = Annotated[bool, typer.Option("--no-cache", help="Record and compile everything again; neither read nor write the cache.")]
MarginOption = Annotated[float, typer.Option("--margin", metavar="SHARE", help="Share of instructions that may be added; 0.05 is 5 %.")]
AllowOption = Annotated[bool, typer.Option("--allow-incomparable", help="Do not count incomparable or missing kernels as undecided.")]


def static(
    *,
    suite: SuiteOption = None,
    op: OpOption = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    arch: ArchOption = None,
    kernels: KernelsOption = None,
    limited: Annotated[
        bool, typer.Option("--limited", help="Show only kernels that spill or have an occupancy under 50 %, with a column per target.")
    ] = False,
    gate: Annotated[bool, typer.Option("--gate", help="Compare with the baselines in results/baselines/static/.")] = False,
    promote: Annotated[bool, typer.Option("--promote", help="Make the result the baseline of each target and this toolchain.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Promote although kernels failed or released versions changed, or the baseline holds more.")
    ] = False,
    trust_baseline: Annotated[
        bool,
        typer.Option(
            "--trust-baseline",
            help="With --gate: take code from the baseline where source, options and compiler are those it was made with, and compile "
            "one launch of each device function all the same.",
        ),
    ] = False,
    margin: MarginOption = 0.05,
    allow_incomparable: AllowOption = False,
    jobs: JobsOption = None,
    no_cache: CacheOption = False,
    json: JsonOption = False,
) -> None:
    """Show the compiled code of every Triton and CUDA C++ kernel; no GPU is needed.

    For the real launches of each case: registers, spills, shared memory, occupancy, waves, instructions by class and a hash of the machine
    code. A tunable choice is listed where a dispatch table takes it, or for a glob with `__`. For AMD (gfx942, gfx950) Triton kernels
    only: vector, accumulation and scalar registers, scratch, LDS, resident waves, and rounds: workgroups over those that the GPU holds at
    a time.

    Examples:

      fusebench static --suite qknorm_rope --arch sm_90

      fusebench static --suite qknorm_rope --arch gfx942 --arch gfx950

      fusebench static --suite nightly --arch sm_90 --arch sm_120 --limited

      fusebench static --suite nightly --arch sm_90 --arch sm_100 --promote

      fusebench static --suite nightly --gate

    Exit codes: 0 pass; 1 a regression (with --gate); 4 incomparable, missing, or no baseline (with --gate); 5 a kernel does not compile.
    """
    from ..report.evidence.static_table import evidence_document, verdict_line
    from ..store.static_baselines import codes_of_baseline
    from ..verdict.exit_status import static_exit_code
    from .shared.output import print_json
    from .shared.selection import resolve_selection
    from .shared.static_work import collect_all, find_targets, print_evidence, print_judgements, print_limited, require_margin

    require_margin(margin)
    if gate and promote:
        raise UsageError("--gate and --promote together would compare a result with itself; pass one of them")
    if trust_baseline and not gate:
        raise UsageError("--trust-baseline takes code from the baseline that --gate judges by; pass both")
    if limited and (gate or json):
        raise UsageError("--limited chooses rows of the table of figures; leave it out with --gate and --json, which print no such table")
    if promote and (kernel is not None or case is not None):
        raise UsageError("--promote with --kernel or --case would make an incomplete baseline; select whole suites")
    targets = find_targets(arch, gate=gate)
    selection = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels, load_kernels=False)
    results = selection.project.results
    reports = collect_all(
        selection,
        targets,
        kernel=kernel,
        jobs=jobs,
        use_cache=not no_cache,
        trusted=(lambda target: codes_of_baseline(results, target.name)) if trust_baseline else lambda target: {},
    )
    code = static_exit_code((), reports)
    judgements: list[StaticJudgement] | None = None
    if gate:
        judgements, code = _judge(reports, selection, kernel, margin, allow_incomparable)
    if json:
        document: dict[str, Any] = {"exit_code": code, "targets": [evidence_document(report) for report in reports]}
        print_json(document if judgements is None else {**document, "margin": margin, "judgements": judgements})
    elif judgements is None:
        (print_limited if limited else print_evidence)(reports)
    else:
        print_judgements(judgements)
        typer.echo(verdict_line(judgements))
    if promote:
        _promote(reports, selection.project, force=force)
    raise typer.Exit(code)


def _judge(
    reports: list[StaticReport], selection: Selection, kernel: str | None, margin: float, allow_incomparable: bool
) -> tuple[list[StaticJudgement], ExitCode]:
    """By the stored baselines; a target without one is undecided."""
    from ..store.static_baselines import load_static
    from .shared.output import remark
    from .shared.static_work import judge_against

    judged, baselines, codes = [], [], []
    for report in reports:
        found = load_static(selection.project.results, report.target, report.toolchain)
        if found is None:
            remark(
                "undecided",
                f"no baseline for {report.target}: nothing to judge by; "
                f"keep one with `fusebench static --suite NAME --arch {report.target} --promote`",
            )
            codes.append(ExitCode.UNDECIDED)
            if report.failed:
                codes.append(ExitCode.KERNEL_FAILED)
            continue
        file, baseline = found
        if baseline.toolchain != report.toolchain:
            remark("note", f"{report.target}: no baseline of {report.toolchain.slug}; shown against {file.stem}")
        judged.append(report)
        baselines.append(baseline)
    return judge_against(
        judged, baselines, selection, kernel=kernel, margin=margin, allow_incomparable=allow_incomparable, released=True, others=codes
    )


def _promote(reports: list[StaticReport], project: Project, *, force: bool) -> None:
    from ..store.static_baselines import promote_static

    for report in reports:
        file = promote_static(report, project.results, force=force)
        typer.echo(f"baseline of {report.target}: {file}", err=True)
