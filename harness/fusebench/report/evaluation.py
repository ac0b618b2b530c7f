"""The document of `fusebench eval` for people, and the bounds of its texts for everyone."""

from __future__ import annotations

import textwrap

import msgspec

from ..schema import Accuracy
from ..schema.evaluation import CaseEvaluation, Evaluation, EvaluationStatus
from .escape import cleaned, one_line, text
from .wording import DASH, error_ratio, share_of_limit, speedup, with_spread

LONGEST_REASON = 1000
LONGEST_TAIL = 4000
"""Characters of the candidate's own output."""
MOST_REMARKS = 20
MOST_CASES_SHOWN = 40
"""Rows of the table for people; the JSON document has every case."""
COLUMNS = ("case", "status", "time us", "speedup", "SOL", "error", "compared")
NUMBERS = ("time us", "speedup", "SOL", "error", "compared")


def bounded(evaluation: Evaluation) -> Evaluation:
    """`evaluation` with every text that a candidate may have written on one line, escaped and cut; `output_tail` keeps its lines.

    A hostile file can fill each of them with terminal commands, marks of CI systems, or megabytes.
    """
    tail = text(evaluation.output_tail[-LONGEST_TAIL:])[-LONGEST_TAIL:]
    cases = tuple(msgspec.structs.replace(case, reason=one_line(case.reason, LONGEST_REASON)) for case in evaluation.cases)
    remarks = tuple(one_line(remark, LONGEST_REASON) for remark in evaluation.remarks[:MOST_REMARKS])
    kernel, reason = one_line(evaluation.kernel, 200), one_line(evaluation.reason, LONGEST_REASON)
    short = msgspec.structs.replace(evaluation, kernel=kernel, reason=reason, cases=cases, remarks=remarks, output_tail="")
    return msgspec.structs.replace(cleaned(short), output_tail=tail)


def case_table(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Column titles and rows of the first `MOST_CASES_SHOWN` cases; a column without any figure is left out."""
    rows = [_row(case) for case in evaluation.cases[:MOST_CASES_SHOWN]]
    kept = [place for place in range(len(COLUMNS)) if any(row[place] != DASH for row in rows)]
    return [COLUMNS[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _row(case: CaseEvaluation) -> tuple[str, ...]:
    return (
        case.key,
        case.status.value,
        DASH if case.time_us is None else with_spread(case.time_us),
        speedup(case.speedup),
        share_of_limit(case.sol),
        error_ratio(case.accuracy),
        f"{case.calls_compared} of {case.calls}" if case.calls else DASH,
    )


def head_lines(evaluation: Evaluation, width: int) -> list[str]:
    """The status with its reason, the speedup, and the first failing case with its error beside the contract."""
    who = evaluation.kernel or evaluation.file or "the candidate"
    where = f" on {evaluation.device}" if evaluation.device else ""
    lines = _wrapped(f"{evaluation.status.value}: {who}{where}, stage {evaluation.stage.value}, {evaluation.spent_s:.1f} s", width)
    if evaluation.reason:
        lines += _wrapped(evaluation.reason, width, "  ")
    if evaluation.speedup is not None:
        lines += _wrapped(f"{speedup(evaluation.speedup)} the split chain's speed, cases weighted by launches", width, "  ")
    failing = next((case for case in evaluation.cases if case.key == evaluation.first_failure), None)
    if failing is not None:
        lines += _wrapped(f"first failing case: {failing.key} ({failing.shape}): {failing.status.value}", width, "  ")
        if failing.accuracy is not None:
            lines += _wrapped(_error_beside_contract(failing.accuracy), width, "    ")
        if failing.reason and failing.reason != evaluation.reason:
            lines += _wrapped(failing.reason, width, "    ")
    return lines


def foot_lines(evaluation: Evaluation, width: int) -> list[str]:
    """Cases that the table leaves out, compiled code, remarks, absent isolation, the end of the output, and the next command."""
    lines = []
    if len(evaluation.cases) > MOST_CASES_SHOWN:
        lines += _wrapped(f"and {len(evaluation.cases) - MOST_CASES_SHOWN} more cases; --json has all", width)
    if any(case.accuracy is not None for case in evaluation.cases):
        lines += _wrapped(
            "error column: RMS error of the worst output over the split chain's; compared: calls with compared outputs", width
        )
    if evaluation.registers is not None:
        spills = "no spills" if not evaluation.spills else f"{evaluation.spills} bytes spilled"
        shared = "" if evaluation.shared_bytes is None else f", {evaluation.shared_bytes} bytes of shared memory a block"
        lines += _wrapped(f"compiled code: {evaluation.registers} registers a thread, {spills}{shared}", width)
    for remark in evaluation.remarks:
        lines += _wrapped(f"remark: {remark}", width)
    absent = [measure for measure in evaluation.isolation if not measure.active]
    if absent:
        named = "; ".join(f"{measure.name} ({measure.reason})" if measure.reason else measure.name for measure in absent)
        lines += _wrapped(f"isolation not available: {named}", width)
    if evaluation.output_tail.strip() and evaluation.status is not EvaluationStatus.PASSED:
        lines.append("the candidate's output ended with:")
        shown = evaluation.output_tail.strip("\n").split("\n")[-10:]
        lines += [f"  | {line}"[:width] for line in shown]
    if evaluation.next_command:
        lines += [f"next: {evaluation.next_command}"]  # on one line, so that it can be pasted
    return lines


def _error_beside_contract(accuracy: Accuracy) -> str:
    figures = (
        f"error {error_ratio(accuracy)} (rms {accuracy.rms_error:.2e}, split {accuracy.split_rms_error:.2e}; "
        f"max {accuracy.max_error:.2e}, split {accuracy.split_max_error:.2e}); contract {accuracy.contract}"
    )
    return f"{figures}: {accuracy.reason}" if accuracy.reason else figures


def _wrapped(line: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        line, width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=True, break_on_hyphens=False
    ) or [""]
