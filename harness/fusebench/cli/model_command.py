"""`fusebench model`: a model's denoise step, as diffusers runs it against fused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .shared.measuring_options import OutOption, WaitOption
from .shared.options import DeviceOption, JsonOption, KernelsOption
from .shared.output import command_line, say_what_is_kept

if TYPE_CHECKING:
    from ..config import Project
    from ..schema import Case
    from ..schema.models import ModelRecord
    from ..suites import Ops

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Model configuration: the name of its suite under `models/`.")]
StepsOption = Annotated[
    int,
    typer.Option("--steps", metavar="N", min=0, help="Denoise steps of the loop that is timed and whose drift is followed; 0 for none."),
]
LayersOption = Annotated[
    list[str] | None,
    typer.Option("--layers", metavar="STACK=N", help="Run N blocks of a stack, such as num_layers=4; repeatable.", show_default=False),
]
VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="NAME",
        help="split (as diffusers runs it), fused, compiled (torch.compile), fused_compiled, peer:LIBRARY (another library's "
        "kernels), each also in a CUDA graph with _graph; repeatable.  By default all but peers on a GPU, split and fused on a CPU.",
        show_default=False,
    ),
]
TinyOption = Annotated[bool, typer.Option("--tiny", help="A configuration of few and narrow blocks, which a CPU runs in seconds.")]
WeightsOption = Annotated[
    Path | None,
    typer.Option("--weights", metavar="FOLDER", help="Local folder with the transformer's own weights; random ones without it."),
]
BUDGET_S = 90.0
TINY_BUDGET_S = 2.0
"""A tiny configuration's times say nothing; its substitution and its output are checked all the same."""
StepBudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="SECONDS",
        min=1.0,
        help=f"Seconds of timing in the first process ({BUDGET_S:.0f}, with --tiny {TINY_BUDGET_S:.0f}): two thirds for steps, at most one "
        "third for the denoise loop.  Building and compiling the variants, drift, one profile per variant, and the fresh process of "
        "--confirm take their time beside it.",
        show_default=False,
    ),
]
ConfirmOption = Annotated[
    bool,
    typer.Option("--confirm/--no-confirm", help="Time again in a fresh process, which builds all anew and times for half of --budget."),
]


def model(
    *,
    name: NameArgument,
    steps: StepsOption = 4,
    layers: LayersOption = None,
    variant: VariantOption = None,
    tiny: TinyOption = False,
    weights: WeightsOption = None,
    device: DeviceOption = "auto",
    kernels: KernelsOption = None,
    budget: StepBudgetOption = None,
    confirm: ConfirmOption = True,
    out: OutOption = None,
    wait: WaitOption = 0.0,
    json: JsonOption = False,
) -> None:
    """Measure one denoise step of a model: as diffusers runs it, with fused kernels, compiled, and in CUDA graphs.

    Weights are random unless --weights names a folder; nothing is downloaded.  Every op's calls are counted, the step is taken apart by
    stage, and the latents of the fused model are followed over --steps steps.

    Ctrl-C or SIGTERM ends it early; the record then holds what was measured, and names what is missing.

    Examples:

      fusebench model flux1_dev --tiny --device cpu

      fusebench model wan2_1_t2v_14b --layers num_layers=4 --variant split --variant fused

    Exit codes: 0 all well; 1 slower, or drifting; 2 usage; 3 the device is unfit; 4 undecided; 5 a variant or the substitution fails.
    """
    from ..models.catalogue import load_model
    from ..models.variants import default_variants, parse_variant

    found = load_model(name)
    cut = parse_layers(layers or [])
    for one in variant or ():
        parse_variant(one)
    from ..models.building import full_config

    full_config(found, tiny=tiny, layers=cut)

    from ..device import resolve_device
    from ..device.toolchain import require_torch_for
    from ..models.command import ModelRequest, measure_model
    from ..models.work import ModelTask
    from .shared.output import print_json, remark
    from .shared.progress import make_reporter
    from .shared.selection import load_project

    target = resolve_device(device)
    require_torch_for(target)
    project, collection = load_project(kernels, load_kernels=False)
    task = ModelTask(
        model=name,
        device=target.torch_name,
        uuid=target.uuid,
        variants=tuple(dict.fromkeys(variant or default_variants(target.kind))),
        kernels=tuple(str(root) for root in collection.roots),
        tiny=tiny,
        layers=cut,
        weights="" if weights is None else str(weights),
        steps=steps,
        budget_s=budget if budget is not None else TINY_BUDGET_S if tiny else BUDGET_S,
        cases=() if tiny else _suite_cases(name, project, collection.ops),
    )
    request = ModelRequest(
        project=project, model=found, device=target, task=task, confirm=confirm, wait_s=wait, out=out, command=command_line()
    )
    reporter = make_reporter()
    reporter.begin()
    try:
        outcome = measure_model(request, reporter)
    finally:
        reporter.end()
    record, folder = outcome.record, outcome.folder
    if outcome.interruption is not None:
        say_what_is_kept(outcome)
    try:
        _write_report(record, folder)
    except OSError as error:  # a full disk; the record itself is whole
        remark("warning", f"{folder}: the report could not be written: {error.strerror or error}; `fusebench report` makes it")
    if outcome.interruption is not None:
        raise outcome.interruption
    if json:
        print_json({**_plain(record), "run": str(folder)})
    else:
        _show(record, folder)
    raise typer.Exit(record.exit_code)


