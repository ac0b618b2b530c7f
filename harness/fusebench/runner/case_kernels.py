"""Selects the kernels of a case, and says why the others do not take part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import UsageError
from ..registry import CaseFacts, Collection, Declarations, DeclaredKernel, DeclaredOp, Kernel, Op
from ..registry.declared import CaseSupport
from ..registry.kernel import reason_not_runnable
from ..schema import Case, Language, Result, Status

Kernels = Collection | Declarations
"""Ops and kernels, loaded into this process or declared by another one."""
AnyOp = Op | DeclaredOp
AnyKernel = Kernel | DeclaredKernel


class CaseKernels(msgspec.Struct, frozen=True):
    """The kernels of one case. Every selected kernel is in `runnable` or has a result in `declined`."""

    case: Case
    op: AnyOp
    facts: CaseFacts
    """What the op says of the case."""
    baseline: AnyKernel | None
    runnable: tuple[AnyKernel, ...]
    """To be checked and, where `timeable`, timed."""
    declined: tuple[Result, ...]

    @property
    def baseline_id(self) -> str:
        """The baseline's `op/name@version`; empty if there is none."""
        return str(self.baseline.id) if self.baseline is not None else ""

    part_bytes: Mapping[str, int] = {}
    """By id, the bytes that the part of a runnable kernel must move; without an entry it computes the whole op."""

    dispatched: str = ""
    """Id of the kernel that dispatch takes (see `DispatchChoices`); empty if nobody asked."""

    @property
    def shape(self) -> str:
        return str(self.facts.known("shape"))


def case_kernels(
    collection: Kernels, case: Case, device: str, pattern: str | None = None, *, with_baseline: bool = True, dispatched: str = ""
) -> CaseKernels:
    """Sort the kernels of the case's op.

    Args:
        device: `cpu` or `cuda`.  On a CPU, Triton kernels can be checked (in the interpreter) but not timed.
        pattern: glob that kernels must match.
        dispatched: id of the kernel that dispatch takes; a choice of a kernel is added without a pattern.
        with_baseline: add the baseline even if `pattern` does not match it, because times are relative to it.
    """
    op = collection.op(case.op, where=f"case {case.key}")
    facts, support = op.facts(case.params), collection.support(case)
    baseline = _baseline(collection, op, support, device)
    asked = {kernel.id for kernel in collection.kernels_of(op.name, pattern)}
    if with_baseline and baseline is not None:
        asked.add(baseline.id)
    runnable, declined = [], []
    for kernel in collection.kernels_of(op.name, choices=True):
        if pattern is None and str(kernel.id) == dispatched:
            asked.add(kernel.id)
        if kernel.id not in asked:
            continue
        not_runnable = reason_not_runnable(kernel, device, interpreter=True)
        unsupported = None if not_runnable else support.declined.get(str(kernel.id))
        if not_runnable is None and unsupported is None:
            runnable.append(kernel)
        else:
            status = Status.NOT_RUNNABLE if not_runnable else Status.UNSUPPORTED
            declined.append(result_for(case, str(facts.known("shape")), kernel, status, not_runnable or unsupported or ""))
    return CaseKernels(case, op, facts, baseline, tuple(runnable), tuple(declined), support.part_bytes, dispatched)


def _baseline(collection: Kernels, op: AnyOp, support: CaseSupport, device: str) -> AnyKernel | None:
    """The first of the op's baselines that can be timed on the device for this case and computes all of the op."""
    for name in op.baselines:
        kernel = collection.kernels.get(f"{op.name}/{name}")
        if (
            kernel is not None
            and not kernel.covers
            and reason_not_runnable(kernel, device) is None
            and str(kernel.id) not in support.declined
        ):
            return kernel
    return None


def split_reference(collection: Kernels, op: AnyOp) -> AnyKernel:
    """The op's split reference, without which nothing can be checked."""
    key = f"{op.name}/{op.split_reference}"
    if key not in collection.kernels:
        causes = "; ".join(str(problem) for problem in collection.problems if problem.op == op.name)
        cause = f" ({causes})" if causes else ""
        raise UsageError(f"op {op.name}: its split reference {key} is not loaded, so no kernel can be judged{cause}")
    return collection.kernels[key]


def timeable(kernel: AnyKernel, device: str) -> str | None:
    """Why the kernel is only checked on the device; None if it can be timed."""
    return reason_not_runnable(kernel, device)


def interpreted(kernel: AnyKernel, device: str) -> bool:
    """Whether the kernel is checked in Triton's interpreter."""
    return device == "cpu" and kernel.language is Language.TRITON


def result_for(case: Case, shape: str, kernel: AnyKernel, status: Status, reason: str = "", **known: Any) -> Result:
    """A result of `kernel` on `case`; `shape` is the case's label, `known` the result's other fields."""
    return Result(
        case=case.name,
        suite=case.suite,
        op=case.op,
        kernel=str(kernel.id),
        role=kernel.role,
        status=status,
        shape=shape,
        reason=reason,
        covers=kernel.covers,
        **known,
    )


def work_of(unit: CaseKernels) -> tuple[str, bytes]:
    """The op and its parameters. Cases with equal ones are the same work, often one shape in the suites of an op and of a model."""
    # The parsed parameters, so that a default that one suite writes out makes no difference.
    return unit.op.name, unit.facts.params
