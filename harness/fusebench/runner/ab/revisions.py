"""Which kernels of a case stand on both sides of a comparison, why the others are not compared, and what the gate says of each."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from ...registry import Collection, Kernel, Op
from ...registry.capability import reason_not_runnable
from ...registry.sources import changed_files, root_of, source_digests
from ...schema import FAILED_STATUSES, Case, Result, Status, Verdict, VerdictKind
from ...store.comparison_record import ComparedKernel, Standing
from ...verdict.revisions import PENDING
from ..case_kernels import CaseKernels, case_kernels, timeable
from ..workers.checking import Workers, check
from ..workers.protocol import BASE, Progress


class KernelPair(msgspec.Struct, frozen=True):
    """One kernel of one case, on either side or both."""

    kernel: str
    new: Kernel | None
    old: Kernel | None
    standing: Standing
    changed: tuple[str, ...] = ()
    """Files of the kernel that differ between the sides."""
    reason: str = ""
    """Why its times are not compared; empty where they are."""
    compared: bool = True
    """Whether it is put through the gate on both sides."""

    @property
    def same_source(self) -> bool:
        """Whether both sides are made of the same files."""
        return self.standing is Standing.BOTH and not self.changed

    @property
    def kernel_or_other(self) -> Kernel:
        kernel = self.new or self.old
        assert kernel is not None, "a kernel_pair has at least one kernel"
        return kernel


class Revisions:
    """This checkout's kernels and those of the other side."""

    def __init__(self, new: Collection, old: Collection) -> None:
        self.new, self.old = new, old
        self._changed: dict[str, tuple[str, ...]] = {}

    def kernel_pairs(self, case: Case, device: str, pattern: str | None = None) -> tuple[CaseKernels, list[KernelPair]]:
        """The case's case_kernels of this side, and every kernel of either that `pattern` means, this side's first."""
        entry = case_kernels(self.new, case, device, pattern, with_baseline=False)
        op = entry.op
        new = {str(kernel.id): kernel for kernel in self.new.kernels_of(op.name, pattern)}
        old = {str(kernel.id): kernel for kernel in self.old.kernels_of(op.name, pattern)}
        other_op = self.old.ops.get(op.name)
        difference = op_difference(op, other_op) if other_op is not None else ""
        declined = {result.kernel: result.reason for result in entry.declined}
        found = []
        for name in [*new, *(name for name in old if name not in new)]:
            one, other = new.get(name), old.get(name)
            if one is None or other is None:
                found.append(KernelPair(name, one, other, *_one_sided(one), compared=False))
                continue
            changed = self._files(name, one, other)
            absent = reason_not_runnable(other, device, interpreter=True) or ""
            reason = difference or self._not_compared(entry, one, other, declined.get(name, ""), absent)
            why = reason or timeable(one, device) or timeable(other, device) or ""
            found.append(KernelPair(name, one, other, Standing.BOTH, changed, why, compared=not reason))
        return entry, found

    def _files(self, name: str, new: Kernel, old: Kernel) -> tuple[str, ...]:
        if name not in self._changed:
            roots = root_of(new, self.new.roots), root_of(old, self.old.roots)
            if roots[0] is None or roots[1] is None:
                self._changed[name] = (new.file,)  # what it is made of cannot be told, so it counts as changed
            else:
                self._changed[name] = changed_files(source_digests(new, roots[0]), source_digests(old, roots[1]))
        return self._changed[name]

    def _not_compared(self, entry: CaseKernels, new: Kernel, old: Kernel, declined: str, absent: str) -> str:
        """`declined` and `absent`: why the kernel does not run here, and why the other side's cannot."""
        if new.covers != old.covers:
            return f"covers {new.covers or 'all of the op'} here and {old.covers or 'all of the op'} on the other side"
        try:
            params = self.old.op(entry.op.name).parse_params(entry.case.params)
        except (msgspec.ValidationError, ValueError) as error:
            return f"the other side refuses the case's parameters: {error}"
        unsupported = absent or old.reason_unsupported(params) or ""
        if declined and unsupported:
            return declined
        if declined:
            return f"does not run here and does on the other side: {declined}"
        return f"does not run on the other side: {unsupported}" if unsupported else ""


