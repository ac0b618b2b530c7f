"""`fusebench eval`: judge one candidate kernel that nobody trusts."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..schema.evaluation import Stage
from .shared.completion import complete_op
from .shared.options import CaseOption, DeviceOption, JsonOption, KernelsOption, SuiteOption, a_number

if TYPE_CHECKING:
    from ..schema.evaluation import Evaluation


FileArgument = Annotated[Path | None, typer.Argument(metavar="FILE", help="Python file with one decorated kernel.", show_default=False)]
OneOpOption = Annotated[
    str | None,
    typer.Option(
        "--op",
        metavar="NAME",
        help="Op that the kernel implements (see `fusebench list ops`).",
        autocompletion=complete_op,
        show_default=False,
    ),
]
StageOption = Annotated[
    Stage,
    typer.Option(
        "--stage",
        help="check: a few small cases, compared only.  quick: compared and timed briefly.  final: also shapes and values that the "
        "others never use, and narrow intervals.",
    ),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="SECONDS",
        min=1.0,
        callback=a_number,
        help="Wall time of the evaluation; a candidate without an answer by then is `undecided` (exit code 4).  60, 180 or 900 by stage.",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option("--memory", metavar="BYTES", help="Host memory of the candidate's processes, for example 8GiB.", show_default=False),
]
ServeOption = Annotated[bool, typer.Option("--serve", help="Answer evaluations over HTTP, with a queue per GPU.")]
McpOption = Annotated[bool, typer.Option("--mcp", help="Answer as an MCP tool on stdin and stdout.")]
HostOption = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address that --serve listens on.")]
PortOption = Annotated[
    int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port that --serve listens on; 0 for any free one.")
]


def eval_command(
    *,
    file: FileArgument = None,
    op: OneOpOption = None,
    suite: SuiteOption = None,
    case: CaseOption = None,
    stage: StageOption = Stage.QUICK,
    device: DeviceOption = "auto",
    kernels: KernelsOption = None,
    budget: BudgetOption = None,
    memory: MemoryOption = None,
    serve: ServeOption = False,
    mcp: McpOption = False,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8731,
    json: JsonOption = False,
) -> None:
    """Judge one candidate kernel that nobody trusts, in processes of its own.

    The candidate's process holds no reference and no expected value.  Another process draws inputs, compares every answer with float64,
    and times the split chain beside the candidate.  Without --suite, the suite named like the op is used.

    Examples:

      fusebench eval candidate.py --op qknorm_rope --stage check

      fusebench eval candidate.py --op qknorm_rope --case 'flux_*' --json

      fusebench eval --serve --port 8731

    Exit codes: 0 passed; 2 invalid or unsupported; 3 the device is unfit; 4 undecided within the budget; 5 wrong, crashed, hung, compile
    error, out of memory, suspicious or hacked.
    """
    if serve or mcp:
        _serve(file, serve=serve, mcp=mcp, host=host, port=port, device=device, kernels=kernels)
        return
    from .shared.evaluation_work import Catalogue, EvaluationOptions, begun_evaluator, parse_bytes, read_candidate, run_evaluation

    if file is None:
        raise UsageError("no candidate: pass FILE --op NAME, or --serve or --mcp to answer evaluations of others")
    if op is None:
        known = ", ".join(Catalogue(kernels).ops)
        raise UsageError(f"--op is missing; pass the op that the file declares, one of {known or 'none: this project has no ops'}")
    memory_bytes = None if memory is None else parse_bytes(memory)
    options = EvaluationOptions(op=op, suite=suite, case=case, stage=stage, kernels=kernels, seconds=budget, memory_bytes=memory_bytes)
    read_candidate(file)
    with ExitStack() as stack:
        begun = begun_evaluator(device, options)
        evaluator = stack.enter_context(begun) if begun is not None else None
        catalogue = Catalogue(kernels)
        request = catalogue.request(file, options)
        catalogue.keep()

        from ..device import resolve_device
        from ..device.toolchain import require_torch_for
        from ..judge.evaluation import Evaluator
        from ..verdict.exit_status import evaluation_exit_code
        from .shared.output import print_json
        from .shared.progress import make_reporter

        if evaluator is None:
            target = resolve_device(device)
            require_torch_for(target)
            evaluator = stack.enter_context(Evaluator(target))
        reporter = make_reporter()
        reporter.begin()
        try:
            evaluation = run_evaluation(evaluator, request, options, reporter)
        except KeyboardInterrupt:
            evaluator.stop()
            raise
        finally:
            reporter.end()
    if json:
        print_json(evaluation)
    else:
        _show(evaluation)
    raise typer.Exit(evaluation_exit_code(evaluation.status))


def _serve(file: Path | None, *, serve: bool, mcp: bool, host: str, port: int, device: str, kernels: list[Path] | None) -> None:
    if serve and mcp:
        raise UsageError("--serve and --mcp together would share one stdin; start two processes")
    if file is not None:
        raise UsageError(f"{file} with --serve or --mcp: a server takes its candidates from requests; leave FILE out")
    from ..device import resolve_device
    from ..device.toolchain import require_torch_for
    from .shared.evaluation_work import Catalogue, all_devices

    if serve:
        from .serving.http_server import serve as serve_http
    else:
        from .serving.mcp_server import serve as serve_mcp
    from ..judge.evaluation import Evaluator
    from .serving.evaluation_queue import EvaluationQueue

    catalogue = Catalogue(kernels)
    devices = all_devices() if device == "auto" else [resolve_device(device)]
    for one in devices:
        require_torch_for(one)
    with EvaluationQueue(devices, catalogue, partial(Evaluator, keep=True)) as evaluations:
        if serve:
            serve_http(evaluations, host, port)
        else:
            serve_mcp(evaluations, catalogue.ops)


def _show(evaluation: Evaluation) -> None:
    """Print what a person wants to know, in the order in which they want to know it."""
    from ..report.evaluation import NUMBERS, case_table, foot_lines, head_lines
    from .shared.output import PIPED_WIDTH, console, print_table

    width = min(console().width, PIPED_WIDTH)
    for line in head_lines(evaluation, width):
        typer.echo(line)
    if evaluation.cases:
        columns, rows = case_table(evaluation)
        print_table(columns, rows, right=[name for name in NUMBERS if name in columns])
    for line in foot_lines(evaluation, width):
        typer.echo(line)
