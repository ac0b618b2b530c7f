"""`fusebench suite random`: a suite of random cases of ops' parameter spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .shared.completion import complete_op
from .shared.options import KernelsOption, a_number

suite = typer.Typer(help="Make a suite of random cases.", no_args_is_help=True)

MEGABYTE = 1_000_000


@suite.callback()
def _suite() -> None:
    """Make a suite of random cases."""


@suite.command("random", short_help="Draw random cases and write them as a suite.")
def random_suite(
    *,
    op: Annotated[
        str | None,
        typer.Option("--op", metavar="NAME", help="Only this op, repeatable; every op by default.", autocompletion=complete_op),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, help="Cases in all; each op has as many as the others, give or take one.")
    ] = 200,
    at_least: Annotated[
        float,
        typer.Option("--at-least", metavar="MB", min=0.001, callback=a_number, help="Fewest bytes that a case must move, in 1e6 bytes."),
    ] = 20.0,
    at_most: Annotated[
        float, typer.Option("--at-most", metavar="MB", callback=a_number, help="Most bytes that a case must move, in 1e6 bytes.")
    ] = 400.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed, ops and bounds give the same cases.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the suite here, not to stdout.")] = None,
    kernels: KernelsOption = None,
) -> None:
    """Draw random cases from the parameter spaces of ops, and write them as a suite.

    Words and yes/no parameters take each of their values.  An op's `space` (in op.py) holds the values of the others: widths, heads, batch.
    Tokens follow from the bytes, which are drawn between the bounds on a logarithmic scale.

    Examples:

      fusebench suite random --seed 7 --out random.toml

      fusebench run --suite random.toml --kernel 'fused_*'

      fusebench report latest --format limits --out random.md
    """
    from ..suites.drawing import random_cases, suite_text
    from .shared.asked_files import write_asked
    from .shared.selection import load_project

    if at_most < at_least:
        raise UsageError(f"--at-most {at_most:g}: found less than --at-least {at_least:g}; exchange the two")
    _, collection = load_project(kernels, load_kernels=False)
    ops = [collection.op(name) for name in op.split(",")] if op is not None else list(collection.ops.values())
    if not ops:
        raise UsageError("no op is known here; name folders of kernels as `kernels` in [tool.fusebench], or pass --kernels DIR")
    low, high = round(at_least * MEGABYTE), round(at_most * MEGABYTE)
    name = f"random_{seed}"
    chosen = [f"--op {','.join(one.name for one in ops)}"] if op is not None else []
    bounds = [f"--at-least {at_least:g}", f"--at-most {at_most:g}", f"--seed {seed}"]
    source = " ".join(["fusebench suite random", *chosen, f"--count {count}", *bounds])
    try:
        cases = random_cases(ops, suite=name, source=source, count=count, seed=seed, at_least=low, at_most=high)
    finally:
        collection.close()  # its answers on refused draws are worth nothing to later commands
    text = suite_text(name, f"{count} random cases of {at_least:g} to {at_most:g} MB, seed {seed}", cases)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_asked(out, text.encode(), f"--out {out}")
    typer.echo(f"wrote {len(cases)} cases into {out}", err=True)
