"""`fusebench ncu`: hardware counters of chosen kernels and cases, and version beside version."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import FusebenchError, UsageError
from ..schema import CacheState, ExitCode
from .ab_command import BaseKernelsOption, BaseOption, ExactOption, other_side
from .options import CaseOption, DeviceOption, JsonOption, KernelOption, KernelsOption, OpOption, SuiteOption, TimeoutOption
from .run_command import OutOption, WaitOption, command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..counters.capturing import Settings
    from ..counters.records import CounterRun
    from ..device import Device
    from ..device.nsight import NsightProbe
    from ..registry import Collection
    from ..runner.count.session import CountingSession
    from ..schema import Case
    from .selection import Selection


class SetName(StrEnum):
    """The sets of `counters.metric_sets`, spelled here so that `--help` imports nothing of them."""

    QUICK = "quick"
    MEMORY = "memory"
    FULL = "full"


SetOption = Annotated[
    SetName | None,
    typer.Option(
        "--set",
        help="What is read: `quick` (time, occupancy, instructions, memory traffic), `memory` (and the caches), `full` (and stall reasons; "
        "the report opens complete in Nsight Compute's viewer).  `full` unless --metrics names some.",
        show_default=False,
    ),
]
MetricsOption = Annotated[
    list[str] | None,
    typer.Option("--metrics", metavar="NAME[,NAME…]", help="These of Nsight Compute's metrics instead of a set; repeatable."),
]
CacheOption = Annotated[
    CacheState,
    typer.Option("--cache", help="`cold`: Nsight Compute flushes the caches before every pass over a launch; `warm`: it leaves them."),
]
AgainstOption = Annotated[
    str | None,
    typer.Option("--against", metavar="RUN", help="Put an earlier `fusebench ncu` beside this one: a folder, an id or `latest`."),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN|REPORT",
        help="Capture nothing and show a stored run (a folder, an id or `latest`), or one .ncu-rep of it.  With --set or --metrics the "
        "values are read again from its reports, which hold more than the record.",
    ),
]


def ncu(
    *,
    suite: SuiteOption = None,
    op: OpOption = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    metric_set: SetOption = None,
    metrics: MetricsOption = None,
    cache: CacheOption = CacheState.COLD,
    base: BaseOption = None,
    exact: ExactOption = False,
    base_kernels: BaseKernelsOption = None,
    against: AgainstOption = None,
    stored: FromOption = None,
    device: DeviceOption = "auto",
    kernels: KernelsOption = None,
    out: OutOption = None,
    wait: WaitOption = 0.0,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Read hardware counters with Nsight Compute: one call of every chosen kernel on every chosen case.

    Without --kernel these are the project's own fused kernels and split chains in Triton and CUDA C++; others are captured when they are
    named.  Versions of a kernel are shown side by side, and with --base, --base-kernels or --against the same kernel of two sides.

    Examples:

      fusebench ncu --suite qknorm_rope --case flux_1024

      fusebench ncu --kernel 'norm_scale_shift_gate_select01/fused_triton@*'

      fusebench ncu --suite qknorm_rope --case flux_1024 --kernel fused_triton --base main

      fusebench ncu --from latest --metrics lts__t_requests.sum

    The run's folder, which ends in _ncu, holds ncu.json, report.md and a .ncu-rep for Nsight Compute's viewer per kernel and case.

    Exit codes: 0 all captured; 3 counters cannot be read here (with the remedy), or the device is busy; 5 a kernel failed.
    """
    set_name, names = _what_to_read(metric_set, metrics)
    if sum(given is not None for given in (base, base_kernels, against)) > 1:
        raise UsageError("--base, --base-kernels and --against each name another side to compare with; pass one of them")
    if stored is not None:
        _show_stored(stored, against, (set_name, names), reread=metric_set is not None or metrics is not None, json=json)
        return

    from ..counters.capturing import settings_for
    from ..store.finding import runs_folder
    from .ncu_device import hold, look_for_device
    from .ncu_output import show
    from .ncu_stored import find_counters
    from .selection import resolve_selection

    if not suite and op is None and kernel is not None and "/" in kernel:
        op = kernel.partition("/")[0]  # `op/name@version` says which op, and so which suite
    looked = look_for_device(device)
    selection = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels, narrow=True)
    earlier = find_counters(against, selection.project) if against is not None else None
    fit = looked.result()
    target, probe = fit.device, fit.probe
    settings = settings_for(target, probe, metric_set=set_name, metrics=names, cache=cache, silence_s=kernel_timeout)
    folder = out if out is not None else runs_folder(selection.project)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fusebench-ncu-")))
        side = _other_kernels(selection, base, base_kernels, exact, scratch / "base")
        warnings = stack.enter_context(hold(fit, wait_s=wait))
        if metrics is not None:
            _require_known(settings)
        session = _session(selection, target, settings, probe, side=side, reports=scratch)
        for warning in (*target.warnings, *warnings):
            session.warn(warning)
        record, written = _captured(session, selection.cases, folder, scratch, earlier)
    show(record, written, session.exit_code, json=json)
    raise typer.Exit(session.exit_code)


