"""`fusebench join`: shards of one run joined into one record, in which every case names the board that measured it.

Unlike a joined baseline (`verdict.baseline.joined`), where several runs timed each case, here each case is of one run.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..config import Project
from ..errors import AlteredRecordError, UsageError
from ..naming import device_slug
from ..runner.resuming import FINGERPRINT, UNCOMMITTED
from ..runner.session import Outcome
from ..schema import ExitCode, Run, Spending, boards_of, worst_exit_code
from ..stats.weighted import suite_summaries
from ..store.baselines import baseline_folder
from ..store.calibration_note import load_note, warnings_of_note
from ..store.files import require_writable
from ..store.finding import find_run, runs_folder
from ..store.journal import write_whole
from ..store.run_folder import WARM_UP, read_run, sample_values, seal_of
from ..store.scatter_file import load_scatter
from ..store.seal import altered_words
from ..verdict.baseline.compare_to_baseline import judge_run, with_verdicts
from ..verdict.baseline.older_run import joined_run
from ..verdict.margins.rule import MarginRule
from ..verdict.margins.support import board_of
from ..verdict.record_validation import load_valid_baseline, require_valid, valid_baseline
from .planning import parse_shard

BOARDS = "boards"
"""The entry of `Environment.state` with the states of the boards, by UUID."""
MOST_AHEAD_S = 300.0
"""A shard made later than this host's clock, by more than these seconds, shows that the clocks differ."""
_JUDGED = (ExitCode.REGRESSION, ExitCode.UNDECIDED)
"""Exit codes that come from verdicts, which the joined record gets anew."""


