"""The text about one job of a pull request: verdict, regressions with their commands, the table of changed kernels, the rest folded.

It is fitted to a number of characters: the least important section is shortened first (`report.fitting`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..report.escape import Markup, cell, code, markdown, one_line
from ..report.fitting import Lines, Section, fitted, fixed, folded
from ..report.run.markdown import markdown_table
from ..report.wording import DASH, ERROR_MEANING, absent_words, count, microseconds, share_of_limit, short_kernel, tallied
from .findings import Judged, worst_first
from .outcome import JobOutcome

HEADER = ("case", "shape", "kernel", "base us", "head us", "change", "SOL", "error", "verdict")
CUT = "Cut here: the whole is in the job's files (`outcome.json`, `junit.xml`)."
_KINDS = ("error", "regression", "undecided", "incomparable", "improvement", "pass")


def comparison_text(outcome: JobOutcome, heading: str, limit: int) -> str:
    """Markdown of at most `limit` characters, under the line `heading`."""
    return fitted(list(_sections(outcome, heading)), limit, shortened=CUT, cut=CUT)


def counted(judged: Sequence[Judged]) -> str:
    """`5 regression, 45 pass`; kernels that cannot run on the machine are not counted."""
    return tallied((one.verdict for one in judged if not one.absent), _KINDS)


def _sections(outcome: JobOutcome, heading: str) -> Iterator[Section]:
    found = worst_first(outcome.judged)
    bad = [one for one in found if one.gating and one.verdict in ("error", "regression")]
    open_ones = [one for one in found if one.gating and one not in bad]
    advisory = [one for one in found if not one.gating]
    yield fixed([heading, "", _counts(outcome)])
    yield Section(9, [_some(_lines, outcome, most) for most in (20, 3, 1)])
    yield Section(8, [_findings(bad, most, length) for most, length in ((20, 130), (5, 130), (3, 130), (1, 130))])
    yield Section(7, [_some(_table, outcome, most) for most in (60, 24, 12, 8, 5, 3, 0)])
    yield Section(4, [_group("Undecided or incomparable", open_ones, most) for most in (20, 3, 0)])
    yield Section(3, [_group("Advisory", advisory, most) for most in (20, 3, 0)])
    yield Section(5, [_some(_evidence, outcome, most) for most in (20, 5, 4, 3, 2, 1, 0)])
    yield Section(6, [_some(_rest, outcome, most) for most in (2_000, 400, 160)])
    yield Section(1, [lambda: _steps(outcome), lambda: _commands(outcome), list])


def _some(make: Callable[[JobOutcome, int], Lines], outcome: JobOutcome, most: int) -> Callable[[], Lines]:
    return lambda: make(outcome, most)


def _findings(found: Sequence[Judged], most: int, length: int) -> Callable[[], Lines]:
    return lambda: _reproduced(found, most, length)


def _group(title: str, found: Sequence[Judged], most: int) -> Callable[[], Lines]:
    return lambda: _grouped(title, found, most)


def _counts(outcome: JobOutcome) -> str:
    """The verdicts by what gave them: a kernel that was compiled and timed has two."""
    timed = [one for one in outcome.judged if one.by != "static"]
    compiled = [one for one in outcome.judged if one.by == "static"]
    parts = [f"{name}: {told}." for name, some in (("Timed", timed), ("Compiled code", compiled)) if (told := counted(some))]
    return " ".join(parts) or "No kernel was judged."


def _lines(outcome: JobOutcome, most: int) -> Lines:
    more = len(outcome.lines) - most
    return [f"* {markdown(one_line(line, 400))}" for line in outcome.lines[:most]] + ([f"* and {more} more"] if more > 0 else [])


def _reproduced(found: Sequence[Judged], most: int, length: int) -> Lines:
    """Regressions and failures, the worst first, each with its reason and the command that reproduces it."""
    lines = []
    for one in found[:most]:
        lines.append(f"* **{one.verdict}** {_named(one)}: {markdown(_start(one.reason, length))}  ")
        lines.append(f"  {code(one.reproduce)}")
    return lines + ([f"* and {counted(found[most:])} more"] if len(found) > most else [])


def _grouped(title: str, found: Sequence[Judged], most: int) -> Lines:
    """Findings with the same verdict and reason in one line; the first tells how to reproduce it."""
    if not found:
        return []
    groups: dict[tuple[str, str], list[Judged]] = {}
    for one in found:
        groups.setdefault((one.verdict, one.reason), []).append(one)
    lines = []
    for (verdict, reason), some in list(groups.items())[:most]:
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        lines.append(f"* {verdict} {_named(some[0])}{more}: {markdown(_start(reason, 200))} ({code(some[0].reproduce)})")
    lines += [f"* and {len(groups) - most} more reasons"] if lines and len(groups) > most else []
    told = f"{title}: {counted(found)}"
    return folded(told, lines) if lines else [told]


def _table(outcome: JobOutcome, most: int) -> Lines:
    """The kernels that are compiled to something else, or whose source has no compiler: times of both revisions."""
    changed = [one for one in outcome.judged if one.timed is not None and not one.unchanged]
    if not changed or not most:
        return []
    worst = {id(one): place for place, one in enumerate(worst_first(changed))}
    changed.sort(key=lambda one: (worst.get(id(one), len(worst)), -(one.change or 1.0)))
    suites = {one.case.partition(":")[0] for one in changed}
    rows = [_row(one, one_suite=len(suites) == 1) for one in changed[:most]]
    more = [f"| and {len(changed) - most} more in `outcome.json` |{' |' * (len(HEADER) - 1)}"] if len(changed) > most else []
    return [*markdown_table(HEADER, rows, right_from=3), *more, "", f"SOL: share of the case's limit. {ERROR_MEANING}."]


def _row(one: Judged, *, one_suite: bool) -> list[str]:
    timed = one.timed
    assert timed is not None, "only timed kernels stand in the table"
    return [
        one.case.partition(":")[2] if one_suite else one.case,
        timed.shape or DASH,
        code(short_kernel(one.kernel)),
        microseconds(timed.base_us),
        microseconds(timed.head_us),
        _change(one),
        share_of_limit(timed.sol),
        DASH if timed.error is None else f"{timed.error:.2f}x",
        Markup(f"**{one.verdict}**") if one.verdict in ("error", "regression") else one.verdict,
    ]


def _change(one: Judged) -> str:
    if one.change is None:
        return DASH
    ends = one.timed.change_ci if one.timed is not None else None
    return f"{100 * (one.change - 1):+.2f} %" + (f" [{100 * (ends[0] - 1):+.2f} %, {100 * (ends[1] - 1):+.2f} %]" if ends else "")


def _evidence(outcome: JobOutcome, most: int) -> Lines:
    """One line per regression: what changed in the compiled code and in the hardware counters."""
    found = [one for one in worst_first(outcome.judged) if one.evidence]
    if not found or not most:
        return []
    lines = [f"* {code(short_kernel(one.kernel))} on {markdown(one.case)}: {markdown(_start(one.evidence, 300))}" for one in found[:most]]
    return folded("Evidence", [*lines, *([f"* and {len(found) - most} more"] if len(found) > most else [])])


def _rest(outcome: JobOutcome, length: int) -> Lines:
    """Unchanged kernels in one line, and in another those that cannot run on the machine."""
    same = [one for one in outcome.judged if one.unchanged]
    names = ", ".join(dict.fromkeys(short_kernel(one.kernel) for one in same))
    lines = [f"unchanged, the same source or machine code ({count(len(same), 'kernel-case pair')}): {names}"] if same else []
    if absent := absent_words((one.kernel, one.reason) for one in outcome.judged if one.absent):
        lines.append(absent)
    return [f"* {markdown(_start(line, length))}" for line in lines]


def _steps(outcome: JobOutcome) -> Lines:
    rows = [[code(step.command), str(step.exit_code), f"{step.seconds:.0f}", one_line(step.reason, 300)] for step in outcome.steps]
    return folded("Steps", markdown_table(("step", "exit code", "seconds", "said"), rows)) if rows else []


def _commands(outcome: JobOutcome) -> Lines:
    return folded("Steps", [f"* {code(step.command)}: exit code {step.exit_code}" for step in outcome.steps]) if outcome.steps else []


def _named(one: Judged) -> str:
    return f"{code(one.kernel)} on {cell(one.case)}"


def _start(text: str, length: int) -> str:
    """`text` as one safe line, its end left out beyond `length` characters: reasons start with what matters."""
    line = one_line(text, 10 * length)
    if len(line) <= length:
        return line
    kept = line[: length - 2]
    open_at = kept.rfind("(")
    return (kept[:open_at].rstrip() if open_at > kept.rfind(")") and 2 * open_at > length else kept) + " …"
