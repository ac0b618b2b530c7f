"""`fusebench bench`: time the marked functions of one file against one another, without a project."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schema import CacheState, Case, ExitCode
from .shared.measuring_options import (
    BudgetOption,
    CacheOption,
    OutOption,
    PrecisionOption,
    ReplicatesOption,
    RoundsOption,
    TimerOption,
    WaitOption,
)
from .shared.options import DeviceOption, JsonOption, TimeoutOption

if TYPE_CHECKING:
    from ..registry import DeclaredOp

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE.py", help="Python file whose functions are marked with `@fusebench.benchmark`.")
]
SizeOption = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=V[,V...]", help="Values of a parameter of `inputs`, each a case of its own; repeatable."),
]


def bench(
    *,
    file: FileArgument,
    size: SizeOption = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
    budget: BudgetOption = None,
    wait: WaitOption = 0.0,
    cache: CacheOption = CacheState.COLD,
    timer: TimerOption = "auto",
    replicates: ReplicatesOption = None,
    rounds: RoundsOption = None,
    precision: PrecisionOption = None,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Time plain functions against one another, with the checks, timers and report of `run`.

    The first function marked with `@fusebench.benchmark(inputs=...)` is the one that the others are compared with.  Outputs are checked
    against `reference=`, or against the first function in float64.  No project, op or suite is needed; the run is written as `run` does.
    """
    from ..config import find_project
    from ..device import resolve_device
    from ..device.toolchain import require_torch_for
    from ..errors import UsageError
    from ..registry import Declarations
    from ..timing.timers.select import require_timer

    require_timer(timer)
    if not file.is_file() or file.suffix != ".py":
        raise UsageError(f"found {file}, expected a Python file whose functions are marked with `@fusebench.benchmark`; give its path")
    target = resolve_device(device)
    require_timer(timer, target.kind)
    require_torch_for(target)

    import msgspec

    from ..runner.run.command import RunRequest, measure_run
    from ..runner.run.options import RunOptions, default_plan
    from ..verdict.margins.rule import MarginRule
    from .run_command import show_run
    from .shared.output import command_line, patience
    from .shared.progress import make_reporter

    collection = Declarations([file.resolve()])
    collection.silence_s = kernel_timeout
    with patience(f"loading {file.name}"):
        collection.load_kernels(operators=False)
    if collection.problems:
        raise UsageError(str(collection.problems[0]))
    (op,) = collection.ops.values()
    cases = cases_of(op, size or ())
    collection.learn(cases)
    collection.close()
    changes = {
        name: value for name, value in (("replicates", replicates), ("rounds", rounds), ("precision", precision)) if value is not None
    }
    request = RunRequest(
        project=find_project(),
        collection=collection,
        cases=cases,
        device=target,
        timer=timer,
        plan=msgspec.structs.replace(default_plan(target.kind, cache), **changes),
        options=RunOptions(command=command_line(), selected=(op.name,)),
        rule=MarginRule(device=target.kind),
        budget_s=budget,
        wait_s=wait,
        silence_s=kernel_timeout,
        out=out,
        confirm=False,
    )
    reporter = make_reporter()
    outcome = measure_run(request, reporter)
    show_run(outcome, json=json, resumable=False, said=reporter.opening)
    raise typer.Exit(ExitCode(outcome.record.exit_code))


def cases_of(op: DeclaredOp, sizes: Sequence[str]) -> list[Case]:
    """A case for every combination of the sizes given, or one with the defaults of `inputs`.

    Raises:
        UsageError: a size that `inputs` does not take, or a value of another type.
    """
    from ..errors import UnknownNameError, UsageError

    known = {name: type(default) for name, default in op.declaration.params.items()}
    values: dict[str, list[Any]] = {}
    for text in sizes:
        name, _, given = text.partition("=")
        if name not in known:
            raise UnknownNameError("size", name, known, "--size")
        try:
            values[name] = [known[name](one) for one in given.split(",")]
        except ValueError:
            raise UsageError(f"--size {text}: expected {name} as {known[name].__name__}, as its default in `inputs` is") from None
    cases = []
    for combination in itertools.product(*values.values()):
        params = dict(zip(values, combination, strict=True))
        name = "_".join(f"{key}_{value}" for key, value in params.items()) or "default"
        cases.append(Case(suite=op.name, name=name, op=op.name, params=params))
    return cases
