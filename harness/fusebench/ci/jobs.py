"""The jobs themselves: a nightly, and the gate of a pull request.

Failure is never silence: every way in which nothing is measured or judged has an exit code and a sentence in the outcome.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..config import Project
from ..errors import UsageError
from ..schema import ExitCode, worst_exit_code
from .findings import Declarations, Judged, from_ab, from_gate, from_run, from_static
from .outcome import MEANINGS, JobOutcome
from .settings import PullRequest
from .steps import Step, Steps

_LEAST_S = 30.0
"""Seconds without which a comparison is not begun: loading and checking alone take that long."""
_AFTER_BUDGET_S = 900.0
"""Seconds that a command may take beyond its budget: confirmation and evidence are outside of it."""
IDENTICAL = "identical machine code"
"""What `ab --static` says of a kernel that need not be timed."""


class Nightly(msgspec.Struct, frozen=True, kw_only=True):
    """What a nightly measures."""

    suite: str = "nightly"
    device: str = "cuda"
    wait_s: float = 1800.0
    budget_s: float | None = None
    recorded: Path | None = None
    """A recorded run in place of a measurement: a dry run."""
    exports: tuple[str, ...] = ()
    """Further formats of `fusebench report`."""
    upload: str = ""
    """Folder or URL that the run's folder is copied into."""


def nightly(wanted: Nightly, project: Project, out: Path, steps: Steps) -> JobOutcome:
    """Wait for an idle GPU, run, gate by the stored baseline, render, copy."""
    lines: list[str] = []
    if wanted.recorded is None:
        budget = [] if wanted.budget_s is None else ["--budget", f"{wanted.budget_s:g}"]
        options = ["--suite", wanted.suite, "--device", wanted.device, "--wait", f"{wanted.wait_s:g}", *budget]
        ran = steps.run("run", ["run", *options, "--json"])
        folder = _folder_of(ran)
    else:
        ran = _recorded(steps, wanted.recorded)
        folder = wanted.recorded if ran.exit_code != ExitCode.USAGE else None
    judged: list[Judged] = []
    commits = device = ""
    if folder is None:
        code = _known(ran.exit_code or ExitCode.FAULT)
        lines.append(f"no run: {_said(ran)}")
    else:
        gated = steps.run("gate", ["gate", str(folder), "--json"])
        judged = from_gate(gated.document)
        known = {(one.kernel, one.case) for one in judged}
        judged += [one for one in _failed_in(folder) if (one.kernel, one.case) not in known]
        code = worst_exit_code([_known(ran.exit_code), _known(gated.exit_code)])
        if _unexplained(ran, judged):
            lines.append(f"run: {_said(ran)}")
        if isinstance(gated.document, dict) and gated.document.get("baseline") is None:
            lines.append(f"no baseline: {gated.document.get('reason') or _said(gated)}")
        elif _unexplained(gated, judged):
            lines.append(f"gate: {_said(gated)}")
        device, commits = _of_run(folder, gated.document, project)
        for form, name in (("md", "report.md"), ("html", "report.html"), *((form, f"{form}.txt") for form in wanted.exports)):
            rendered = steps.run(f"report {form}", ["report", str(folder), "--format", form, "--out", str(out / name)])
            if rendered.exit_code:
                lines.append(f"report --format {form}: {_said(rendered)}")
                code = worst_exit_code([_known(int(code)), ExitCode.FAULT])
        if wanted.upload:
            code = worst_exit_code([_known(int(code)), _upload(steps, folder, wanted.upload, lines)])
    return JobOutcome(
        job="nightly",
        device=device or wanted.device,
        exit_code=int(code),
        lines=_never_silent([*lines, *_altered(steps)], int(code), judged),
        steps=steps.done,
        judged=judged,
        run="" if folder is None else str(folder.relative_to(project.root) if folder.is_relative_to(project.root) else folder),
        commits=commits,
        dry=wanted.recorded is not None,
    )