def _suite_cases(name: str, project: Project, ops: Ops) -> tuple[Case, ...]:
    """The cases of the suite `models/NAME`; none in a project without that suite."""
    from ..suites import load_suite, suite_names

    suite = f"models/{name}"
    return load_suite(suite, project, ops).cases if suite in suite_names(project) else ()


def parse_layers(texts: list[str]) -> dict[str, int]:
    """`num_layers=4` and the like; several may stand in one text, joined by commas.

    Raises:
        UsageError: no number, or no stack.
    """
    found = {}
    for text in ",".join(texts).split(",") if texts else ():
        stack, equals, count = text.partition("=")
        if not equals or not stack or not count.isdigit():
            raise UsageError(f"--layers {text!r}: expected STACK=N, such as num_layers=4")
        found[stack.strip()] = int(count)
    return found


def _plain(record: ModelRecord) -> dict[str, object]:
    import msgspec

    plain: dict[str, object] = msgspec.to_builtins(record)
    return plain


def _write_report(record: ModelRecord, folder: Path) -> None:
    """The page and its picture, which must not lose the record when they fail."""
    from ..report.model import PICTURE, model_markdown
    from ..report.plots.step import step_png
    from ..store.comparison_folder import write_report
    from ..store.files import write_file

    if record.breakdowns:
        write_file(folder / PICTURE, step_png(record))
    write_report(folder, model_markdown(record, picture=PICTURE if record.breakdowns else ""))


def _show(record: ModelRecord, folder: Path) -> None:
    from ..report import model as report
    from .shared.output import print_table, remark

    for warning in record.warnings:
        remark("warning", warning)
    for line in report.head_lines(record):
        typer.echo(line)
    print_table(report.TIME_COLUMNS, report.time_rows(record))
    for line in report.gpu_time_lines(record):
        typer.echo(line)
    if record.loops:
        print_table(report.LOOP_COLUMNS, report.loop_rows(record), title="denoise loop", right=report.LOOP_COLUMNS[1:4])
    for line in report.whole_lines(record):
        typer.echo(f"whole model: {line}")
    if record.breakdowns:
        columns = report.stage_columns(record)
        print_table(columns, report.stage_rows(record), title="where the time goes", right=columns[1:])
        for line in report.stage_remarks(record):
            typer.echo(line)
    if record.calls:
        print_table(report.CALL_COLUMNS, report.call_rows(record), title="calls of ops in one step", right=("calls", "fallbacks"))
    for line in (*report.explanation_lines(record), *report.drift_lines(record), *report.verdict_lines(record)):
        typer.echo(line)
    typer.echo(f"run: {folder}")