def _captured(
    session: CountingSession, cases: Sequence[Case], folder: Path, reports: Path, earlier: CounterRun | None
) -> tuple[CounterRun, Path]:
    """The finished run and its folder; an interrupted one is kept too, before the interruption goes on."""
    import msgspec

    from ..report.counters_markdown import counters_markdown
    from ..runner.count.stored import beside
    from ..store.counter_folder import write_counters
    from .output import remark

    interruption: KeyboardInterrupt | FusebenchError | None = None
    try:
        session.run(cases)
    except (KeyboardInterrupt, FusebenchError) as error:
        interruption = error
    record = session.record() if earlier is None else beside(session.record(), earlier)
    if interruption is not None and not session.begun:
        raise interruption
    if isinstance(interruption, FusebenchError):
        record = msgspec.structs.replace(record, warnings=(*record.warnings, str(interruption)))
    written = write_counters(folder, record, reports, counters_markdown(record))
    if interruption is not None:
        remark("note", f"interrupted; what was captured is kept, marked incomplete, in {written}")
        raise interruption
    return record, written


def _show_stored(text: str, against: str | None, what: tuple[str, tuple[str, ...]], *, reread: bool, json: bool) -> None:
    from ..config import find_project
    from .ncu_output import show
    from .ncu_stored import put_beside, stored_run

    project = find_project()
    record = stored_run(text, project, what, reread=reread)
    show(put_beside(record, against, project), None, ExitCode.PASS, json=json)


def _what_to_read(metric_set: SetName | None, metrics: Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
    """The set's name and its metrics."""
    from ..counters.metric_sets import NAMED, SETS, MetricSet, split_names

    if metrics is not None:
        if metric_set is not None:
            raise UsageError(f"--set {metric_set} and --metrics: pass one of them; a set is a list of metrics itself")
        return NAMED, split_names(metrics)
    chosen = MetricSet(metric_set or SetName.FULL)
    return chosen.value, SETS[chosen]


def _require_known(settings: Settings) -> None:
    from ..counters.capturing import listed_metrics
    from ..counters.metric_sets import require_known

    require_known(settings.metrics, listed_metrics(settings))


def _other_kernels(
    selection: Selection, base: str | None, base_kernels: Path | None, exact: bool, scratch: Path
) -> tuple[Collection, str] | None:
    """The other side's kernels and what it is; None without one."""
    from ..registry import load_collection
    from .output import remark

    if base is None and base_kernels is None:
        return None
    other, roots = other_side(selection, base, base_kernels, exact, scratch)
    for note in other.notes:
        remark("note", note)
    only = {case.op for case in selection.cases}
    loaded = load_collection(roots, entry_points=False, only=only, kernel=selection.exact_kernel, operators=False)
    return loaded, f"commit {other.commit[:12]}" if other.commit else f"folder {other.asked}"


def _session(
    selection: Selection, target: Device, settings: Settings, probe: NsightProbe, *, side: tuple[Collection, str] | None, reports: Path
) -> CountingSession:
    from ..runner.count.session import CountingOptions, CountingSession
    from .progress import make_reporter

    kernels, name = side if side is not None else (None, "")
    options = CountingOptions(settings=settings, ncu_version=probe.version, kernel=selection.kernel, command=command_line(), base=name)
    return CountingSession(selection.collection, target, selection.project.root, options, make_reporter(), reports=reports, base=kernels)
