"""Two runs side by side, and a gate's judgements: rows for JSON, lines for the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..schema import Result, Run, VerdictKind
from ..stats.paired import describe_change
from ..verdict.baseline.judgement import Judgement, Presence
from ..verdict.comparability import fingerprint_differences, record_differences
from ..verdict.exit_status import advisory_remark, is_aside
from ..verdict.noise_floor import Spread
from . import escape
from .run.document import ends, finite
from .run.table import VERDICT_STYLES
from .terminal import FittedTable
from .wording import DASH, FEWEST_TOGETHER, count, error_ratio, microseconds, short_kernel, tallied

if TYPE_CHECKING:
    from rich.console import Console


class _Figures(msgspec.Struct, frozen=True):
    time_us: float | None
    speedup: float | None
    sol: float | None
    error: str
    status: str


def comparison_document(old: Run, new: Run, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The document of `compare --json`: both run ids, the differences between the environments, one row per kernel and case."""
    before, after = _index(old), _index(new)
    rows = []
    for judgement in judgements:
        key = _key(judgement)
        left, right = _figures(before.get(key)), _figures(after.get(key))
        rows.append(
            judgement_row(judgement)
            | {f"old_{name}": getattr(left, name) for name in ("time_us", "speedup", "sol", "status")}
            | {f"new_{name}": getattr(right, name) for name in ("time_us", "speedup", "sol", "status")}
        )
    return {"old": old.id, "new": new.id, "differences": record_differences(new, old) + fingerprint_differences(new, old), "rows": rows}


def judgement_row(judgement: Judgement) -> dict[str, Any]:
    """One judgement as plain JSON values; `change` is new over old."""
    change = judgement.verdict.change
    return {
        "case": judgement.case,
        "suite": judgement.suite,
        "kernel": judgement.kernel,
        "verdict": str(judgement.verdict.kind),
        "decides": judgement.verdict.gating,
        "comparison": str(judgement.basis),
        "standing": str(judgement.presence),
        "change": finite(change.value) if change else None,
        "change_ci": ends(change),
        "p_value": finite(judgement.verdict.p_value),
        "adjusted_p": finite(judgement.verdict.adjusted_p),
        "margin": finite(judgement.verdict.margin),
        "same_code": judgement.same_code,
        "reason": judgement.verdict.reason,
    }


def spread_row(spread: Spread) -> dict[str, Any]:
    """The spread of identical machine code in one class of calls, as plain JSON values."""
    return {
        "low_us": spread.low_us,
        "high_us": finite(spread.high_us),
        "several_launches": spread.several_launches,
        "comparisons": spread.comparisons,
        "largest": spread.largest,
        "beyond": spread.beyond,
        "widening": spread.widening,
    }


def print_comparison(old: Run, new: Run, judgements: Sequence[Judgement], console: Console) -> None:
    """Both runs' times, speedups and errors, the change with its interval, and what differs between the environments."""
    from rich.text import Text

    old, new, judgements = escape.cleaned((old, new, list(judgements)))
    console.print(Text(f"old {old.id}  {old.created}  {old.environment.device_name}"))
    console.print(Text(f"new {new.id}  {new.created}  {new.environment.device_name}"))
    for difference in record_differences(new, old) + fingerprint_differences(new, old):
        console.print(Text(f"differs: {difference}", style="yellow"))
    figures = ("old us", "new us", "old speedup", "new speedup", "old error", "new error", "change")
    rows = []
    before, after = _index(old), _index(new)
    for judgement in judgements:
        left, right = _figures(before.get(_key(judgement))), _figures(after.get(_key(judgement)))
        rows.append(
            [
                judgement.case,
                short_kernel(judgement.kernel),
                microseconds(left.time_us),
                microseconds(right.time_us),
                _times(left.speedup),
                _times(right.speedup),
                left.error,
                right.error,
                _change(judgement),
                _verdict(judgement),
            ]
        )
    console.print(FittedTable(("case", "kernel", *figures, "verdict"), rows, right=figures), crop=False)
    for judgement in judgements:
        if judgement.verdict.kind is not VerdictKind.PASS:
            console.print(_explained(judgement))