def unchecked(entry: CaseKernels, kernel_pair: KernelPair, undecided: str = "") -> ComparedKernel:
    """What is known of a kernel before it is run; `undecided` says why it will not be, if so."""
    lost = kernel_pair.reason if kernel_pair.reason.startswith("does not run here") else ""
    verdict = Verdict(kind=VerdictKind.UNDECIDED, reason=undecided or lost) if undecided or lost else PENDING
    return ComparedKernel(
        case=entry.case.name,
        suite=entry.case.suite,
        op=entry.op.name,
        kernel=kernel_pair.kernel,
        role=kernel_pair.kernel_or_other.role,
        standing=kernel_pair.standing,
        changed_files=kernel_pair.changed,
        reason=undecided or kernel_pair.reason,
        verdict=verdict,
    )


def check_both(
    workers: Workers, entry: CaseKernels, kernel_pair: KernelPair, on_progress: Callable[[Progress], None]
) -> tuple[Result, Result | None]:
    """Both sides through the gate on the same seed; identical sources once, the other side not at all where this one fails.

    Raises:
        DeviceUnfitError: no worker can work on the device at all.
    """
    assert kernel_pair.new is not None
    assert kernel_pair.old is not None
    seed = secrets.randbits(32)
    new = check(workers, entry, kernel_pair.new, seed=seed, on_progress=on_progress)
    if new.status is not Status.CHECKED:
        return new, None
    if kernel_pair.same_source:
        return new, new
    return new, check(workers, entry, kernel_pair.old, seed=seed, prefix=BASE, on_progress=on_progress)


def both_right(checked: tuple[Result, Result | None]) -> bool:
    """Whether the kernel passed the gate on this side and on the other."""
    return all(one is not None and one.status is Status.CHECKED for one in checked)


def with_checks(one: ComparedKernel, new: Result, old: Result | None) -> ComparedKernel:
    """`one` with what the gate said of both sides; this side's failure is the one to be told."""
    reason = one.reason
    if new.status in FAILED_STATUSES:
        reason = new.reason
    elif old is not None and old.status in FAILED_STATUSES:
        reason = f"fails on the other side ({old.status.value}): {old.reason}"
    one = msgspec.structs.replace(one, new_status=new.status, new_accuracy=new.accuracy, reason=reason)
    return one if old is None else msgspec.structs.replace(one, old_status=old.status, old_accuracy=old.accuracy)


def op_difference(new: Op, old: Op) -> str:
    """Why kernels of these two definitions of an op cannot be given the same arguments; empty where they can."""
    for what in ("schema", "outputs", "in_place"):
        one, other = getattr(new, what), getattr(old, what)
        if one != other:
            return f"the op's {what} differs: {other!r} on the other side, {one!r} here"
    one, other = _fields(new.Params), _fields(old.Params)
    changed = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return f"the op's Params differ in {', '.join(changed)}" if changed else ""


def _fields(params: type[msgspec.Struct]) -> dict[str, Any]:
    """Names of the fields with their types and defaults.

    Types are compared as they are written, since two loads of one class are never the same.
    """
    written = {name: kind for base in reversed(params.__mro__) for name, kind in vars(base).get("__annotations__", {}).items()}
    return {
        field.name: (kind if isinstance(kind := written.get(field.name), str) else _type_name(kind), repr(field.default))
        for field in msgspec.structs.fields(params)
    }


def _type_name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _one_sided(new: Kernel | None) -> tuple[Standing, tuple[str, ...], str]:
    if new is not None:
        return Standing.NEW, (), "new: the other side has no such kernel"
    return Standing.REMOVED, (), "removed: only the other side has it"
