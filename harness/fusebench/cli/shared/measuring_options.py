"""Options of the commands that measure: where the record goes, what is spent on it, and what it is judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...schema import CacheState
from .options import a_number

OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder for the run's folder; results/runs of the project by default.")
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="SECONDS",
        min=1.0,
        callback=a_number,
        help="Stop measuring after this long; the remaining cases are `undecided` (exit code 4).",
    ),
]
WaitOption = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0.0, callback=a_number, help="Wait this long for a busy device to become idle."),
]
CacheOption = Annotated[CacheState, typer.Option("--cache", help="Whether the cache is emptied, by reading, before every timed call.")]
TimerOption = Annotated[
    str,
    typer.Option(
        "--timer", metavar="auto|cupti|cuda_events|cuda_graph|host", help="Timer; results of different timers are never compared."
    ),
]
ReplicatesOption = Annotated[
    int | None,
    typer.Option(
        "--replicates", metavar="N", min=2, help="Fresh random placements of all buffers, each of many rounds.", show_default=False
    ),
]
PrecisionOption = Annotated[
    float | None,
    typer.Option(
        "--precision",
        metavar="SHARE",
        min=0.0005,
        max=1.0,
        callback=a_number,
        help="Measure each case in 8, 12, 16 or 20 processes, until every fused kernel's speedup is known to this share: 0.002 is +-0.2 %.",
        show_default=False,
    ),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        max=64,
        help="Measure each case in so many processes, without --precision.  A baseline wants 8 or more in all: 4 runs of 2 on several "
        "boards are better than one of 8.",
        show_default=False,
    ),
]
RoundsOption = Annotated[
    int | None,
    typer.Option("--rounds", metavar="N", min=2, help="Rounds per replicate; a round times every kernel once.", show_default=False),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with a run that was stopped, or whose budget left suspects: a folder, a run id or `latest`.  Its finished cases are "
        "taken over; GPU model, versions, commit and sampling must be the same.",
        show_default=False,
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Measure the I-th of N parts of the selection, of equal length; `fusebench join RUN...` makes one record of all parts.",
        show_default=False,
    ),
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="CONFIG",
        help="Measure in shards on an engine, Parsl, and join them: `local`, `local:N` for N workers of this host, or a Python file that "
        "defines `config`.  Needs the extra `cluster`.",
        show_default=False,
    ),
]
ShardsOption = Annotated[
    int | None,
    typer.Option("--shards", metavar="N", min=1, max=999, help="With --on: the number of parts; the number of local workers unless given."),
]
ConfirmOption = Annotated[
    bool,
    typer.Option(
        "--confirm/--no-confirm",
        help="Remeasure suspects in up to 8 fresh processes, until each is decided or the budget ends: kernels slower than the stored "
        "baseline, undecided, or faster without a cause.  Their figures and verdicts are then those of the fresh processes.",
    ),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="RUN",
        help="Judge and confirm against this run instead of the stored baseline of the device model: a folder, a run id or `latest`.",
        show_default=False,
    ),
]
MarginOption = Annotated[
    float | None,
    typer.Option(
        "--margin",
        metavar="SHARE",
        min=0.001,
        max=1.0,
        callback=a_number,
        help="Change against the stored baseline that counts: 0.02 is 2 %.  By default it comes from the scatter between stored runs of "
        "the device model; without them it is 2 % (10 % on a CPU), and twice that for calls of several launches.",
        show_default=False,
    ),
]
