"""Baselines: promoted runs, one per device model, under `results/baselines/<device>/`.

A baseline is a copy of a run folder (record, samples, report, plot), in the newest schema. `gate` compares runs with it, so promoting an
untrustworthy run needs force.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import RunRecordError
from ..naming import device_slug
from ..schema import FAILED_STATUSES, ExitCode, Run, Status
from .files import folder_in_making, held_alone, write_file
from .run_folder import RUN_FILE, SAMPLES_FILE, read_run, read_samples, seal_of, write_record

VIEWS = ("report.md", "speedup.png")
"""Reports that a baseline keeps if the run folder holds them."""
PROMOTIONS_FILE = "promotions.json"
"""File beside a baseline's record with every promotion that needed a reason, oldest first; absent without such promotions."""
STATIC_FOLDER = "static"
"""Folder beside the device models' folders with the baselines of static evidence, which hold no runs (see static_baselines.py)."""


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """A promotion with its reason: one entry of `promotions.json`, which later baselines of the device model keep."""

    run: str
    """Id of the run that was promoted."""
    replaced: str
    """Id of the baseline that it replaced; empty for the first one."""
    created: str
    """When the run was made: UTC, ISO 8601."""
    reason: str
    accepted: list[str]
    """The accepted losses of speed or accuracy, one sentence each."""


def baseline_folder(results: Path, slug: str) -> Path:
    """The folder of the baseline of the device model `slug` (see `fusebench.naming.device_slug`)."""
    return results / "baselines" / slug


def objections(run: Run, folder: Path, *, added: bool = False) -> list[str]:
    """Reasons against `run`, stored in `folder`, as a baseline; empty without any.

    Args:
        added: whether it is added to a stored baseline, which keeps the cases that the run was stopped before.
    """
    found = []
    if altered := seal_of(folder).altered:
        found.append(f"it was altered after it was written: {altered}")
    if not run.joined and not (folder / SAMPLES_FILE).is_file():
        found.append(f"its raw samples are missing ({SAMPLES_FILE}): its figures cannot be computed anew")
    if not run.complete and not added:
        found.append("it is incomplete: it was stopped, or its budget ended, before every case was measured and every suspect remeasured")
    failed = [result for result in run.results if result.status in FAILED_STATUSES and result.role_gates]
    if failed:
        named = ", ".join(f"{result.kernel} on {result.case} ({result.status})" for result in failed[:4])
        found.append(f"{len(failed)} kernels failed: {named}{', …' if len(failed) > 4 else ''}")
    if run.exit_code == ExitCode.DEVICE_UNFIT:
        found.append("the device was not fit to measure (exit code 3)")
    warm = [summary.case.key for summary in run.cases if summary.not_cold]
    if warm:
        found.append(f"{len(warm)} cases are labelled cold and are not: {', '.join(warm[:4])}{', …' if len(warm) > 4 else ''}")
    doubted = [result for result in run.results if result.suspicious]
    if doubted:
        named = ", ".join(f"{result.kernel} on {result.case}" for result in doubted[:4])
        found.append(f"{len(doubted)} times are suspicious: {named}{', …' if len(doubted) > 4 else ''}")
    if run.environment.git_dirty:
        found.append(f"the working tree had uncommitted changes on {run.environment.git_commit[:12] or 'an unknown commit'}")
    return found


