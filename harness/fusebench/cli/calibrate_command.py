"""`fusebench calibrate`: the false-alarm rate of verdicts on this machine, and the smallest slowdown that they find."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import DeviceUnfitError, UsageError
from ..schema import CacheState
from ..verdict.calibration import FEWEST_TRIALS
from .shared.measuring_options import WaitOption
from .shared.options import (
    BoardsOption,
    CaseOption,
    JsonOption,
    KernelOption,
    KernelsOption,
    OpOption,
    SuiteOption,
    TimeoutOption,
    a_number,
    option_names,
)

if TYPE_CHECKING:
    from ..config import Project
    from ..runner.calibrate.targets import CalibrationTarget
    from ..store.calibrations import CalibrationRecord

GPU_SLOWDOWNS = (0.005, 0.01, 0.02, 0.05)
CPU_SLOWDOWNS = (0.15, 0.3, 0.6)
"""A CPU's margin is a tenth of the time: smaller slowdowns pass by design."""
PASSES = 1
IDENTICAL = 16
"""A/A pairs in each pass.  More targets tell more than more pairs of one: what is compared on one case comes out alike."""
INJECTED = 2
"""Pairs of each slowdown in each pass, at least."""
QUICK_IDENTICAL, QUICK_INJECTED, QUICK_SIZES = 8, 1, 2
"""With --quick: A/A pairs of a target, pairs of a slowdown, and slowdowns, the largest.

A visit costs timed calls (arms x rounds x replicates) and, for each fresh process, a warm-up. With 24 A/A pairs and three pairs of four
slowdowns a target has 72 arms to judge, its pilot 34, and each of five processes some 34 more. Here it has 20 arms, its pilot 18 at most,
and each process some ten. The looks, the margin and the five processes stay: fewer comparisons, each as strict as in `ab`.
"""


class BuiltIn(StrEnum):
    """The measured kernels of fusebench's own, by the means of their slowdown."""

    ALL = "all"
    ROWS = "rows"
    DELAY = "delay"
    CHAIN = "chain"
    NONE = "none"

    @property
    def ways(self) -> tuple[str, ...]:
        every = tuple(one.value for one in BuiltIn if one not in (BuiltIn.ALL, BuiltIn.NONE))
        return {BuiltIn.ALL: every, BuiltIn.NONE: ()}.get(self, (self.value,))


SUITE = "calibration"
"""The default suite on a GPU, if the project has it: every op, from 2 to 200 us."""
TRUTH_REPLICATES = 12
"""In each of the five fresh processes: 60 replicates measure a ground truth at 12 us to 0.07 % (one standard error)."""

WITH_JOIN = {"join", "json"}
"""The options that --join accepts; it measures nothing."""


