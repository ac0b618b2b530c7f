"""Options that commands share, each defined once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .completion import complete_case, complete_kernel, complete_op, complete_suite


def a_number(value: float | None) -> float | None:
    """Callback of numeric options: refuses `nan`, which passes every minimum and maximum.

    Raises:
        typer.BadParameter: it is NaN.
    """
    if value is not None and math.isnan(value):
        raise typer.BadParameter("found nan, expected a number")
    return value


ALTERNATIVES = ("--op", "--kernel", "--case")
"""Options whose repeated values are alternatives, joined by commas, which no name holds: records keep them as one text."""


def join_alternatives(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command with each of `ALTERNATIVES` given once: `--kernel a --kernel b` becomes `--kernel a,b`."""
    kept: list[str] = []
    places: dict[str, int] = {}
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            return [*kept, argument, *waiting]
        option, equals, text = argument.partition("=")
        value = text if equals else next(waiting, None) if option in ALTERNATIVES else None
        if option not in ALTERNATIVES or value is None:
            kept.append(argument)
        elif option in places:
            kept[places[option]] += f",{value}"
        else:
            kept += [option, value]
            places[option] = len(kept) - 1
    return kept


SuiteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--suite",
        metavar="NAME|PATH",
        help="Suite by name (see `fusebench list suites`) or TOML file; repeatable.",
        autocompletion=complete_suite,
    ),
]
OpOption = Annotated[
    str | None,
    typer.Option(
        "--op",
        metavar="NAME",
        help="Only cases and kernels of this op, repeatable; without --suite, the suite of the same name.",
        autocompletion=complete_op,
    ),
]
KernelOption = Annotated[
    str | None,
    typer.Option(
        "--kernel",
        metavar="GLOB",
        help="Only these kernels: `fused_triton`, `fused_triton@2`, `qknorm_rope/*`, `*cuda*`; repeatable.",
        autocompletion=complete_kernel,
    ),
]
CaseOption = Annotated[
    str | None,
    typer.Option(
        "--case", metavar="GLOB", help="Only these cases: `flux_1024`, `*_1024`, or `suite:case`; repeatable.", autocompletion=complete_case
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option("--device", metavar="auto|cpu|cuda|cuda:N", help="Device to use; auto is the first visible GPU, else the CPU."),
]
BoardsOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|cuda:N|all|LIST",
        help="Device to use; auto is the first visible GPU, else the CPU.  `all`, or a list such as cuda:0,2-3, measures on several GPUs "
        "at once.",
    ),
]
KernelsOption = Annotated[
    list[Path] | None,
    typer.Option("--kernels", metavar="DIR", help="Folder of kernels to use instead of the project's own; repeatable."),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout; everything else goes to stderr."),
]
EvidenceOption = Annotated[
    bool,
    typer.Option(
        "--evidence/--no-evidence",
        help="Compile base and head of the kernels that regressed and show the changes in registers, spills, occupancy and "
        "instructions; on a GPU, `run` and `ab` also read hardware counters of the first few, if permitted. It never changes the verdict.",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--kernel-timeout",
        metavar="SECONDS",
        min=1.0,
        callback=a_number,
        help="A kernel that makes no progress for this long counts as hung.",
    ),
]


def option_names(context: typer.Context) -> list[str]:
    """The parameters that the command line gives, in alphabetical order."""
    sources = {name: context.get_parameter_source(name) for name in sorted(context.params)}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