def promote(
    run_folder: Path,
    results: Path,
    *,
    joined: Run | None = None,
    others: Sequence[Path] = (),
    grown: Run | None = None,
    force: bool = False,
    reason: str = "",
    accepted: Sequence[str] = (),
) -> Path:
    """Copy the run to the baseline of its device model, replacing the one there, and return the baseline's folder.

    With `joined`, that record is the baseline: the run's with the times of several, `others` being the folders of the older ones.  Raw
    samples and reports are of one run, so such a baseline has neither.  `grown` is the stored baseline that `joined` was made from, if it
    was, as it then was: what another promotion has put in its place would be lost.

    The copy is written in the newest schema. The old baseline moves aside only after the new copy is complete and has been read back. A
    `reason`, with the changes that it accepts, is appended to `promotions.json`.

    Raises:
        RunRecordError: the run cannot be read whole, holds no measurement, or has `objections` and `force` is not set; or another baseline
            has taken the place of `grown`.
    """
    run = read_run(run_folder)
    if not any(result.status is Status.MEASURED for result in run.results):
        raise RunRecordError(f"{run_folder}: run {run.id} measured nothing; a baseline needs at least one measured kernel")
    every = [(run_folder, run), *((other, read_run(other)) for other in others)]
    against = {one.id: objections(one, folder, added=grown is not None and one.id != grown.id) for folder, one in every}
    unfit = [f"run {name} is not fit to be a baseline: {'; '.join(reasons)}" for name, reasons in against.items() if reasons]
    if unfit and not force:
        if grown is not None and against[grown.id]:
            instead = f"Run {grown.id} is the stored baseline: promote the others without it, and they replace it"
            raise RunRecordError(f"{'; '.join(unfit)}. {instead}; or promote with --force")
        instead = f"Leave {'it' if len(unfit) == 1 else 'them'} out, run" if others else "Run"
        raise RunRecordError(f"{'; '.join(unfit)}. {instead} again, or promote with --force")
    kept = (SAMPLES_FILE, *VIEWS) if joined is None else ()
    run = joined or run
    target = baseline_folder(results, device_slug(run.environment.device_name))
    if target.exists() and run_folder.resolve() == target.resolve():
        raise RunRecordError(f"{run_folder}: this is the baseline already")
    # Two promotions at once would both keep the lines of one and the same baseline, and lose each other's.
    with held_alone(target), folder_in_making(target) as making:
        if grown is not None and (read_run(target) if target.exists() else None) != grown:
            raise RunRecordError(f"{target}: this baseline was replaced while runs were added to it; nothing was changed. Promote again")
        for name in kept:
            if (run_folder / name).exists():
                shutil.copyfile(run_folder / name, making / name)
        write_record(making, run)
        entries = promotions(target)
        if reason:
            replaced = read_run(target).id if target.exists() else ""
            entries.append(Promotion(run=run.id, replaced=replaced, created=run.created, reason=reason, accepted=list(accepted)))
        if entries:
            write_file(making / PROMOTIONS_FILE, msgspec.json.format(msgspec.json.encode(entries), indent=1) + b"\n")
        read_run(making)
        if (making / SAMPLES_FILE).exists():
            read_samples(making)
        _swap(making, target)
    return target


def promotions(folder: Path) -> list[Promotion]:
    """The promotions that needed a reason, of the baseline in `folder` and of its predecessors.

    Raises:
        RunRecordError: the file cannot be read.
    """
    file = folder / PROMOTIONS_FILE
    if not file.exists():
        return []
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Promotion])
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise RunRecordError(f"{file}: cannot be read: {error}; restore it from git") from error


def load_baseline(results: Path, device_name: str) -> Run | None:
    """The baseline of the device model, or None when there is none.

    Raises:
        RunRecordError: there is one, and it cannot be read.
    """
    return _read(baseline_folder(results, device_slug(device_name)))


def list_baselines(results: Path) -> list[tuple[Path, Run]]:
    """Every baseline with its folder, by folder name.

    Raises:
        RunRecordError: one of them cannot be read.
    """
    parent = results / "baselines"
    found = parent.iterdir() if parent.is_dir() else ()
    folders = sorted(folder for folder in found if folder.is_dir() and folder.name != STATIC_FOLDER and not folder.name.startswith("."))
    return [(folder, run) for folder in folders if (run := _read(folder)) is not None]


def _read(folder: Path) -> Run | None:
    """The baseline in `folder`; None without one, and for an empty one, which some ways to copy a project leave."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if folder.is_dir() and not (folder / RUN_FILE).exists():
        raise RunRecordError(f"{folder}: a baseline without {RUN_FILE}; restore it from git, or delete the folder and promote another run")
    return read_run(folder)


def _swap(making: Path, target: Path) -> None:
    aside = target.with_name(f".{target.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    try:
        making.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)
