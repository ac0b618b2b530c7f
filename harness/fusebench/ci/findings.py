"""What verdicts a job's documents hold, the worst first, each with the command that reproduces it and the kernel's line."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..schema import FAILED_STATUSES, Run, Status

EVIDENCE_FIGURES = 3
"""Figures of each attachment that a line of evidence names."""
_ORDER = {"error": 0, "regression": 1, "undecided": 2, "incomparable": 3, "improvement": 4, "pass": 5}


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a kernel that `ab` timed in both revisions."""

    shape: str = ""
    base_us: float
    head_us: float
    change_ci: tuple[float, float] | None = None
    """Ends of the interval of `Judged.change`; None where there is none."""
    sol: float | None = None
    """Share of the limit that head reaches."""
    error: float | None = None
    """RMS error of head as a multiple of the split chain's."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict on one kernel and case."""

    kernel: str
    case: str
    """`suite:case`."""
    verdict: str
    """`error`, `regression`, `undecided`, `incomparable`, `improvement` or `pass`."""
    gating: bool
    """Whether it counts in the exit code."""
    reason: str
    change: float | None = None
    """New time over old; None if no times were compared."""
    by: str
    """The step that judged: `run`, `gate`, `ab` or `static`."""
    reproduce: str
    """A command line."""
    timed: Timed | None = None
    """None unless `ab` timed it."""
    unchanged: bool = False
    """Whether `ab` passed it as the same source or the same machine code."""
    absent: bool = False
    """Whether it cannot run on that machine, as a peer whose package is not installed.  Such a kernel is counted nowhere."""
    evidence: str = ""
    """What changed in the compiled code and in the hardware counters of a regression, in one line."""

    @property
    def needs_attention(self) -> bool:
        """Whether a reader must see it."""
        return not self.absent and self.verdict in ("error", "regression", "undecided", "incomparable")

    @property
    def level(self) -> str:
        """Of GitHub's annotation."""
        if not self.gating:
            return "notice"
        return "error" if self.verdict in ("error", "regression") else "warning"


def worst_first(found: Iterable[Judged]) -> list[Judged]:
    """The findings for a reader: gating before advisory, failures before regressions, larger slowdowns before smaller ones."""
    seen = [one for one in found if one.needs_attention]
    return sorted(seen, key=lambda one: (not one.gating, _ORDER[one.verdict], -(one.change or 0.0), one.kernel, one.case))


def from_gate(document: Any) -> list[Judged]:
    """The judgements of `fusebench gate --json`, and the cases on which dispatch takes a slower kernel than in the baseline."""
    found = [
        _judged(row, "gate", ["run", "--suite", row["suite"], "--case", row["case"], "--kernel", row["kernel"]], row["decides"])
        for row in _rows(document, "judgements")
    ]
    for row in _rows(document, "dispatch_losses"):
        suite, _, case = row["case"].rpartition(":")
        found.append(
            Judged(
                kernel=row["kernel"],
                case=row["case"],
                verdict="regression",
                gating=True,
                reason=f"dispatch takes it instead of {row['before']}, at {row['ratio']:.2f}x the time",
                change=row["ratio"],
                by="gate",
                reproduce=shlex.join(["fusebench", "tune", "--suite", suite, "--case", case, "--dry-run"]),
            )
        )
    return found


def from_run(run: Run) -> list[Judged]:
    """Kernels that failed in the run itself, which has a verdict on them also where there is no baseline."""
    return [
        Judged(
            kernel=result.kernel,
            case=result.case_key,
            verdict="error",
            gating=result.role_gates,
            reason=f"{result.status}: {result.reason}",
            by="run",
            reproduce=shlex.join(["fusebench", "check", "--suite", result.suite, "--case", result.case, "--kernel", result.kernel]),
        )
        for result in run.results
        if result.status in FAILED_STATUSES
    ]


def from_ab(document: Any, base: str) -> list[Judged]:
    """The results of `fusebench ab --json`.  Peers, and the speed of what torch.compile made, are advisory."""
    found = []
    for row in _rows(document, "results"):
        advisory = row["role"] == "peer" or (row["role"] == "compiled" and row["verdict"] != "error")
        again = ["ab", "--base", base, "--suite", row["suite"], "--case", row["case"], "--kernel", row["kernel"]]
        one = _judged(row, "ab", again, not advisory)
        found.append(
            msgspec.structs.replace(
                one,
                timed=_timed(row),
                unchanged=_unchanged(row),
                absent=row.get("status") == Status.NOT_RUNNABLE,
                evidence=_evidence(row.get("attachments", [])),
            )
        )
    return found


