"""The `fusebench` command: one file per subcommand, and errors turned into one line and an exit code.

Command modules import only typer, errors, schema and what gives options their defaults at their top, so importing them all keeps
`fusebench --help` under 0.3 s; everything heavier is imported by the command that needs it.  A command ends by returning (exit code 0) or
by `raise typer.Exit(code)`; a `FusebenchError` that escapes it is printed as `error: …` and ends with that error's exit code; so
does the failed import of a package that fusebench declares.  Any other exception is a fault of fusebench and ends with its traceback and an
exit code of its own: Python's would be that of a regression.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import FusebenchError
from . import (
    ab_command,
    baseline_command,
    bench_command,
    bisect_command,
    calibrate_command,
    catalogue_command,
    check_command,
    ci_command,
    compare_command,
    doctor_command,
    eval_command,
    gate_command,
    history_command,
    init_command,
    join_command,
    list_command,
    model_command,
    ncu_command,
    report_command,
    run_command,
    static_command,
    suite_command,
    tune_command,
)
from .shared.completion import asks_in_bash, complete_in_bash
from .shared.exit_status import exit_code_of
from .shared.options import join_alternatives

EXIT_INTERRUPTED = 130
"""Exit status that a shell reports after SIGINT: 128 + 2."""


class _Commands(TyperGroup):
    """Runs a subcommand and turns its failure into a message and an exit status."""

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
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except Exception as error:
            if hasattr(error, "exit_code"):  # typer's own: a usage error, or the end of a command
                raise
            # Here and not in `main`: of an EOFError and a closed pipe typer would make exit code 1.
            raise typer.Exit(exit_code_of(error)) from error


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

app.command("init")(init_command.init)
app.command("list")(list_command.list_command)
app.command("doctor")(doctor_command.doctor)
app.command("check")(check_command.check)
app.command("run")(run_command.run)
app.command("join")(join_command.join)
app.command("eval")(eval_command.eval_command)
app.command("bench")(bench_command.bench)
app.command("model")(model_command.model)
app.command("compare")(compare_command.compare)
app.command("gate")(gate_command.gate)
app.command("history")(history_command.history)
app.command("bisect")(bisect_command.bisect)
app.command("ab")(ab_command.ab)
app.command("calibrate")(calibrate_command.calibrate)
app.add_typer(baseline_command.baseline, name="baseline")
app.add_typer(catalogue_command.catalogue, name="catalogue")
app.add_typer(suite_command.suite, name="suite")
app.command("static")(static_command.static)
app.command("ncu")(ncu_command.ncu)
app.command("tune")(tune_command.tune)
app.command("report")(report_command.report)
app.add_typer(ci_command.ci, name="ci")


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