def calibrate(
    context: typer.Context,
    *,
    suite: SuiteOption = None,
    op: OpOption = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    device: BoardsOption = "auto",
    kernels: KernelsOption = None,
    cache: Annotated[CacheState | None, typer.Option("--cache", help="cold on a GPU and warm on a CPU unless given.")] = None,
    timer: Annotated[str, typer.Option("--timer", metavar="auto|cupti|cuda_events|cuda_graph|host", help="Timer.")] = "auto",
    passes: Annotated[
        int | None, typer.Option("--passes", metavar="N", min=1, help="Measurements of every target.", show_default=False)
    ] = None,
    identical: Annotated[
        int | None,
        typer.Option(
            "--identical",
            metavar="N",
            min=1,
            show_default=False,
            help=f"A/A pairs in each measurement; {IDENTICAL}, or {QUICK_IDENTICAL} with --quick.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A quick look in well under a minute, to see that it works: one pass over one built-in kernel with more rows and one with "
            f"a delay, {QUICK_IDENTICAL} A/A pairs each and the {QUICK_SIZES} largest slowdowns once. A suite joins only where named. "
            "Each verdict is as strict as ever, but there are too few for a claim.",
        ),
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            metavar="SECONDS",
            min=1.0,
            callback=a_number,
            help="Take no longer than about this; later measurements are left out. With --add, targets that the stored calibration knows "
            "least come first: several calls make a whole one.",
        ),
    ] = None,
    injected: Annotated[
        int | None,
        typer.Option(
            "--planted",
            metavar="N",
            min=1,
            show_default=False,
            help=f"Pairs of each injected slowdown in each measurement. Unless given {INJECTED} ({QUICK_INJECTED} with --quick), and "
            f"without --quick more where fewer than {FEWEST_TRIALS} trials of a class of calls, too few to be claimed, would come of it.",
        ),
    ] = None,
    built_in: Annotated[
        BuiltIn,
        typer.Option(
            "--built-in",
            help="Which of fusebench's own kernels of 2 to 200 us are measured: slowed down by more rows, by a delay within the launch, or "
            "by a second launch that waits.",
        ),
    ] = BuiltIn.ALL,
    add: Annotated[bool, typer.Option("--add", help="Add to the stored calibration instead of replacing it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a stored calibration that stands on more comparisons.")] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="DIR",
            show_default=False,
            help="Go on with one that was stopped: its folder in results/calibration/unfinished, or `latest`.  Repeat its command with "
            "this option: its finished visits are taken over; device, versions, kernels and settings must be the same.",
        ),
    ] = None,
    join: Annotated[
        list[Path] | None,
        typer.Option(
            "--join",
            metavar="FILE",
            show_default=False,
            help="Measure nothing: add the calibration in FILE, made elsewhere on a device of the same model; repeatable.",
        ),
    ] = None,
    wait: WaitOption = 0.0,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Measure how often a verdict is wrong on this machine, and the smallest slowdown that is found.

    Kernels against themselves, and kernels slowed down by known shares (by more rows, or by a wait on the device), go through the whole
    pipeline of `ab`: sequential measurement, confirmation in fresh processes, correction for the number of comparisons.  The targets are
    fusebench's own kernels of 2 to 200 us, and of each case of SELECTION the newest kernel of each role and language, fused launches and
    split chains: on a GPU the suite `calibration` unless given.

    The result lies in results/calibration/ and stands in every report of the device.  It replaces an earlier one, but not one that stands
    on more comparisons, unless told with --force.  Several GPUs of one model can be calibrated at the
    same time, with --add and a --device each; those on other machines are put together with --join.

    With --device all, or a list such as cuda:0,1, it measures something else: whether the GPUs of this host disturb each other when all
    are busy.  `run --device all` measures on no more of them at once than did no harm.

    The whole takes an hour of an H200; the command says by how much it reckons.  --budget ends it earlier, and --quick takes well under a
    minute.
    """
    if join:
        _join(context, join, json)
        return
    from ..device import resolve_device
    from ..device.boards import names_boards
    from ..device.toolchain import require_torch_for
    from ..timing.timers.select import require_timer

    require_timer(timer)
    if names_boards(device):
        from .shared.interference_work import show_interference

        show_interference(context, device, suite=suite, op=op, kernel=kernel, case=case, kernels=kernels, json=json)
        return
    target = resolve_device(device)
    require_timer(timer, target.kind)
    require_torch_for(target)
    selected, project, roots, excluded = _selected(
        suite=suite, op=op, kernel=kernel, case=case, kernels=kernels, device_kind=target.kind, default=target.kind == "cuda" and not quick
    )

    import msgspec

    from ..runner.ab.strategy import default_looks
    from ..runner.calibrate.command import CalibrationRequest, measure_calibration, planned_words
    from ..runner.calibrate.targets import built_in_targets, one_of_each
    from ..runner.calibrate.visit import CalibrationOptions
    from ..runner.run.options import default_plan
    from ..verdict.conclusion import PROCESSES
    from .shared.output import command_line, remark
    from .shared.progress import make_reporter

    own = built_in_targets(target.kind, ("rows", "delay") if quick and built_in is BuiltIn.ALL else built_in.ways)
    targets = [*selected, *(one_of_each(own) if quick else own)]
    if not targets:
        raise UsageError("--built-in none, and no case of SELECTION has a kernel that can be timed here: nothing to calibrate with")
    state = cache or (CacheState.COLD if target.kind == "cuda" else CacheState.WARM)
    slowdowns = GPU_SLOWDOWNS if target.kind == "cuda" else CPU_SLOWDOWNS
    request = CalibrationRequest(
        project=project,
        command=command_line(),
        roots=roots,
        excluded=excluded,
        targets=targets,
        device=target,
        timer=timer,
        options=CalibrationOptions(
            plan=msgspec.structs.replace(default_plan(target.kind, state), replicates=TRUTH_REPLICATES),
            looks=default_looks(target.kind),
            slowdowns=slowdowns[-QUICK_SIZES:] if quick else slowdowns,
            passes=passes or (1 if quick else PASSES),
            identical=identical or (QUICK_IDENTICAL if quick else IDENTICAL),
            injected=injected or (QUICK_INJECTED if quick else INJECTED),
            trials=FEWEST_TRIALS if injected is None and not quick else 0,
            processes=PROCESSES,
            pilots_ahead=budget is None,
        ),
        budget_s=budget,
        wait_s=wait,
        silence_s=kernel_timeout,
        add=add,
        force=force,
        resume=resume,
    )
    remark("note", planned_words(request))
    found, record, file = measure_calibration(request, make_reporter())
    done = f"{len(found.trials)} comparisons in {found.seconds:.0f} s"
    if quick:
        equal = sum(one.place.nominal == 0 for one in found.trials)
        done = (
            f"a quick look, on {equal} A/A comparisons and {len(found.trials) - equal} injected slowdowns, too few for a claim: "
            f"`fusebench calibrate` makes one; {done}"
        )
    _show(record, file, done, json=json, quick=quick)
    if found.unfit:
        raise DeviceUnfitError(found.unfit)


def _join(context: typer.Context, files: list[Path], json: bool) -> None:
    from ..runner.calibrate.command import join_files

    _require_nothing_to_measure(context)
    record, file = join_files(files)
    _show(record, file, f"{len(record.trials)} comparisons in {len(record.sessions)} sessions", json=json)


def _require_nothing_to_measure(context: typer.Context) -> None:
    """Raise UsageError where an option of the measurement was given too."""
    if given := [name for name in option_names(context) if name not in WITH_JOIN]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"--join measures nothing, so {options} cannot stand beside it; leave it out, or leave --join out")


def _show(record: CalibrationRecord, file: Path, done: str, *, json: bool, quick: bool = False) -> None:
    """Print the stored record, after a line that says what was `done`."""
    from ..report.calibration_table import calibration_document, calibration_report
    from ..runner.calibrate.summary import summary_of
    from .shared.output import print_json

    summary = summary_of(record)
    if json:
        print_json(calibration_document(record, summary, str(file)) | {"quick": quick, "session": done})
    else:
        typer.echo(calibration_report(record, summary))
        typer.echo(f"{done}; calibration: {file}")


def _selected(
    *,
    suite: list[str] | None,
    op: str | None,
    kernel: str | None,
    case: str | None,
    kernels: list[Path] | None,
    device_kind: str,
    default: bool,
) -> tuple[list[CalibrationTarget], Project, tuple[Path, ...], Mapping[str, str]]:
    """The targets that the SELECTION options add, the project, its kernels folders where any is needed, and the files that are left out.

    Args:
        default: whether the suite `calibration` is taken where nothing is selected.
    """
    from ..config import find_project
    from ..suites import suite_names

    if suite is None and op is None:
        if kernel is not None or case is not None:
            raise UsageError("--kernel and --case choose among the cases of a suite; add --suite NAME or --op NAME")
        project = find_project()
        if not default or SUITE not in suite_names(project):
            return [], project, (), {}
        suite = [SUITE]
    from .shared.selection import resolve_selection

    selection = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels)

    from ..runner.calibrate.targets import targets_of

    found = targets_of(selection.collection, selection.cases, device_kind, kernel)
    return found, selection.project, selection.collection.roots, selection.collection.excluded
