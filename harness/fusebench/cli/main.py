"""The `fusebench` command: one file per subcommand, and errors turned into one line and an exit code.

A command's module is imported, and its options are built, when it is asked for.  Command modules import only typer, errors, schema and
what gives options their defaults at their top, so importing them all keeps `fusebench --help` under 0.3 s; everything heavier is imported
by the command that needs it.  A command ends by returning (exit code 0) or
by `raise typer.Exit(code)`; a `FusebenchError` that escapes it is printed as `error: …` and ends with that error's exit code; so
does the failed import of a package that fusebench declares.  Any other exception is a fault of fusebench and ends with its traceback and an
exit code of its own: Python's would be that of a regression.
"""

from __future__ import annotations

import errno
import functools
import importlib
import os
import signal
import sys
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from ..errors import FusebenchError
from ..schema import ExitCode
from .shared.completion import asks_in_bash, complete_in_bash
from .shared.exit_status import exit_code_of
from .shared.options import join_alternatives

EXIT_INTERRUPTED = 130
"""Exit status that a shell reports after SIGINT: 128 + 2."""


_COMMANDS = {
    "init": ("init_command", "init", "Make a project: an op, two kernels, a suite, a script for CI."),
    "list": ("list_command", "list_command", "List ops, kernels, suites or cases."),
    "doctor": ("doctor_command", "doctor", "Check whether this machine is fit to measure."),
    "check": ("check_command", "check", "Check kernels against float64, without timing them."),
    "run": ("run_command", "run", "Check kernels, time the correct ones, write a run."),
    "join": ("join_command", "join", "Join the shards of a run into one record."),
    "eval": ("eval_command", "eval_command", "Judge one kernel file that nobody trusts, in isolation."),
    "bench": ("bench_command", "bench", "Time plain functions against one another."),
    "model": ("model_command", "model", "Measure a model's denoise step, with and without fused ops."),
    "compare": ("compare_command", "compare", "Show two runs side by side."),
    "gate": ("gate_command", "gate", "Judge a run against the stored baseline."),
    "baseline": ("baseline_command", "baseline", "Keep runs as the baseline, or show what is kept."),
    "history": ("history_command", "history", "Find the runs at which a kernel became slower or faster."),
    "bisect": ("bisect_command", "bisect", "Find the commit that made a kernel slower."),
    "ab": ("ab_command", "ab", "Compare this checkout's kernels with a commit's."),
    "calibrate": ("calibrate_command", "calibrate", "Measure how often a verdict is wrong on this machine."),
    "catalogue": ("catalogue_command", "catalogue", "Show, query, publish and restore stored runs."),
    "suite": ("suite_command", "suite", "Make a suite of random cases."),
    "static": ("static_command", "static", "Show registers, spills and instructions; needs no GPU."),
    "ncu": ("ncu_command", "ncu", "Read hardware counters with Nsight Compute."),
    "tune": ("tune_command", "tune", "Write the tables by which dispatch chooses a kernel."),
    "report": ("report_command", "report", "Render the record of a run."),
    "ci": ("ci_command", "ci", "Run the steps of a nightly or a pull request."),
}
"""By name: the module, its function or group, and the line in the list of commands, short enough for 80 columns."""


class _Commands(TyperGroup):
    """Runs a subcommand and turns its failure into a message and an exit status."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": dict.fromkeys(_COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _made(cmd_name) if cmd_name in _COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, join_alternatives(rest)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FusebenchError as error:
            from ..report.escape import text

            typer.echo(f"error: {text(str(error))}", err=True)
            raise typer.Exit(error.exit_code) from error
        except (KeyboardInterrupt, Exception) as error:
            if hasattr(error, "exit_code"):  # typer's own: a usage error, or the end of a command
                raise
            if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # whichever argument names the path
                from ..report.escape import text

                typer.echo(f"error: {text(str(error.filename))}: {error.strerror}; give a shorter path", err=True)
                raise typer.Exit(ExitCode.USAGE) from error
            from ..faults import interruption_in

            if interruption_in(error) is not None:
                typer.echo("interrupted", err=True)
                raise typer.Exit(EXIT_INTERRUPTED) from None
            # Here and not in `main`: of an EOFError and a closed pipe typer would make exit code 1.
            raise typer.Exit(exit_code_of(error)) from error


@functools.cache
def _made(name: str) -> Any:
    """The command `name`, made when it is asked for: making them all takes a tenth of a second."""
    module, attribute, line = _COMMANDS[name]
    found = getattr(importlib.import_module(f"..{module}", __name__), attribute)
    alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, short_help=line)
    else:
        alone.command(name, short_help=line)(found)
    return typer.main.get_group(alone).commands[name]


app = typer.Typer(
    name="fusebench",
    cls=_Commands,
    help="Benchmark and regression gate for fused GPU kernels.",
    epilog="Exit codes: 0 pass, 1 regression, 2 usage, 3 device not fit to measure, 4 undecided, 5 a kernel failed, "
    "70 a fault of fusebench itself, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,  # help is plain text: brackets in it mean themselves, and rich need not be imported
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"fusebench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console script.

    SIGTERM, which time limits and CI runners send, ends a command as Ctrl-C does: measurements made so far are kept.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if asks_in_bash():
            sys.stdout.write(complete_in_bash(os.environ, lambda: app(prog_name="fusebench")))
            return
        app(prog_name="fusebench")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
