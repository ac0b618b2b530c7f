"""A run in the file formats of other tools: benchmark trackers, pytest-benchmark, change-point detection.

Each format holds the same series: one per kernel and case that was measured and whose time may be compared (see `series.py`).
Statistics are fusebench's own; nothing is measured or estimated anew here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...config import Project
from ...schema import Run

FORMATS = ("github-action-benchmark", "pytorch-oss", "bencher", "pytest-benchmark", "otava")
"""Names of the formats, as `fusebench report --format` takes them."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A finished document."""

    text: str
    beside: dict[str, str] = {}
    """Files that belong beside it when it is written to a file, by their suffix: the reader's configuration."""
    notes: list[str] = []
    """What was left out, and why."""


def export(form: str, run: Run, folder: Path, project: Project, out: Path | None = None) -> Export:
    """`run`, whose record lies in `folder`, in the format `form`, one of `FORMATS`; `out` is the file that it will be written to.

    Raises:
        RunRecordError: the run holds no time that may be compared, or its samples, which pytest-benchmark's format needs, cannot be read.
    """
    if form == "pytest-benchmark":
        from .pytest_benchmark import pytest_benchmark_json

        return Export(text=pytest_benchmark_json(run, folder))
    if form == "otava":
        from .otava import otava_config, otava_table

        text, names, notes = otava_table(run, folder, project)
        return Export(text=text, beside={} if out is None else {".yaml": otava_config(out, names)}, notes=notes)
    from . import trackers

    return Export(text=trackers.WRITERS[form](run))