def print_judgements(judgements: Sequence[Judgement], console: Console) -> None:
    """Print every verdict but a pass with its reason, then the count of each verdict that gates, and of each that does not.

    A suite's new kernels and cases are one line, and so are those that the run no longer holds: an interrupted nightly lacks a thousand.
    Advisory changes with one remark are one line, too: of torch.compile's choices of a nightly there are fifty.
    """
    judgements = escape.cleaned(list(judgements))
    together: dict[tuple[str, ...], list[Judgement]] = defaultdict(list)
    for judgement in judgements:
        if judgement.presence is not Presence.COMMON and judgement.verdict.kind is VerdictKind.INCOMPARABLE:
            together[judgement.suite, judgement.verdict.reason].append(judgement)
        elif is_aside(judgement.verdict):
            together[(advisory_remark(judgement.verdict),)].append(judgement)
        elif judgement.verdict.kind is not VerdictKind.PASS:
            console.print(_explained(judgement))
    for those in together.values():
        if len(those) < FEWEST_TOGETHER:
            for judgement in those:
                console.print(_explained(judgement))
        else:
            console.print(_aside(those) if is_aside(those[0].verdict) else _grouped(those))
    aside = [one for one in judgements if is_aside(one.verdict)]
    decisive = [one for one in judgements if not is_aside(one.verdict)]
    without = f"; advisory, not in the exit status: {_counted(aside)}" if aside else ""
    missing = sum(judgement.presence is Presence.MISSING for judgement in judgements)
    shrunk = f"; {missing} of the baseline's are missing from the run" if missing else ""
    console.print(
        f"{count(len(decisive), 'kernel-case pair')}: {_counted(decisive) or 'nothing to judge'}{without}{shrunk}", highlight=False
    )


def _counted(judgements: Sequence[Judgement]) -> str:
    """`29 pass, 1 regression`."""
    return tallied(map(_label, judgements), (*VerdictKind, Presence.NEW))


def _label(judgement: Judgement) -> str:
    """The verdict; `new` for what is incomparable because the baseline lacks it, which does not count."""
    new = judgement.presence is Presence.NEW and judgement.verdict.kind is VerdictKind.INCOMPARABLE
    return str(Presence.NEW if new else judgement.verdict.kind)


def _explained(judgement: Judgement) -> Any:
    from rich.text import Text

    text = Text(_label(judgement), style=VERDICT_STYLES[judgement.verdict.kind])
    return text.append(f"  {judgement.suite}:{judgement.case}  {judgement.kernel}  {judgement.verdict.reason}", style="default")


def _aside(those: Sequence[Judgement]) -> Any:
    """Advisory changes with one remark: how many there are of each kind, and how far they reach."""
    from rich.text import Text

    changes = sorted(one.verdict.change.value for one in those if one.verdict.change is not None)
    reach = f", {100 * (changes[0] - 1):+.1f} to {100 * (changes[-1] - 1):+.1f} %" if changes else ""
    what = f"{_pairs(those, sorted({short_kernel(one.kernel) for one in those}))}: {_counted(those)}{reach}"
    parts = [what, advisory_remark(those[0].verdict), "--json lists each"]
    return Text("advisory", style="dim").append(f"  {'; '.join(filter(None, parts))}", style="default")


def _grouped(those: Sequence[Judgement]) -> Any:
    """Kernels and cases of one suite that only one of both records holds, with one reason."""
    from rich.text import Text

    first = those[0]
    text = Text(_label(first), style=VERDICT_STYLES[first.verdict.kind])
    kernels = list(dict.fromkeys(one.kernel for one in those))
    return text.append(f"  {first.suite}: {_pairs(those, kernels)}  {first.verdict.reason}", style="default")


def _pairs(those: Sequence[Judgement], kernels: Sequence[str]) -> str:
    """`5 kernel-case pairs (compiled@1, on 5 cases)`; kernels by their number where they are many."""
    named = ", ".join(kernels) if len(kernels) < FEWEST_TOGETHER else count(len(kernels), "kernel")
    cases = {(one.suite, one.case) for one in those}
    return f"{count(len(those), 'kernel-case pair')} ({named}, on {count(len(cases), 'case')})"


def _verdict(judgement: Judgement) -> Any:
    from rich.text import Text

    label = str(judgement.verdict.kind) if judgement.presence is Presence.COMMON else str(judgement.presence)
    return Text(label, style=VERDICT_STYLES[judgement.verdict.kind])


def _change(judgement: Judgement) -> str:
    return describe_change(judgement.verdict.change) if judgement.verdict.change is not None else DASH


def _times(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}x"


def _figures(result: Result | None) -> _Figures:
    if result is None:
        return _Figures(None, None, None, DASH, "absent")
    timing, accuracy = result.measurement, result.accuracy
    return _Figures(
        time_us=finite(timing.time_us.value) if timing else None,
        speedup=finite(timing.speedup.value) if timing and timing.speedup else None,
        sol=finite(timing.sol) if timing else None,
        error=error_ratio(accuracy),
        status=str(result.status),
    )


def _index(run: Run) -> dict[tuple[str, str, str], Result]:
    return {(result.suite, result.case, result.kernel): result for result in run.results}


def _key(judgement: Judgement) -> tuple[str, str, str]:
    return (judgement.suite, judgement.case, judgement.kernel)
