"""A search of `fusebench bisect` before its first comparison: what is asked for, the kernel that it follows, and the search it resumes."""

from __future__ import annotations

import hashlib
import math
import secrets
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ..config import Project
from ..device import environment_of
from ..errors import FusebenchError, RunRecordError, UnknownNameError, UsageError
from ..runner.evidence.providers import EvidenceTools
from ..runner.resuming import content_of, require_incomplete, require_unaltered
from ..runner.session import MeasuringRequest
from ..schema import Case, ExitCode, KernelId, SamplingPlan
from ..stats.bisection import ERROR_RATE, size_of
from ..stats.sequential import Plan
from ..store.bisection_record import Bisection, Probe, read_bisection
from ..store.finding import BISECTION_FILE, find_run
from ..store.seal import check_seal
from .checkouts import Checkouts
from .commits import History


class BisectRequest(MeasuringRequest, frozen=True, kw_only=True):
    """What to search for, and where."""

    project: Project
    roots: tuple[Path, ...]
    """The kernels folders of the checkout."""
    kernel: str
    """Glob that one kernel of the case's op matches in bad."""
    case: Case
    good: str
    bad: str
    plan: SamplingPlan
    looks: Plan
    """Looks and margin; the levels are those of the search."""
    out: Path | None = None
    """Folder for the search's folder; results/runs of the project where None."""
    resume: str | None = None
    """A stopped search to go on with: a folder, an id or `latest`."""
    evidence: EvidenceTools | None = None
    """How the found commit's compiled code is compared with its predecessor's; None leaves it out."""
    command: str = ""


class EndFailedError(FusebenchError):
    """The kernel does not load at an end of the search."""

    exit_code = ExitCode.KERNEL_FAILED


def followed_kernel(request: BisectRequest, found: History, checkouts: Checkouts) -> KernelId:
    """The one kernel of bad that the request names, which good has as well.

    Raises:
        UsageError: none or several match, or good has another set of kernels.
        EndFailedError: an end's file does not load.
    """
    op, bad, good = request.case.op, found.bad.commit, found.good.commit
    kernels = checkouts.kernels(bad)
    if op in kernels.ops and (matching := [kernel.id for kernel in kernels.kernels_of(op, request.kernel)]):
        if len(matching) > 1:
            named = ", ".join(map(str, matching))
            raise UsageError(f"--kernel {request.kernel} names {len(matching)} kernels, {named}: a search follows one; name it")
        (kernel,) = matching
    elif any(problem.op == op for problem in kernels.problems):
        problems = "; ".join(problem.message for problem in kernels.problems if problem.op == op)
        raise EndFailedError(f"--bad {request.bad}: no kernel {request.kernel} of op {op} loads in commit {bad[:12]}: {problems}")
    else:
        known = [str(one.id) for one in kernels.kernels_of(op)] if op in kernels.ops else []
        raise UnknownNameError(f"{op} kernel", request.kernel, known, f"--kernel, in commit {bad[:12]}")
    for option, commit in ((f"--bad {request.bad}", bad), (f"--good {request.good}", good)):
        if why := checkouts.missing(commit, kernel):
            failed = any(problem.op == op for problem in checkouts.kernels(commit).problems)
            message = f"{option}: commit {commit[:12]}: {why}; choose a commit whose {kernel} takes case {request.case.key}"
            raise EndFailedError(message) if failed else UsageError(message)
    return kernel


def first_record(request: BisectRequest, found: History, kernel: str) -> Bisection:
    """The record before the first answer."""
    environment = environment_of(request.device, request.project.root)
    versions = [environment.driver, environment.torch, environment.triton, environment.fusebench]
    settings = msgspec.json.encode([request.timer, request.plan, request.looks, versions])
    return Bisection(
        id=secrets.token_hex(4),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=request.command,
        kernel=kernel,
        case=request.case,
        device=request.device.kind,
        device_name=request.device.name,
        settings=hashlib.sha256(settings).hexdigest()[:16],
        good=found.good,
        bad=found.bad,
        commits=found.commits,
        groups=len(found.groups) - 1,
        error_rate=ERROR_RATE,
        warnings=list(found.notes),
        complete=False,
        exit_code=int(ExitCode.UNDECIDED),
    )


def stopped_search(text: str, project: Project) -> tuple[Path, Bisection]:
    """Folder and record of the stopped search that `text` names.

    Raises:
        UsageError: it is complete, or unknown.
        RunRecordError: it cannot be read, or does not fit its seal.
    """
    folder = find_run(text, project, records=(BISECTION_FILE,), made_by="fusebench bisect")
    record = read_bisection(folder)
    require_incomplete(f"search {record.id}", complete=record.complete)
    require_unaltered(f"search {record.id}", check_seal(folder / BISECTION_FILE, ()), folder)
    return folder, record


def carried_over(earlier: Bisection, now: Bisection) -> tuple[Bisection, list[Probe]]:
    """The record to go on with, in the folder of the stopped search, and the measured answers of that.

    Raises:
        UsageError: another search, device or setting.
        RunRecordError: an answer has a size that no slower commit has.
    """
    pairs = {
        "kernel": (earlier.kernel, now.kernel),
        "case": (content_of(earlier.case), content_of(now.case)),
        "good": (earlier.good.commit, now.good.commit),
        "bad": (earlier.bad.commit, now.bad.commit),
        "device": (earlier.device_name, now.device_name),
        "timer, sampling, margin or versions": (earlier.settings, now.settings),
    }
    if changed := [name for name, (before, after) in pairs.items() if before != after]:
        raise UsageError(f"--resume: search {earlier.id} was another one, it differs in {', '.join(changed)}; leave --resume out")
    probes = [*earlier.probes, *([earlier.step] if earlier.step is not None else [])]
    for probe in probes:
        if probe.slower and not _has_size(probe):
            raise RunRecordError(f"search {earlier.id}: commit {probe.commit[:12]} is slower by no possible size; leave --resume out")
    return msgspec.structs.replace(now, id=earlier.id, created=earlier.created), [probe for probe in probes if probe.folder]


def _has_size(probe: Probe) -> bool:
    """Whether its times over those of `against` are positive numbers, and their middle is above 1."""
    if probe.finding is None or probe.confirmation is None:
        return False
    known = (probe.finding.change.value, *probe.confirmation.estimates)
    return all(0 < one < math.inf for one in known) and size_of(probe.finding, probe.confirmation) > 1
