"""How figures are written and results are worded, so that every view agrees."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ..schema import (
    FAILED_STATUSES,
    LIMIT_NOISE,
    OUTSIDE_CONTRACT,
    Accuracy,
    CaseSummary,
    Estimate,
    Result,
    Run,
    Status,
    Verdict,
    VerdictKind,
)
from ..verdict.exit_status import advisory_remark
from .escape import one_line

DASH = "–"

_ERROR_EPSILON = 1e-300


class Excuse(msgspec.Struct, frozen=True):
    """A reason why a kernel has no time, with its cases."""

    kernel: str
    status: Status
    reason: str
    cases: tuple[str, ...]


def short_kernel(kernel: str) -> str:
    """`qknorm_rope/fused_triton@2` without its op: `fused_triton@2`."""
    return kernel.partition("/")[2] or kernel


def microseconds(value: float | None) -> str:
    """Two decimals below 100 us, none from 1000 us on."""
    if value is None:
        return DASH
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def with_spread(estimate: Estimate) -> str:
    """`31.04 ± 0.12`: the further end of the interval, with the value's decimals; `?` if there is no interval."""
    value = microseconds(estimate.value)
    spread = max(estimate.high - estimate.value, estimate.value - estimate.low)
    return f"{value} ± {spread:.{len(value.partition('.')[2])}f}" if math.isfinite(spread) else f"{value} ± ?"


def has_limits(run: Run) -> bool:
    """Whether the run's share of SOL is taken of a limit with the op's own mix; older records have two other yardsticks."""
    return any(summary.stream_shape for summary in run.cases)


def yardsticks(summary: CaseSummary) -> str:
    """`26.15, 23.53`: the copy and the elementwise launch that an older record's share of SOL is taken of, in microseconds."""
    return ", ".join(microseconds(None if one is None else one.value) for one in (summary.copy_us, summary.stream_us))


def limit(summary: CaseSummary) -> str:
    """`23.53`: the time that the share of SOL is taken of, in microseconds; marked where it is the floor's."""
    floored = summary.floor is not None and summary.limit_us == summary.floor.time_us
    return f"{microseconds(summary.limit_us)} (floor)" if floored else microseconds(summary.limit_us)


def speedup(estimate: Estimate | None) -> str:
    """`1.74x [1.72, 1.76]`."""
    if estimate is None:
        return DASH
    return f"{estimate.value:.2f}x {interval(estimate)}"


def times(ratio: float | None) -> str:
    """`1.31x`."""
    return DASH if ratio is None else f"{ratio:.2f}x"


def interval(estimate: Estimate) -> str:
    """`[1.72, 1.76]`; `[?]` if there is no interval."""
    return f"[{estimate.low:.2f}, {estimate.high:.2f}]" if bounded(estimate) else "[?]"


def bounded(estimate: Estimate) -> bool:
    """Whether the interval says anything (one replicate gives none)."""
    return estimate.low > 0 and math.isfinite(estimate.high)


def share(value: float | None) -> str:
    """`0.923` as `92.3 %`."""
    return DASH if value is None else f"{100 * value:.1f} %"


def share_of_limit(value: float | None) -> str:
    """As `share`; `> 100 %` for a time that beats its limit by more than noise.  The limit is then none: on a CPU, code can be faster than
    the streaming yardstick."""
    return "> 100 %" if value is not None and value > LIMIT_NOISE else share(value)


def size(value: int | None) -> str:
    """Bytes with a decimal unit."""
    if value is None:
        return DASH
    amount = float(value)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def error_ratio(accuracy: Accuracy | None) -> str:
    """`0.71x`: the RMS error of the worst output as a multiple of the split chain's, every output channel scaled to RMS 1.

    That one magnitude makes errors comparable over outputs and input draws of any size.  Records without such figures give the ratio of
    their absolute errors.  An exact split chain gives no ratio: `0`, or the error itself.
    """
    if accuracy is None:
        return DASH
    own, split = _worst_error(accuracy)
    return f"{own / split:.2f}x" if split > _ERROR_EPSILON else f"{own:.1e}" if own else "0"