def _unchanged(row: dict[str, Any]) -> bool:
    same = row.get("standing") == "both" and (not row["changed_files"] or row["same_code"] is True)
    return same and row["verdict"] == "pass" and row.get("status") != Status.NOT_RUNNABLE


def _timed(row: dict[str, Any]) -> Timed | None:
    base_us, head_us, ends = row.get("base_us"), row.get("new_us"), row.get("change_ci")
    if base_us is None or head_us is None:
        return None
    return Timed(
        shape=row.get("shape", ""),
        base_us=base_us,
        head_us=head_us,
        change_ci=(ends[0], ends[1]) if ends and None not in ends else None,
        sol=row.get("sol"),
        error=row.get("error_over_split"),
    )


def _evidence(attachments: Sequence[dict[str, Any]]) -> str:
    """`static: registers 40 → 48; counters: DRAM read 50.3 MB → 52.1 MB (+3.6 %)`: the first figures of each attachment's table.

    Tables have the columns figure, before and after, and a remark last.  An attachment without rows gives its first note.
    """
    parts = []
    for one in attachments:
        columns = list(one.get("columns", []))
        if one.get("rows") and {"figure", "before", "after"} <= set(columns):
            place = columns.index("figure")
            said = [
                f"{row[place]} {row[place + 1]} → {row[place + 2]}" + (f" ({row[place + 3]})" if row[place + 3] else "")
                for row in one["rows"][:EVIDENCE_FIGURES]
            ]
            more = len(one["rows"]) - EVIDENCE_FIGURES
            parts.append(f"{one['kind']}: {', '.join(said)}" + (f" and {more} more" if more > 0 else ""))
        elif one.get("notes"):
            parts.append(f"{one['kind']}: {one['notes'][0]}")
    return "; ".join(parts)


def from_static(document: Any, base: str = "") -> list[Judged]:
    """The judgements of `fusebench static --gate --json`, or of `fusebench ab --static --json` against `base`.

    What cannot be compared with a base is advisory: a new kernel has no counterpart.
    """
    found = []
    for row in _rows(document, "judgements"):
        suite, _, case = row["case"].partition(":")
        command = ["ab", "--static", "--base", base] if base else ["static", "--gate"]
        again = [*command, "--arch", row["target"], "--suite", suite, "--case", case, "--kernel", row["kernel"]]
        kind = row["kind"] if row["kind"] in _ORDER else "incomparable"
        shaped = {"suite": suite, "case": case, "kernel": row["kernel"], "verdict": kind, "reason": f"{row['target']}: {row['reason']}"}
        found.append(_judged(shaped, "static", again, gating=not (base and kind == "incomparable")))
    return found


def _rows(document: Any, key: str) -> list[dict[str, Any]]:
    rows = document.get(key) if isinstance(document, dict) else None
    return rows if isinstance(rows, list) else []


def _judged(row: dict[str, Any], by: str, again: Sequence[str], gating: bool) -> Judged:
    return Judged(
        kernel=row["kernel"],
        case=f"{row['suite']}:{row['case']}",
        verdict=row["verdict"],
        gating=gating,
        reason=row["reason"],
        change=row.get("change"),
        by=by,
        reproduce=shlex.join(["fusebench", *again]),
    )


class Declarations:
    """Where kernels are declared: file and line of each `@kernel(op, name, version=…)`, read without importing anything."""

    def __init__(self, root: Path, folders: Iterable[Path]) -> None:
        self._found: dict[str, tuple[str, int]] = {}
        for folder in folders:
            for file in sorted(folder.rglob("*.py")):
                place = str(file.relative_to(root) if file.is_relative_to(root) else file)
                for kernel, line in _declared(file):
                    self._found.setdefault(kernel, (place, line))

    def place(self, kernel: str) -> tuple[str, int] | None:
        """File, relative to the project's root, and line from 1; None for a kernel that the project does not declare."""
        return self._found.get(kernel)

    @property
    def kernels(self) -> set[str]:
        """Ids of all declared kernels."""
        return set(self._found)

    def in_file(self, file: str) -> list[str]:
        """Ids of the kernels that `file`, relative to the project's root, declares."""
        return [kernel for kernel, (place, _) in self._found.items() if place == file]


def _declared(file: Path) -> list[tuple[str, int]]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []  # the command that loads it says what is wrong with it
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "kernel"]
    found = []
    for call in calls:
        values = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        named = {one.arg: one.value.value for one in call.keywords if isinstance(one.value, ast.Constant)}
        if len(values) >= 2:
            found.append(("/".join(values[:2]) + f"@{named.get('version', 1)!s}", call.lineno))
    return found
