"""Shared by `eval` and its servers: from what is asked to a request, and from a request to the whole document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...errors import UsageError
from ...schema.evaluation import Evaluation, Stage

if TYPE_CHECKING:
    from ...judge.evaluation import EvaluationRequest, Evaluator
    from ...runner.context import Reporter

MOST_SOURCE_BYTES = 2**20
"""A candidate of more than 1 MiB is refused: the largest kernel file of this repository has 20 kB."""
DEFAULT_SECONDS = {Stage.CHECK: 60.0, Stage.QUICK: 180.0, Stage.FINAL: 900.0}
"""Budget of an evaluation by stage; most end long before."""
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


class EvaluationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, as given on the command line or by a client."""

    op: str
    suite: Sequence[str] | None = None
    case: str | None = None
    stage: Stage = Stage.QUICK
    kernels: Sequence[Path] | None = None
    seconds: float | None = None
    memory_bytes: int | None = None

    def kept(self) -> tuple[str, ...]:
        """The options that the next command keeps."""
        words = [word for name in self.suite or () for word in ("--suite", name)]
        words += ["--case", self.case] if self.case is not None else []
        words += [word for folder in self.kernels or () for word in ("--kernels", str(folder))]
        return tuple(words)


def make_request(file: Path, options: EvaluationOptions) -> EvaluationRequest:
    """The request for the candidate in `file`; no kernel file is imported.

    Raises:
        UsageError: no such file, too large a file, or several ops.
        UnknownNameError: an op, suite or case that does not exist; the message names those that do.
    """
    from ...judge.evaluation import EvaluationRequest
    from .selection import resolve_selection

    require_candidate(file)
    if "," in options.op:
        raise UsageError(f"--op {options.op}: found several ops, expected the one that {file.name} declares")
    selection = resolve_selection(suite=options.suite, op=options.op, case=options.case, kernels=options.kernels, load_kernels=False)
    return EvaluationRequest(
        roots=selection.collection.roots,
        file=file,
        op=options.op,
        cases=selection.cases,
        stage=options.stage,
        seconds=options.seconds if options.seconds is not None else DEFAULT_SECONDS[options.stage],
        memory_bytes=options.memory_bytes,
    )


def require_candidate(file: Path) -> None:
    """Raise UsageError unless `file` is a readable file of a sensible size."""
    try:
        if not file.is_file():
            found = "a folder" if file.is_dir() else "no such file"
            raise UsageError(f"{file}: found {found}, expected one Python file with a kernel; see docs/eval.md for an example")
        size = file.stat().st_size
        with file.open("rb"):
            pass
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise UsageError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error}); check its path and permissions") from error
    if size > MOST_SOURCE_BYTES:
        raise UsageError(f"{file}: found {size} bytes, expected at most {MOST_SOURCE_BYTES}; a candidate is one kernel file")


def run_evaluation(
    evaluator: Evaluator, request: EvaluationRequest, options: EvaluationOptions, reporter: Reporter | None = None
) -> Evaluation:
    """Judge the candidate, and complete the document: bounded texts, the next command."""
    from ...judge.advice import next_command
    from ...report.evaluation import bounded

    evaluation = evaluator.evaluate(request, reporter)
    return bounded(msgspec.structs.replace(evaluation, next_command=next_command(evaluation, roots=request.roots, options=options.kept())))


def parse_bytes(given: str) -> int:
    """`8GiB`, `512MiB` or `1000000` in bytes.

    Raises:
        UsageError: another form, or fewer than 64 MiB, in which no Python process with torch starts.
    """
    digits = given.strip().rstrip("BbGgIiKkMm ")
    unit = given.strip()[len(digits) :].strip().upper()
    try:
        count = int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError) as error:
        raise UsageError(f"--memory {given}: expected a number of bytes, or one with MiB or GiB, for example 8GiB") from error
    if not 2**26 <= count < 2**63:
        raise UsageError(f"--memory {given}: expected at least 64MiB, which a process with torch needs to start")
    return count