def error_over_split(accuracy: Accuracy | None) -> float | None:
    """The figure that `error_ratio` writes; None without accuracy, and beside an exact split chain."""
    if accuracy is None:
        return None
    own, split = _worst_error(accuracy)
    return own / split if split > _ERROR_EPSILON else None


def _worst_error(accuracy: Accuracy) -> tuple[float, float]:
    """RMS error of the worst output and the split chain's."""
    pairs = [(one.rms, one.split_rms) for one in accuracy.outputs] or [(accuracy.rms_error, accuracy.split_rms_error)]
    return max(pairs, key=lambda pair: pair[0] / pair[1] if pair[1] > _ERROR_EPSILON else math.inf if pair[0] else 0.0)


ERROR_MEANING = (
    "error column: RMS error against float64 as a multiple of the split chain's, every output channel scaled to RMS 1; worst output"
)


def absent_words(pairs: Iterable[tuple[str, str]]) -> str:
    """One line that names the kernels which cannot run here, with the reasons; empty for none.

    Args:
        pairs: kernel and reason, for each case.
    """
    listed = list(pairs)
    reasons: dict[str, dict[str, None]] = {}
    for kernel, reason in listed:
        reasons.setdefault(one_line(reason or "no reason recorded", 160), {})[short_kernel(kernel)] = None
    named = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return f"not runnable here ({count(len(listed), 'kernel-case pair')}): {named}" if listed else ""


def status_text(status: Status) -> str:
    """`compile error` for `compile_error`."""
    return str(status).replace("_", " ")


