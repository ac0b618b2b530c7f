"""Judges static evidence against static evidence, by rules without chance.

A regression is one of: more bytes spilled, more stack or local-memory instructions, narrower global accesses, fewer resident warps, more
instructions than the margin allows.  Other changes are shown and not judged: registers that cost no occupancy, for example.  Code from
different compilers is shown and not judged at all.

Against a baseline of released versions any other machine code is a regression: a released version is frozen, and a change to it is a new
version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from ..schema import KernelId, VerdictKind
from .records import FAILED, KernelEvidence, Launch, StaticReport, StaticStatus, matches_id

DEFAULT_MARGIN = 0.05
"""Share of instructions that may be added: thirty on a fused norm's six hundred, less than the unrolling of one load."""


IDENTICAL = "identical machine code"
"""Reason of a pass where every instruction is equal."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that differs."""

    kind: VerdictKind
    """REGRESSION, IMPROVEMENT, or PASS for a change that is only shown."""
    launch: int
    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.what} {self.old} -> {self.new}"


class StaticJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one kernel and case."""

    target: str
    case: str
    kernel: str
    kind: VerdictKind
    reason: str
    changes: tuple[Change, ...] = ()


def judge(
    new: StaticReport,
    old: StaticReport,
    *,
    margin: float,
    cases: Sequence[str],
    kernel: str | None = None,
    reference: str = "the baseline",
    released: bool = False,
) -> list[StaticJudgement]:
    """A judgement on every kernel and case of `new`, and on the selected kernels of `old` that `new` lacks.

    Args:
        margin: share of instructions that may be added.
        cases: the selected cases (keys `suite:name`).
        kernel: glob of the selected kernels; None for all.
        reference: name of `old` in sentences.
        released: whether `old` holds released versions, whose machine code must not change under the same compilers.
    """
    before = {one.key: one for one in old.results if one.status is StaticStatus.COMPILED}
    judged = []
    for one in new.results:
        kind, reason, changes = _verdict(one, before.get(one.key), margin, reference, released)
        judged.append(
            StaticJudgement(target=new.target, case=one.case, kernel=one.kernel, kind=kind, reason=reason, changes=tuple(changes))
        )
    there, selected = {one.key for one in new.results}, set(cases)
    missing = f"missing: {reference} has it, and no kernel file declares it any more"
    return judged + [
        StaticJudgement(target=new.target, case=one.case, kernel=one.kernel, kind=VerdictKind.UNDECIDED, reason=missing)
        for key, one in before.items()
        if key not in there and one.case in selected and matches_id(one.kernel, kernel)
    ]


_LESS_IS_BETTER: dict[str, Callable[[Launch], int]] = {
    "bytes of spill stores": lambda one: one.code.spill_stores,
    "bytes of spill loads": lambda one: one.code.spill_loads,
    "bytes of stack": lambda one: one.code.stack,
    "local-memory instructions": lambda one: one.code.instructions.local,
}
_SHOWN: dict[str, Callable[[Launch], object]] = {
    "registers": lambda one: one.code.registers,
    "threads per block": lambda one: one.threads,
    "static shared bytes": lambda one: one.code.static_shared,
    "dynamic shared bytes": lambda one: one.dynamic_shared,
    "blocks": lambda one: one.grid[0] * one.grid[1] * one.grid[2],
    "block barriers reserved": lambda one: one.code.block_barriers,
    "limited by": lambda one: ", ".join(one.occupancy.limited_by),
    "shared loads": lambda one: one.code.instructions.shared_loads,
    "shared stores": lambda one: one.code.instructions.shared_stores,
    "barriers": lambda one: one.code.instructions.barriers,
    "shuffles": lambda one: one.code.instructions.shuffles,
    "special functions": lambda one: one.code.instructions.special_functions,
    "branches": lambda one: one.code.instructions.branches,
    "tensor-core instructions": lambda one: one.code.instructions.tensor_core,
    "bulk copies": lambda one: one.code.instructions.bulk_copies,
    "atomics": lambda one: one.code.instructions.atomics,
    "code bytes": lambda one: one.code.size,
    "accumulation registers": lambda one: one.code.amd.accumulation if one.code.amd else 0,
    "scalar registers": lambda one: one.code.amd.scalar if one.code.amd else 0,
    "spilled vector registers": lambda one: one.code.amd.spilled_vector if one.code.amd else 0,
    "spilled scalar registers": lambda one: one.code.amd.spilled_scalar if one.code.amd else 0,
}
"""Figures that are shown and not judged."""


_Verdict = tuple[VerdictKind, str, list[Change]]


def _verdict(new: KernelEvidence, old: KernelEvidence | None, margin: float, reference: str, released: bool) -> _Verdict:
    if new.status in FAILED:
        return VerdictKind.ERROR, new.reason, []
    state = new.status.replace("_", " ")
    if old is None:
        told = f"new: {reference} does not have it" if new.status is StaticStatus.COMPILED else f"{state}: {new.reason}"
        return VerdictKind.PASS, told, []
    if new.status is not StaticStatus.COMPILED:
        return VerdictKind.UNDECIDED, f"{state}: {new.reason}; {reference} has it compiled", []
    if new.params != old.params:
        return VerdictKind.INCOMPARABLE, f"the case has other parameters than in {reference} ({old.shape}, now {new.shape})", []
    return _compared(new, old, margin, reference, released)


def _compared(new: KernelEvidence, old: KernelEvidence, margin: float, reference: str, released: bool) -> _Verdict:
    """The verdict on two records that compiled for the same case."""
    changes = list(_changes(old.launches, new.launches, margin))
    if _compilers(new) != _compilers(old):
        return VerdictKind.INCOMPARABLE, f"compiled by {_compilers(new)}, {reference} by {_compilers(old)}", changes
    if released and changed_in_place(new, old):
        figures = "; ".join(dict.fromkeys(map(str, changes))) or "the same in every figure"
        following = KernelId.parse(new.kernel).version + 1
        reason = f"{new.kernel} is released and its machine code changed in place: make it version {following} ({figures})"
        return VerdictKind.REGRESSION, reason, changes
    for kind in (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT):
        decisive = [str(change) for change in changes if change.kind is kind]
        if decisive:
            return kind, "; ".join(dict.fromkeys(decisive)), changes
    if changes:
        return VerdictKind.PASS, "; ".join(dict.fromkeys(map(str, changes))), changes
    same = [one.code.sha256 for one in old.launches] == [one.code.sha256 for one in new.launches]
    return VerdictKind.PASS, IDENTICAL if same else "other machine code, the same in every figure", []


def changed_in_place(new: KernelEvidence, old: KernelEvidence) -> bool:
    """Whether the same kernel, case and compilers now launch other machine code, or the same code with another launch geometry.

    The name of a device function does not count: a rename changes nothing that runs.
    """
    same_case = (new.kernel, new.case, new.params, _compilers(new)) == (old.kernel, old.case, old.params, _compilers(old))
    return same_case and [launch_digest(one) for one in new.launches] != [launch_digest(one) for one in old.launches]


def launch_digest(launch: Launch) -> tuple[object, ...]:
    """Equal for launches that run the same code on the same grid."""
    code = launch.code
    return launch.grid, launch.threads, launch.dynamic_shared, code.sha256, code.registers, code.static_shared, code.stack


def _compilers(evidence: KernelEvidence) -> str:
    return "; ".join(dict.fromkeys(launch.code.compiler for launch in evidence.launches))


def _changes(old: Sequence[Launch], new: Sequence[Launch], margin: float) -> Iterator[Change]:
    """Changes launch by launch, in order; a launch without a counterpart is compared with an empty one."""
    if len(old) != len(new):
        yield Change(kind=VerdictKind.PASS, launch=0, what="launches", old=str(len(old)), new=str(len(new)))
        totals = [sum(launch.code.instructions.total for launch in launches) for launches in (old, new)]
        yield from _instructions(0, totals[0], totals[1], margin)
    for place, launch in enumerate(new):
        before = old[place] if place < len(old) else None
        yield from _worse_or_better(place, before, launch)
        if before is not None:
            if len(old) == len(new):
                yield from _instructions(place, before.code.instructions.total, launch.code.instructions.total, margin)
            yield from _shown(place, before, launch)


def _worse_or_better(place: int, old: Launch | None, new: Launch) -> Iterator[Change]:
    """Changes of the figures where less is better, then of occupancy and widths."""
    for what, figure in _LESS_IS_BETTER.items():
        before, after = figure(old) if old is not None else 0, figure(new)
        if before != after:
            yield _change(place, what, before, after, worse=after > before)
    if old is None:
        return
    before, after = old.occupancy.warps, new.occupancy.warps
    if before != after:
        yield _change(place, "resident warps", before, after, worse=after < before)
    counts = (old.code.instructions, new.code.instructions)
    for what, wider, narrower in (
        ("global loads", counts[0].global_loads, counts[1].global_loads),
        ("global stores", counts[0].global_stores, counts[1].global_stores),
    ):
        if became_narrower(wider, narrower):
            yield _change(place, what, describe_widths(wider), describe_widths(narrower), worse=True)
        elif became_narrower(narrower, wider):
            yield _change(place, what, describe_widths(wider), describe_widths(narrower), worse=False)
        elif wider != narrower:
            yield _plain(place, what, describe_widths(wider), describe_widths(narrower))


def became_narrower(old: Mapping[int, int], new: Mapping[int, int]) -> bool:
    """Whether work moved to narrower instructions: accesses of some width or wider became fewer, and narrower ones became more."""
    for width in set(old) | set(new):
        wide = [sum(count for size, count in counts.items() if size >= width) for counts in (old, new)]
        narrow = [sum(count for size, count in counts.items() if size < width) for counts in (old, new)]
        if wide[1] < wide[0] and narrow[1] > narrow[0]:
            return True
    return False


def describe_widths(counts: Mapping[int, int]) -> str:
    """`8x16 B, 2x4 B`, the widest first."""
    return ", ".join(f"{count}x{width} B" for width, count in sorted(counts.items(), reverse=True)) or "none"


def _instructions(place: int, old: int, new: int, margin: float) -> Iterator[Change]:
    if old == new:
        return
    if new > old * (1 + margin):
        yield _change(place, "instructions", old, new, worse=True)
    elif new < old * (1 - margin):
        yield _change(place, "instructions", old, new, worse=False)
    else:
        yield _plain(place, "instructions", old, new)


def _shown(place: int, old: Launch, new: Launch) -> Iterator[Change]:
    for what, figure in _SHOWN.items():
        before, after = figure(old), figure(new)
        if before != after:
            yield _plain(place, what, before, after)


def _change(place: int, what: str, old: object, new: object, *, worse: bool) -> Change:
    kind = VerdictKind.REGRESSION if worse else VerdictKind.IMPROVEMENT
    return Change(kind=kind, launch=place, what=what, old=str(old), new=str(new))


def _plain(place: int, what: str, old: object, new: object) -> Change:
    return Change(kind=VerdictKind.PASS, launch=place, what=what, old=str(old), new=str(new))
