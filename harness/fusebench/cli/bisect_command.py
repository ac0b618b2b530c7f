"""`fusebench bisect`: the commit that made a kernel slower."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import UsageError
from ..schema import CacheState
from .ab_command import MarginOption
from .shared.measuring_options import CacheOption, OutOption, RoundsOption, TimerOption, WaitOption
from .shared.options import DeviceOption, EvidenceOption, JsonOption, KernelsOption, OpOption, SuiteOption, TimeoutOption, a_number
from .shared.output import command_line, say_what_is_kept

KernelOption = Annotated[str, typer.Option("--kernel", metavar="KERNEL", help="The kernel that became slower: `fused_triton@2`.")]
CaseOption = Annotated[str, typer.Option("--case", metavar="CASE", help="The case on which it did: `flux_1024`, or `suite:case`.")]
GoodOption = Annotated[str, typer.Option("--good", metavar="REF", help="A commit, branch or tag at which it was fast.")]
BadOption = Annotated[str, typer.Option("--bad", metavar="REF", help="A later one at which it is slow.")]
BudgetOption = Annotated[
    float | None,
    typer.Option("--budget", metavar="SECONDS", min=1.0, callback=a_number, help="Stop the search after this long, with a range."),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with a search that was stopped: a folder, an id or `latest`.  Repeat its command with this option; its measurements "
        "are taken over.",
        show_default=False,
    ),
]


def bisect(
    *,
    kernel: KernelOption,
    case: CaseOption,
    good: GoodOption,
    bad: BadOption = "HEAD",
    suite: SuiteOption = None,
    op: OpOption = None,
    device: DeviceOption = "auto",
    kernels: KernelsOption = None,
    out: OutOption = None,
    budget: BudgetOption = None,
    wait: WaitOption = 0.0,
    cache: CacheOption = CacheState.COLD,
    timer: TimerOption = "auto",
    rounds: RoundsOption = None,
    margin: MarginOption = None,
    resume: ResumeOption = None,
    evidence: EvidenceOption = True,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Find the commit that made a kernel slower, between a good and a bad commit.

    Both ends are compared first, as `fusebench ab` compares: side by side, in paired rounds, confirmed in five fresh processes.  Then a
    binary search compares commits with the good one; a commit is slow if it shows more than half of the slowdown.  Last, the found commit
    is compared with its predecessor alone.  All comparisons share one error rate of 5 %.

    Commits with the same kernels folders, the same source files of the kernel, or the same machine code are not measured again.  A commit
    whose kernel does not load, is wrong or stays undecided is passed by; the answer may then be a range.  The history is followed along
    first parents: a merge stands for what it merged.

    The case comes from this checkout's suites.  The search's folder, which ends in _bisect, holds bisect.json, issue.md (the text of an
    issue) and the comparisons.

    Exit codes: 0 the commit was found; 2 wrong usage, or a commit without the kernel; 3 the device is not fit to measure; 4 undecided: a
    range, ends that do not differ, or the budget was spent; 5 the kernel fails at an end.
    """
    from ..device import resolve_device
    from ..device.toolchain import require_torch_for
    from ..fleet.bisect import find_commit
    from ..fleet.bisect_request import BisectRequest
    from ..report.bisect import bisect_document, bisect_lines, issue_lines
    from ..runner.ab.strategy import default_looks
    from ..runner.resuming import content_of
    from ..runner.run.options import default_plan
    from ..store.bisection_record import write_issue
    from ..timing.timers.select import require_timer
    from .ab_command import with_given
    from .shared.evidence_work import evidence_tools
    from .shared.output import print_json
    from .shared.progress import make_reporter
    from .shared.selection import resolve_selection

    require_timer(timer)
    of = op or kernel.rpartition("/")[0] or None
    chosen = resolve_selection(suite=suite, op=of, case=case, kernels=kernels, load_kernels=False, all_suites=suite is None)
    works = {content_of(one)[:2]: one for one in reversed(chosen.cases)}
    if len(works) != 1:
        named = ", ".join(one.key for one in chosen.cases[:6])
        raise UsageError(f"--case {case} names {len(works)} cases, {named}: a search follows one; write suite:case")
    target = resolve_device(device)
    require_timer(timer, target.kind)
    require_torch_for(target)
    request = BisectRequest(
        project=chosen.project,
        roots=chosen.collection.roots,
        kernel=kernel,
        case=next(iter(works.values())),
        good=good,
        bad=bad,
        device=target,
        timer=timer,
        plan=with_given(default_plan(target.kind, cache), rounds=rounds),
        looks=with_given(default_looks(target.kind), margin=margin),
        budget_s=budget,
        wait_s=wait,
        silence_s=kernel_timeout,
        out=out,
        resume=resume,
        evidence=evidence_tools() if evidence else None,
        command=command_line(),
    )
    outcome = find_commit(request, make_reporter())
    record = outcome.record
    if outcome.folder is not None:
        write_issue(outcome.folder, issue_lines(record))
    if outcome.interruption is not None:
        say_what_is_kept(outcome, resume=True)
        raise outcome.interruption
    if json:
        print_json(bisect_document(record, outcome.folder))
    else:
        for line in bisect_lines(record):
            typer.echo(line)
        typer.echo(f"search: {outcome.folder}")
    raise typer.Exit(record.exit_code)
