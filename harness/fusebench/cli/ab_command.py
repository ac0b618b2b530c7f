"""`fusebench ab`: this checkout's kernels against those of a git commit."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import UsageError
from .options import CaseOption, JsonOption, KernelOption, OpOption, SuiteOption
from .static_command import AllowOption, ArchOption, CacheOption, JobsOption, MarginOption

BaseOption = Annotated[str, typer.Option("--base", metavar="REF", help="The commit to compare with: a branch, a tag, a hash, HEAD~1.")]
StaticOption = Annotated[bool, typer.Option("--static", help="Compare what the kernels are compiled to; no GPU is needed.")]


def ab(
    *,
    base: BaseOption,
    suite: SuiteOption = None,
    op: OpOption = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    static: StaticOption = False,
    arch: ArchOption = None,
    margin: MarginOption = 0.05,
    allow_incomparable: AllowOption = False,
    jobs: JobsOption = None,
    no_cache: CacheOption = False,
    json: JsonOption = False,
) -> None:
    """Compare this checkout's kernels with those of a git commit, on this checkout's cases.

    Example:

      fusebench ab --suite nightly --base main --static --arch sm_90

    Exit codes: 0 pass; 1 a regression; 4 incomparable or missing; 5 a kernel of this checkout does not compile.
    """
    from ..report.static_table import verdict_line
    from ..runner.revision import kernels_at
    from .output import print_json
    from .selection import resolve_selection
    from .static_work import collect_all, find_targets, judge_against, print_judgements, require_margin

    if not static:
        raise UsageError("ab compares compiled code: pass --static, and --arch NAME")
    require_margin(margin)
    targets = find_targets(arch)
    selection = resolve_selection(suite=suite, op=op, case=case, load_kernels=False)
    after = collect_all(selection, targets, kernel=kernel, jobs=jobs, use_cache=not no_cache)
    with kernels_at(base, selection.project) as revision:
        short = revision.commit[:12]
        before = collect_all(
            selection, targets, kernel=kernel, jobs=jobs, use_cache=not no_cache, roots=revision.roots, label=f"commit {short}, "
        )
    judgements, code = judge_against(
        after, before, selection, margin=margin, allow_incomparable=allow_incomparable, reference=f"commit {short}"
    )
    if json:
        print_json({"base": revision.commit, "margin": margin, "exit_code": code, "judgements": judgements})
    else:
        print_judgements(judgements)
        typer.echo(f"against {revision.ref} ({short}): {verdict_line(judgements)}")
    raise typer.Exit(code)