def static_gate(suite: str, targets: Sequence[str], steps: Steps) -> JobOutcome:
    """The nightly's part for a runner without a GPU: what every kernel is compiled to, by the stored baselines."""
    arch = [word for target in targets for word in ("--arch", target)]
    step = steps.run("static", ["static", "--suite", suite, *arch, "--gate", "--json"])
    judged = from_static(step.document)
    lines = [f"static: {_said(step)}"] if _unexplained(step, judged) else []
    return JobOutcome(
        job="static gate",
        device=", ".join(targets) or "every target with a baseline",
        exit_code=_known(step.exit_code),
        lines=_never_silent(lines, step.exit_code, judged),
        steps=steps.done,
        judged=judged,
    )


class PullRequestJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a pull request."""

    settings: PullRequest
    base: str
    gpu: str = ""
    """Label of this job's runner, for the texts."""
    device: str = "cuda"
    static_only: bool = False
    """For a runner without a GPU: compile and compare, measure nothing."""
    recorded: Path | None = None
    """A folder with recorded documents of `fusebench ab --json`, `OP.json`, in place of measurements: a dry run."""


def pull_request(
    wanted: PullRequestJob, project: Project, declarations: Declarations, steps: Steps, clock: Callable[[], float] = time.monotonic
) -> JobOutcome:
    """Compare what the kernels are compiled to with the merge base, then time the ops in which something changed."""
    settings, lines = wanted.settings, list[str]()
    arch = [word for target in settings.static_targets for word in ("--arch", target)]
    static = steps.run("static", ["ab", "--static", "--base", wanted.base, *settings.selection, *arch, "--allow-incomparable", "--json"])
    judged = from_static(static.document, wanted.base)
    codes = [_known(static.exit_code)]
    if _unexplained(static, judged):
        lines.append(f"static: {_said(static)}")
    ops: dict[str, list[str]] = {}
    if static.document is not None:
        changed = changed_ops(judged, changed_files(project, wanted.base), declarations, project)
        compiled = {one.kernel for one in judged}
        for op in changed:
            kernels = sorted(kernel for kernel in compiled | declarations.kernels if kernel.startswith(f"{op}/"))
            ops[op] = settings.selection_of(op, static.document["cases"].get(op, []), kernels)
        if apart := [op for op, options in ops.items() if not options]:
            lines.append(f"changed, but without a selected case or kernel, and not timed: {', '.join(apart)}")
            ops = {op: options for op, options in ops.items() if options}
    device = wanted.gpu
    if wanted.static_only:
        device = ", ".join(settings.static_targets)
    elif static.document is not None and not ops:
        lines.append(f"nothing was timed: no {'selected ' if lines else ''}kernel's machine code or source has changed")
    else:
        margin = [] if settings.margin is None else ["--margin", f"{settings.margin:g}"]
        end = clock() + settings.budget_minutes * 60
        unfit = False
        for op, selection in ops.items():
            if unfit:
                lines.append(f"{op}: not compared, since no GPU is fit to measure")
                continue
            left = end - clock()
            if left < _LEAST_S:
                codes.append(ExitCode.UNDECIDED)
                lines.append(f"{op}: not compared, the budget of {settings.budget_minutes:g} minutes was spent")
                continue
            options = ["--device", wanted.device, "--wait", f"{settings.wait_minutes * 60:g}", "--budget", f"{left:.0f}", *margin]
            arguments = ["ab", "--base", wanted.base, *selection, *options, "--json"]
            limit = left + settings.wait_minutes * 60 + _AFTER_BUDGET_S
            step = steps.run(f"ab {op}", arguments, limit_s=limit) if wanted.recorded is None else _recorded_ab(steps, op, wanted.recorded)
            codes.append(_known(step.exit_code))
            end += _waited_s(step)
            unfit = step.exit_code == ExitCode.DEVICE_UNFIT
            found = from_ab(step.document, wanted.base)
            judged += found
            device = (step.document or {}).get("device", device) if found else device
            if _unexplained(step, found):
                lines.append(f"{op}: {_said(step)}")
    code = int(worst_exit_code(codes))
    return JobOutcome(
        job="static comparison" if wanted.static_only else "pull request",
        device=device or wanted.device,
        exit_code=code,
        lines=_never_silent([*lines, *_altered(steps)], code, judged),
        steps=steps.done,
        judged=judged,
        commits=f"{wanted.base}..HEAD",
        dry=wanted.recorded is not None,
    )