def count(number: int, noun: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def tallied(labels: Iterable[str], order: Iterable[str] = VerdictKind) -> str:
    """`1 regression, 29 pass`: how often each label of `order` is among `labels`, in that order; empty if none is."""
    found = Counter(labels)
    return ", ".join(f"{found[label]} {label}" for label in order if found[label])


def cases_with_results(run: Run) -> Iterator[tuple[CaseSummary, list[Result]]]:
    """Each case with its results: the baseline first, then by time, then kernels that cover a part of the op, then kernels without a
    time."""
    found: dict[str, list[Result]] = {}
    for result in run.results:
        found.setdefault(result.case_key, []).append(result)
    for summary in run.cases:
        rows = found.get(summary.case.key, [])
        yield summary, sorted(rows, key=lambda row: (row.kernel != summary.baseline, row.measurement is None, bool(row.covers), _time(row)))


def excuses(run: Run) -> list[Excuse]:
    """Every kernel without a time and why, cases with the same reason together; failures first.

    Reasons of unsupported cases that differ in numbers alone are one: `513 to 8308 rows: made for at most 512`.
    """
    found: dict[tuple[str, Status, str], list[tuple[str, str]]] = {}
    for result in run.results:
        if result.status is not Status.MEASURED:
            reason = one_line(_why_untimed(result) or (result.accuracy.reason if result.accuracy is not None else ""))
            alike = _NUMBER.sub("0", reason) if result.status is Status.UNSUPPORTED else reason
            found.setdefault((result.kernel, result.status, alike), []).append((reason, result.case))
    listed = [
        Excuse(kernel, status, _spanned([reason for reason, _ in those]), tuple(case for _, case in those))
        for (kernel, status, _), those in found.items()
    ]
    return sorted(listed, key=lambda excuse: _MILD.index(excuse.status) if excuse.status in _MILD else -1)


def _spanned(reasons: Sequence[str]) -> str:
    """One reason for several that differ in numbers alone, with the range of each number."""
    columns = zip(*map(_NUMBER.findall, reasons), strict=True)
    spans = iter([" to ".join(dict.fromkeys((min(each, key=int), max(each, key=int)))) for each in columns])
    return _NUMBER.sub(lambda _: next(spans), reasons[0])


def listed_excuses(run: Run) -> list[Excuse]:
    """The `excuses` to list: one line tells of all kernels that cannot run here, and a checked kernel needs a reason."""
    return [one for one in excuses(run) if one.status is not Status.NOT_RUNNABLE and (one.status is not Status.CHECKED or one.reason)]


def verdict_notes(run: Run) -> list[tuple[VerdictKind, str]]:
    """Every verdict other than a pass, in words; those with the same reason are told once.  `excuses` tells of the kernels that failed.

    Advisory verdicts with one remark are counted together, unless there are few.
    """
    judged = [(result, result.verdict) for result in run.results if result.verdict is not None]
    told = [(one, verdict) for one, verdict in judged if verdict.kind is not VerdictKind.PASS and one.status not in FAILED_STATUSES]
    remarks = Counter(advisory_remark(verdict) for _, verdict in told if not verdict.gating)
    found: dict[tuple[VerdictKind, str], list[Result]] = {}
    aside: dict[str, list[tuple[Result, Verdict]]] = {}
    for result, verdict in told:
        remark = "" if verdict.gating else advisory_remark(verdict)
        if remark and remarks[remark] >= FEWEST_TOGETHER:
            aside.setdefault(remark, []).append((result, verdict))
        else:
            found.setdefault((verdict.kind, one_line(verdict.reason)), []).append(result)
    notes = []
    for (kind, reason), results in found.items():
        named = [f"{result.kernel} on {result.case}" for result in results[:3]]
        more = f" and {len(results) - 3} more" if len(results) > 3 else ""
        subject = "every kernel and case" if 1 < len(results) == len(judged) else ", ".join(named) + more
        notes.append((kind, f"{subject}: {kind}: {reason}"))
    for remark, those in aside.items():
        kernels = ", ".join(sorted({short_kernel(result.kernel) for result, _ in those}))
        kinds = tallied(verdict.kind for _, verdict in those)
        notes.append((VerdictKind.INCOMPARABLE, f"advisory: {kinds} of {kernels}: {remark}"))
    return notes


def failure_reason(result: Result) -> str:
    """The reason of a failure: the verdict's where it is an error (an advisory verdict says so there), else the result's."""
    verdict = result.verdict
    return (verdict.reason if verdict is not None and verdict.kind is VerdictKind.ERROR else "") or result.reason


def _why_untimed(result: Result) -> str:
    """The reason without the status, which a verdict's reason may repeat."""
    return failure_reason(result).removeprefix(f"{result.status}: ") if result.status in FAILED_STATUSES else result.reason


def part_label(result: Result) -> str:
    """`covers: norm only: no scale, no shift`, or that it is outside the contract; empty for a kernel that does the whole op."""
    if result.outside_contract:
        return result.covers
    return f"covers: {result.covers}" if result.covers else ""


def part_notes(run: Run) -> list[str]:
    """One sentence for every kernel that covers a part of its op, or is outside the contract, and was timed: its times stand alone."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in run.results:
        if result.covers and result.measurement is not None:
            found.setdefault((result.kernel, result.covers), []).append(f"{result.case} {with_spread(result.measurement.time_us)} us")
    return [
        f"{kernel} {_stands_alone(covers)} and is compared with no other kernel's: {', '.join(times)}"
        for (kernel, covers), times in found.items()
    ]


def _stands_alone(covers: str) -> str:
    if covers.startswith(OUTSIDE_CONTRACT):
        return f"is {covers}; its time is for information"
    return f"covers {covers}; its time is that part's"


def named_cases(excuse: Excuse, total: int) -> str:
    """The cases an excuse holds for: `every case`, or up to four names."""
    if total > 1 and len(excuse.cases) == total:
        return "every case"
    more = len(excuse.cases) - 4
    return ", ".join(excuse.cases[:4]) + (f" and {more} more" if more > 0 else "")


FEWEST_TOGETHER = 4
"""Results of one cause from which one line tells of all."""
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
"""A whole number that stands alone: no part of `float32`, `fused_cuda@2` or 1.5."""
_MILD = (Status.NOT_MEASURED, Status.NOT_RUNNABLE, Status.UNSUPPORTED, Status.CHECKED)


def _time(result: Result) -> float:
    return result.measurement.time_us.value if result.measurement is not None else math.inf
