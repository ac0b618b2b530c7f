"""Which kernel dispatch would take for a case on the device that is measured; no kernel is loaded for that."""

from __future__ import annotations

from collections.abc import Callable

from ..device import Device
from ..registry.dispatching.ranking import Ranker
from ..registry.dispatching.tables import Ranking, default_order, find_table, in_order
from ..registry.kernel import reason_not_runnable
from ..schema import Case, Role
from .case_kernels import AnyKernel, Kernels


class DispatchChoices:
    """The choices of `fusebench.dispatch` with its default preference, from the same tables."""

    def __init__(self, collection: Kernels, device: Device, triton: str, warn: Callable[[str], None] = lambda text: None) -> None:
        """
        Args:
            triton: the installed version.
            warn: is told once of each table that cannot be used.
        """
        self._collection, self._device, self._triton, self._warn = collection, device, triton, warn
        self._rankers: dict[str, Ranker | None] = {}

    def kernel(self, case: Case) -> str:
        """The id of the kernel; empty on a CPU, where Triton kernels do not run."""
        if self._device.kind != "cuda":
            return ""
        op = self._collection.op(case.op)
        ranker = self._ranker(op.name)
        key = op.facts(case.params).dispatch_key
        ranking = ranker.rank(key) if ranker is not None and key is not None else Ranking((), "")
        declined = self._collection.support(case).declined
        kernels: list[AnyKernel] = [*self._collection.kernels_of(op.name, choices=True)]
        for kernel in in_order(default_order(kernels, op.dispatch_order, Role.FUSED), ranking):
            if not kernel.covers and reason_not_runnable(kernel, "cuda") is None and str(kernel.id) not in declined:
                return str(kernel.id)
        return f"{op.name}/{op.split_reference}"

    def _ranker(self, op: str) -> Ranker | None:
        if op not in self._rankers:
            declared = [str(kernel.id) for kernel in self._collection.kernels_of(op, choices=True)]
            found = find_table(op, self._collection.roots, self._device.name, self._triton, declared)
            if found.refused:
                self._warn(f"dispatch takes the default order of kernels: {found.why}")
            self._rankers[op] = Ranker(found.table) if found.table is not None else None
        return self._rankers[op]