def _waited_s(step: Step) -> float:
    """Seconds that a comparison waited for a busy GPU, which are not the budget's."""
    waited = step.document.get("waited_s") if isinstance(step.document, dict) else None
    return float(waited) if isinstance(waited, int | float) else 0.0


def changed_ops(judged: Sequence[Judged], files: Sequence[str], declarations: Declarations, project: Project) -> list[str]:
    """The ops to time: those with a kernel that compiles to something else, and those with a changed file that no compiler judges.

    A file whose kernels all compile to identical machine code (a comment was changed) gives no reason to time anything.
    """
    ops = {one.kernel.partition("/")[0] for one in judged if one.reason.partition(": ")[2] != IDENTICAL}
    identical = {one.kernel for one in judged} - {one.kernel for one in judged if one.reason.partition(": ")[2] != IDENTICAL}
    for file in files:
        kernels = declarations.in_file(file)
        folder = next((root for root in project.kernels if (project.root / file).is_relative_to(root)), None)
        if folder is None or (kernels and set(kernels) <= identical):
            continue
        op = (project.root / file).relative_to(folder).parts[0]
        ops |= {op} if (folder / op / "op.py").is_file() else {one.name for one in folder.iterdir() if (one / "op.py").is_file()}
    return sorted(ops)


def changed_files(project: Project, base: str) -> list[str]:
    """Files of the working tree that differ from its merge base with `base`, relative to the project's root.

    Raises:
        UsageError: git knows no such commit, or this is no checkout.
    """
    found = subprocess.run(
        ["git", "diff", "--name-only", "--relative", "--merge-base", base],
        cwd=project.root,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise UsageError(f"--base {base}: git diff failed: {' '.join(found.stderr.split())}; fetch the whole history (fetch-depth: 0)")
    return found.stdout.splitlines()


def recorded_run(project: Project, wanted: str | None, scratch: Path) -> Path:
    """The run folder that a dry run takes in place of a measurement.

    Args:
        wanted: a run folder, or the id of a run in the project's results/history/; None for the newest there, or else a baseline.
        scratch: folder in which a run from a history file becomes a run folder.

    Raises:
        UsageError: there is no such run, or none at all.
        RunRecordError: a history file cannot be read.
    """
    from ..store.history_file import HISTORY_SUFFIX, read_history_file
    from ..store.run_folder import folder_name, write_run

    if wanted is not None and Path(wanted).is_dir():
        return Path(wanted).resolve()
    kept = [run for file in sorted((project.results / "history").glob(f"*{HISTORY_SUFFIX}")) for run in read_history_file(file)]
    fitting = [run for run in kept if wanted is None or run.id == wanted]
    if fitting:
        newest = max(fitting, key=lambda run: (run.created, run.id))
        shutil.rmtree(scratch / folder_name(newest), ignore_errors=True)
        return write_run(scratch, newest, []).resolve()
    baselines = sorted((project.results / "baselines").glob("*/run.json"))
    if wanted is not None or not baselines:
        where = project.results / "history"
        found = f"no recorded run {wanted}" if wanted is not None else "no recorded run, and no baseline beside it,"
        raise UsageError(f"--dry-run: {found} in {where}; name the folder of a run of `fusebench run`, or an id there, with --recorded RUN")
    return baselines[0].parent.resolve()


def _recorded(steps: Steps, folder: Path) -> Step:
    """The run as measured then.  Its own verdicts were by the baseline of then, and the gate judges it by today's: only failures count."""
    from ..errors import FusebenchError
    from ..store.run_folder import read_run

    try:
        then = read_run(folder).exit_code
        code, reason = then if then in (ExitCode.DEVICE_UNFIT, ExitCode.KERNEL_FAILED) else ExitCode.PASS, ""
    except FusebenchError as error:
        code, reason = error.exit_code, f"error: {error}"
    return steps.add("run", f"(dry run) {folder.name}", code, reason)


def _recorded_ab(steps: Steps, op: str, folder: Path) -> Step:
    file = folder / f"{op}.json"
    try:
        document = msgspec.json.decode(file.read_bytes())
        return steps.add(f"ab {op}", f"(dry run) {file}", int(document["exit_code"]), document=document)
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        reason = f"not measured, and nothing recorded: {file}: {cause}; write `fusebench ab --op {op} --json` of a machine with a GPU there"
        return steps.add(f"ab {op}", f"(dry run) {file}", ExitCode.UNDECIDED, f"undecided: {reason}")


def _folder_of(step: Step) -> Path | None:
    name = step.document.get("run") if isinstance(step.document, dict) else None
    return Path(name) if isinstance(name, str) else None


def _failed_in(folder: Path) -> list[Judged]:
    """Kernels that failed in the run: without a baseline, `gate` says nothing of them."""
    from ..errors import FusebenchError
    from ..store.run_folder import read_run

    try:
        return from_run(read_run(folder))
    except FusebenchError:  # `gate` reads it, too, and says so
        return []


def _of_run(folder: Path, gated: Any, project: Project) -> tuple[str, str]:
    """Device model, and the commits of baseline and run."""
    from ..errors import FusebenchError
    from ..store.baselines import load_baseline
    from ..store.run_folder import read_run

    try:
        run = read_run(folder)
        against = load_baseline(project.results, run.environment.device_name) if isinstance(gated, dict) and gated.get("baseline") else None
    except FusebenchError:  # the step that read it has said so
        return "", ""
    before = against.environment.git_commit[:12] if against is not None else ""
    return run.environment.device_name, f"{before}..{run.environment.git_commit[:12]}" if before else ""


def _upload(steps: Steps, folder: Path, target: str, lines: list[str]) -> ExitCode:
    command = f"copy {folder.name} into {target}"
    try:
        if "://" in target:
            from fsspec.core import url_to_fs  # of the extra `store`

            system, path = url_to_fs(target)
            system.put(str(folder), f"{path.rstrip('/')}/{folder.name}", recursive=True)
        else:
            shutil.copytree(folder, Path(target) / folder.name, dirs_exist_ok=True)
    except Exception as error:  # noqa: BLE001  each file system has its own errors, and the run must be reported all the same
        lines.append(f"upload to {target} failed: {type(error).__name__}: {error}")
        steps.add("upload", command, ExitCode.FAULT, f"error: {error}")
        return ExitCode.FAULT
    steps.add("upload", command, ExitCode.PASS)
    return ExitCode.PASS


def _unexplained(step: Step, judged: Sequence[Judged]) -> bool:
    """Whether the step's exit code needs a line of its own: its verdicts do not say why, or it gave a reason beside them."""
    if step.exit_code in (ExitCode.PASS, ExitCode.REGRESSION):
        return False
    told = step.exit_code in (ExitCode.UNDECIDED, ExitCode.KERNEL_FAILED) and any(one.gating and one.needs_attention for one in judged)
    return bool(step.reason) or not told


def _said(step: Step) -> str:
    reason = step.reason.partition(": ")[2] or "it did not say why"
    return f"{MEANINGS.get(step.exit_code, 'failure')} (exit code {step.exit_code}): {reason}"


def _altered(steps: Steps) -> list[str]:
    """Each record that does not fit its seal, once, however many steps named it."""
    return list(dict.fromkeys(line for step in steps.done for line in step.altered))


def _known(code: int) -> ExitCode:
    """`code` where it is one of ours; an unknown one (141, 130, a shell's) is a fault."""
    return ExitCode(code) if code in set(ExitCode) else ExitCode.FAULT


def _never_silent(lines: list[str], code: int, judged: Sequence[Judged]) -> list[str]:
    if code and not lines and not any(one.gating and one.needs_attention for one in judged):
        return [f"{MEANINGS.get(code, 'failure')} (exit code {code}), and no verdict says why: see the steps"]
    return lines
