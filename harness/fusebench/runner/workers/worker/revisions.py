"""The kernels that a worker loaded: this checkout's, and the base revision's where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import UnknownNameError, UsageError
from ....registry import Collection, Kernel, load_collection
from ....registry.loading.watching import Watch
from ....registry.op_parts import judged_by
from ....schema import Case
from ..protocol import BASE, CompareTask, ConfirmTask, MeasureTask, PairsTask, TimeTask, WorkerSetup

if TYPE_CHECKING:
    from ....timing.placement import ArmSpec


class Revisions:
    """The head's kernels and the base's, in one process.  Ops and their inputs are the head's."""

    def __init__(self, setup: WorkerSetup, watch: Watch) -> None:
        def load(roots: Sequence[Path]) -> Collection:
            # Operators are for what is compiled, which few processes come to; importing the compiler would double their start.
            return load_collection(roots, entry_points=False, only=setup.ops, operators=False, watch=watch)

        self._head = load(setup.roots)
        self._base = load(setup.base_roots) if setup.base_roots else None

    def kernel(self, name: str) -> tuple[Kernel, Collection]:
        """The kernel of either revision, and the kernels of that revision.

        Raises:
            UsageError: there is no base revision, or files of the kernel's op were not loaded.
            UnknownNameError: the revision has no such kernel.
        """
        revision = self._head
        if name.startswith(BASE):
            if self._base is None:
                raise UsageError(f"kernel {name}: this worker was given no folder of the base revision")
            revision = self._base
        try:
            return revision.prepared(name.removeprefix(BASE)), revision
        except UnknownNameError as error:
            problems = [str(one) for one in revision.problems if one.op == name.removeprefix(BASE).partition("/")[0]]
            if not problems:
                raise
            raise UsageError(f"{error} Not loaded: {'; '.join(problems)}") from error

    def case(self, case: Case) -> tuple[Any, Any]:
        """The case's op, and the case's parameters as that op's Params."""
        op = self._head.op(case.op)
        return op, op.parse_params(case.params)

    def split_reference(self, op: Any) -> Kernel:
        """The split kernel whose error the `close` contracts of both revisions are relative to."""
        return self._head.kernel(f"{op.name}/{op.split_reference}")

    def judged(self, kernel: Kernel, op: Any) -> Kernel:
        """`kernel`, judged by the base's reference of its part where both revisions have that part: a change may not bring its judge."""
        return kernel if self._base is None else judged_by(kernel, self._base.ops.get(op.name))

    def beside(self, kernel: Kernel) -> Mapping[str, Kernel]:
        """The kernels of the revision that `kernel` is of, by name."""
        if self._base is not None and self._base.kernels.get(str(kernel.id)) is kernel:
            return self._base.kernels
        return self._head.kernels

    def arms(self, task: MeasureTask, op: Any) -> list[ArmSpec]:
        """The arms of a task: kernels with yardsticks and control, where it names a baseline, and the arms that it names itself."""
        from ....timing.placement import ArmSpec, arm_specs

        named = [
            ArmSpec(arm.name, self.kernel(arm.kernel)[0], None if arm.params is None else op.parse_params(arm.params))
            for arm in (task.arms if isinstance(task, PairsTask) else ())
        ]
        if not isinstance(task, TimeTask | CompareTask | ConfirmTask):
            return named
        return arm_specs([self._head.prepared(kernel) for kernel in task.kernels], self._head.prepared(task.baseline), named)
