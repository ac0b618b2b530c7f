"""The kernels of a case in both revisions of a comparison: the pairs, the reasons against comparing a kernel, and the accuracy gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from ...registry.declared import OpDeclaration
from ...registry.kernel import reason_not_runnable
from ...registry.sources import (
    RootDifferences,
    changed_files,
    files_it_may_read,
    is_data,
    name_in_root,
    root_differences,
    roots_from,
    source_digests,
)
from ...schema import FAILED_STATUSES, Case, Result, Status, Verdict, VerdictKind
from ...store.comparison_record import ComparedKernel, RevisionPresence
from ...verdict.revisions import PENDING
from ..case_kernels import AnyKernel, CaseKernels, Kernels, case_kernels, timeable
from ..workers.checking import check
from ..workers.pool import WorkerPool
from ..workers.protocol import BASE, Progress


class KernelPair(msgspec.Struct, frozen=True):
    """One kernel of one case, in either revision or both."""

    kernel: str
    head: AnyKernel | None
    base: AnyKernel | None
    presence: RevisionPresence
    changed: tuple[str, ...] = ()
    """Files that the kernel is made of or may read and that differ between the revisions."""
    changed_data: tuple[str, ...] = ()
    """The `changed` files that are no code: equal machine code does not show what is read from them."""
    same_root: bool = True
    """Whether every file of the kernels folders is the same in both revisions."""
    reason: str = ""
    """Why its times are not compared; empty if they are."""
    compared: bool = True
    """Whether it is put through the gate in both revisions."""

    @property
    def same_source(self) -> bool:
        """Whether both revisions are made of the same files."""
        return self.presence is RevisionPresence.BOTH and not self.changed

    @property
    def any_kernel(self) -> AnyKernel:
        """Head's kernel, or base's where head has none."""
        kernel = self.head or self.base
        assert kernel is not None, "a pair has at least one kernel"
        return kernel


class _Changed(NamedTuple):
    """Files by name."""

    files: tuple[str, ...]
    data: tuple[str, ...] = ()


class Revisions:
    """The kernels of this checkout (head) and of the revision it is compared with (base)."""

    def __init__(self, head: Kernels, base: Kernels) -> None:
        self.head, self.base = head, base
        self._changed: dict[str, _Changed] = {}

    @cached_property
    def differences(self) -> RootDifferences:
        """The files that differ anywhere in the kernels folders."""
        return root_differences(self.head.roots, self.base.roots)

    def kernel_pairs(self, case: Case, device: str, pattern: str | None = None) -> tuple[CaseKernels, list[KernelPair]]:
        """Head's kernels of the case, and every kernel of either revision that matches `pattern`, head's first."""
        unit = case_kernels(self.head, case, device, pattern, with_baseline=False)
        op = unit.op
        head = {str(kernel.id): kernel for kernel in self.head.kernels_of(op.name, pattern)}
        base = {str(kernel.id): kernel for kernel in self.base.kernels_of(op.name, pattern)}
        base_op = self.base.ops.get(op.name)
        difference = op_difference(op.declaration, base_op.declaration) if base_op is not None else ""
        declined = {result.kernel: result.reason for result in unit.declined}
        found = []
        for name in [*head, *(name for name in base if name not in head)]:
            one, other = head.get(name), base.get(name)
            if one is None or other is None:
                presence, reason = _in_one_revision(one)
                found.append(KernelPair(name, one, other, presence, reason=reason, compared=False))
                continue
            changed = self._files(name, one, other)
            absent = reason_not_runnable(other, device, interpreter=True) or ""
            reason = difference or self._not_compared(unit, one, other, declined.get(name, ""), absent)
            why = reason or timeable(one, device) or timeable(other, device) or ""
            found.append(
                KernelPair(
                    name,
                    one,
                    other,
                    RevisionPresence.BOTH,
                    changed.files,
                    changed_data=changed.data,
                    same_root=self.differences.none,
                    reason=why,
                    compared=not reason,
                )
            )
        return unit, found

    def _files(self, name: str, head: AnyKernel, base: AnyKernel) -> _Changed:
        if name not in self._changed:
            self._changed[name] = self._changed_files(head, base)
        return self._changed[name]

    def _changed_files(self, head: AnyKernel, base: AnyKernel) -> _Changed:
        roots = roots_from(head, self.head.roots), roots_from(base, self.base.roots)
        if not (roots[0] and roots[1]):
            return _Changed((head.file,))  # nothing tells its files, so it counts as changed
        names = {*changed_files(source_digests(head, roots[0]), source_digests(base, roots[1]))}
        for place, path in files_it_may_read(head, roots[0], self.differences):
            names.add(name_in_root(path, first=self.head.roots[place] == roots[0][0]))
        return _Changed(tuple(sorted(names)), tuple(sorted(filter(is_data, names))))

    def _not_compared(self, unit: CaseKernels, head: AnyKernel, base: AnyKernel, declined: str, absent: str) -> str:
        """`declined` and `absent`: why head's kernel does not run, and why base's cannot."""
        if head.covers != base.covers:
            return f"covers {head.covers or 'all of the op'} here and {base.covers or 'all of the op'} in the base revision"
        try:
            self.base.op(unit.op.name).facts(unit.case.params)
        except ValueError as error:
            return f"the base revision refuses the case's parameters: {error}"
        unsupported = absent or self.base.support(unit.case).declined.get(str(base.id), "")
        if declined and unsupported:
            return declined
        if declined:
            return f"{LOST}, but does in the base revision: {declined}"
        return f"does not run in the base revision: {unsupported}" if unsupported else ""


LOST = "does not run here"
"""How the reason of a kernel begins that only base can run: such a kernel is undecided, and no pass."""


NOT_COMPARED = "not compared: "
"""Begins the reason of a kernel that the budget left no time for."""


def unchecked(unit: CaseKernels, pair: KernelPair, undecided: str = "") -> ComparedKernel:
    """A kernel before it is run; `undecided` says why it will not be, if so."""
    lost = pair.reason if pair.reason.startswith(LOST) else ""
    declined = next((one.status for one in unit.declined if one.kernel == pair.kernel and one.reason == pair.reason), None)
    verdict = Verdict(kind=VerdictKind.UNDECIDED, reason=undecided or lost) if undecided or lost else PENDING
    return ComparedKernel(
        case=unit.case.name,
        suite=unit.case.suite,
        op=unit.op.name,
        kernel=pair.kernel,
        role=pair.any_kernel.role,
        presence=pair.presence,
        covers=pair.any_kernel.covers,
        changed_files=pair.changed,
        changed_data=pair.changed_data,
        same_root=pair.same_root,
        new_status=declined,
        reason=undecided or pair.reason,
        verdict=verdict,
    )


def check_both(
    pool: WorkerPool,
    unit: CaseKernels,
    pair: KernelPair,
    *,
    seed: int,
    on_progress: Callable[[Progress], None],
    on_remark: Callable[[str], None],
) -> tuple[Result, Result | None]:
    """Head and base through the gate on the draws of `seed`; identical sources once, base not at all where head fails.

    Raises:
        DeviceUnfitError: no worker can work on the device at all.
    """
    assert pair.head is not None
    assert pair.base is not None
    head = check(pool, unit, pair.head, seed=seed, on_progress=on_progress, on_remark=on_remark)
    if head.status is not Status.CHECKED:
        return head, None
    if pair.same_source:
        return head, head
    return head, check(pool, unit, pair.base, seed=seed, prefix=BASE, on_progress=on_progress, on_remark=on_remark)


def both_right(checked: tuple[Result, Result | None]) -> bool:
    """Whether the kernel passed the gate in both revisions."""
    return all(one is not None and one.status is Status.CHECKED for one in checked)


def with_checks(one: ComparedKernel, head: Result, base: Result | None) -> ComparedKernel:
    """`one` with the gate's results of both revisions; the reason is head's failure where both fail."""
    reason = one.reason
    if head.status in FAILED_STATUSES:
        reason = head.reason
    elif base is not None and base.status in FAILED_STATUSES:
        reason = f"fails in the base revision ({base.status.value}): {base.reason}"
    one = msgspec.structs.replace(one, new_status=head.status, new_accuracy=head.accuracy, reason=reason)
    return one if base is None else msgspec.structs.replace(one, old_status=base.status, old_accuracy=base.accuracy)


def changed_definition(op: str, files: Sequence[str]) -> str:
    """The warning about an op whose definition differs between the revisions: a kernel may pass because its reference was changed."""
    return (
        f"the definition of op {op} differs from the base revision's ({', '.join(files)}): both revisions are judged by this checkout's "
        "inputs and reference, parts of the op by the base revision's reference; read these files before you trust a verdict on accuracy"
    )


def op_difference(head: OpDeclaration, base: OpDeclaration) -> str:
    """Why kernels of these two definitions of an op cannot take the same arguments; empty if they can."""
    for what in ("schema", "outputs", "in_place"):
        one, other = getattr(head, what), getattr(base, what)
        if one != other:
            return f"the op's {what} differs: {other!r} in the base revision, {one!r} here"
    one, other = head.types, base.types
    changed = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return f"the op's Params differ in {', '.join(changed)}" if changed else ""


def _in_one_revision(head: AnyKernel | None) -> tuple[RevisionPresence, str]:
    if head is not None:
        return RevisionPresence.NEW, "new: the base revision has no such kernel"
    return RevisionPresence.REMOVED, "removed: only the base revision has it"
