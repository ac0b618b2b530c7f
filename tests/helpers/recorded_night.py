"""A nightly of an H200 as a gate by times alone reports it: what tests of reports show, with every verdict in it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from fusebench.schema import Run
from fusebench.store.history_file import read_history_file
from fusebench.verdict.baseline.compare_to_baseline import judge_run, with_verdicts
from fusebench.verdict.margins.rule import MarginRule

from .gate_characteristics import eight_processes

RESULTS = Path(__file__).parents[2] / "results"


@cache
def recorded_night() -> Run:
    """The nightly of one process, judged by a baseline of eight processes without the digests of its code."""
    (night,) = [run for run in read_history_file(RESULTS / "history" / "nvidia_h200.op_mix.parquet") if run.id == "2aac7247"]
    bare = msgspec.structs.replace(night, results=[msgspec.structs.replace(one, code=None) for one in night.results])
    return with_verdicts(night, judge_run(bare, eight_processes(), MarginRule()))