def join_shards(runs: Sequence[Run], *, now: datetime | None = None, command: str = "") -> Run:
    """One record of all shards, without verdicts.

    Raises:
        UsageError: shards that are missing, double or overlap, that were made of different sources, selections or settings, or by hosts
            whose clocks differ.
    """
    now = now or datetime.now(UTC)
    ordered = sorted(runs, key=lambda run: parse_shard(_shard_of(run)).number)
    _require_all(ordered)
    first = ordered[0]
    for run in ordered[1:]:
        _require_same(first, run)
    warnings = [text for run in ordered for text in _remarks(run, now)]
    boards = boards_of(*(run.environment.device_uuid for run in ordered))
    cases = [msgspec.structs.replace(one, board=board_of(one, run) if len(boards) > 1 else "") for run in ordered for one in run.cases]
    doubled = [key for key, times in Counter(one.case.key for one in cases).items() if times > 1]
    if doubled:
        raise UsageError(f"join: {len(doubled)} cases are in several of the runs: {', '.join(doubled[:4])}; expected shards of one run")
    results = [msgspec.structs.replace(result, verdict=None) for run in ordered for result in run.results]
    kernels = {kernel.id: kernel for run in ordered for kernel in run.kernels}
    return msgspec.structs.replace(
        first,
        id=secrets.token_hex(4),
        created=now.isoformat(timespec="seconds"),
        command=command or first.command,
        shard="",
        environment=msgspec.structs.replace(first.environment, device_uuid=",".join(boards), state=_states(ordered)),
        suites=suite_summaries(cases, results),
        cases=cases,
        kernels=list(kernels.values()),
        results=results,
        spending=_spending(ordered),
        resumed_from=[one for run in ordered for one in run.resumed_from],
        parts=tuple(joined_run(run) for run in ordered),
        warnings=list(dict.fromkeys(warnings)),
        complete=all(run.complete for run in ordered),
        exit_code=worst_exit_code([code for run in ordered if (code := ExitCode(run.exit_code)) not in _JUDGED]),
    )


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which shards are joined, and what the whole is judged by."""

    project: Project
    runs: Sequence[str]
    """Folders, run ids, or the starts of ids."""
    out: Path | None = None
    baseline: str | None = None
    margin: float | None = None
    command: str = ""


def join_runs(request: JoinRequest) -> Outcome[Run]:
    """Join the shards, judge the whole, and write it; the shards stay as they are.

    Raises:
        UsageError: as `join_shards`; a run or the baseline is unknown.
        AlteredRecordError: a shard does not fit its seal.
        RunRecordError: a record cannot be read, or holds impossible figures.
    """
    project = request.project
    parent = request.out if request.out is not None else runs_folder(project)
    require_writable(parent, instead="name another with --out DIR")
    folders = [find_run(one, project) for one in request.runs]
    runs = [read_run(folder) for folder in folders]
    for folder, run in zip(folders, runs, strict=True):
        require_valid(run)
        if altered := seal_of(folder).altered:
            raise AlteredRecordError(f"join: {altered_words(f'run {run.id}', altered, folder)}")
    whole = join_shards(runs, command=request.command)
    device = whole.environment.device_name
    if request.baseline is not None:
        where = find_run(request.baseline, project)
        baseline: Run | None = valid_baseline(where)
    else:
        where = baseline_folder(project.results, device_slug(device))
        baseline = load_valid_baseline(project.results, device)
    told = [*warnings_of_note(project.results, device)]
    if baseline is not None and (altered := seal_of(where).altered):
        told.append(altered_words("the baseline", altered, where))
    whole = msgspec.structs.replace(
        whole, calibration=load_note(project.results, device), warnings=list(dict.fromkeys([*whole.warnings, *told]))
    )
    rule = MarginRule(request.margin, scatter=load_scatter(project.results, device), device=whole.environment.device)
    judged = with_verdicts(whole, judge_run(whole, baseline, rule))
    folder = write_whole(parent, judged, [sample for one in folders for sample in sample_values(one)])
    return Outcome(record=judged, folder=folder)


def _shard_of(run: Run) -> str:
    if run.shard:
        return run.shard
    what = "a joined record" if run.joined or run.parts else "no shard"
    raise UsageError(f"join: run {run.id} is {what}; expected runs that were made with --shard I/N")


def _require_all(runs: Sequence[Run]) -> None:
    """Refuse anything but every shard of one run, each once."""
    shards = [parse_shard(run.shard) for run in runs]
    if not shards:
        raise UsageError("join: found no run, expected the shards of one run")
    counts = sorted({shard.parts for shard in shards})
    if len(counts) > 1:
        raise UsageError(f"join: the runs are shards of {' and of '.join(map(str, counts))}; expected shards of one run")
    numbers = Counter(shard.number for shard in shards)
    if twice := [number for number, times in numbers.items() if times > 1]:
        ids = ", ".join(run.id for run, shard in zip(runs, shards, strict=True) if shard.number == twice[0])
        raise UsageError(f"join: shard {twice[0]}/{counts[0]} was measured several times, in runs {ids}; name one of them")
    if missing := [f"{number}/{counts[0]}" for number in range(1, counts[0] + 1) if number not in numbers]:
        raise UsageError(f"join: shards {', '.join(missing)} are missing; measure them with `fusebench run --shard {missing[0]}`")


def _require_same(first: Run, run: Run) -> None:
    """Refuse shards that were not made of the same sources, selection and settings, on the same model of device."""
    names = [name for name in FINGERPRINT if name not in ("device_uuid", "cpu" if first.environment.device == "cuda" else "")]
    pairs: list[tuple[str, Any, Any]] = [("schema version", first.schema_version, run.schema_version)]
    pairs += [(name, getattr(first.environment, name), getattr(run.environment, name)) for name in names]
    pairs += [("suites", first.selected, run.selected), ("--op", first.selected_op, run.selected_op)]
    pairs += [("--case", first.selected_cases, run.selected_cases), ("--kernel", first.selected_kernels, run.selected_kernels)]
    pairs += [("sampling plan", first.plan, run.plan), ("timer", first.timer, run.timer)]
    different = [UNCOMMITTED if name == "git_dirty" else f"{name} {old!s} -> {new!s}" for name, old, new in pairs if old != new]
    if different:
        raise UsageError(
            f"join: shards {first.shard} (run {first.id}) and {run.shard} (run {run.id}) are not of one kind: {'; '.join(different)}; "
            "measure both with the same sources, selection and settings"
        )


def _remarks(run: Run, now: datetime) -> list[str]:
    ahead = (datetime.fromisoformat(run.created) - now).total_seconds()
    if ahead > MOST_AHEAD_S:
        raise UsageError(
            f"join: run {run.id} was made at {run.created}, {ahead:.0f} s after the clock of this host "
            f"({now.isoformat(timespec='seconds')}); the clocks of the hosts differ: set them (NTP), and join again; the runs are kept"
        )
    dirty = [f"shard {run.shard} was measured with uncommitted changes"] if run.environment.git_dirty else []
    return [*run.warnings, *dirty, *([] if run.complete else [f"shard {run.shard} is incomplete: it was stopped before its end"])]


def _states(runs: Sequence[Run]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    warm_up: dict[str, Any] = {}
    for run in runs:
        state = dict(run.environment.state)
        warm_up |= state.pop(WARM_UP, None) or {}
        own = state.pop(BOARDS, None)
        states |= own if own is not None else {run.environment.device_uuid or run.id: state}
    return {BOARDS: states, WARM_UP: warm_up}


def _spending(runs: Sequence[Run]) -> Spending | None:
    """The seconds of all shards together."""
    known = [run.spending for run in runs if run.spending is not None]
    if not known:
        return None
    phases, kernels = Counter[str](), Counter[str]()
    for one in known:
        phases.update(one.phases_s)
        kernels.update(one.kernels_s)
    total = sum(one.total_s for one in known)
    return Spending(total_s=total, phases_s=dict(phases.most_common()), kernels_s=dict(kernels.most_common()))
