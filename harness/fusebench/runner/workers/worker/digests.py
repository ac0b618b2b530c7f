"""The machine code that the arms of a measurement launch, by digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..protocol import CompareTask, MeasureTask, TimeTask

if TYPE_CHECKING:
    from ....timing.arm import Arm
    from ....timing.placement import ArmSpec


def digested(task: MeasureTask) -> frozenset[str]:
    """Names of the arms whose machine code is asked for."""
    if isinstance(task, CompareTask):
        return frozenset(arm for pair in task.pairs for arm in (pair.new, pair.old))
    return frozenset(task.digested) if isinstance(task, TimeTask) else frozenset()


def digests(wanted: frozenset[str], specs: Sequence[ArmSpec], arms: Sequence[Arm]) -> dict[str, dict[str, str]]:
    """By name of a wanted arm, the digest of every function that it launches on the case's inputs."""
    from ....registry.sources import call_digests

    kernels = {spec.name: spec.kernel for spec in specs}
    found: dict[str, dict[str, str]] = {}
    for arm in arms:
        kernel = kernels[arm.name]
        if kernel is not None and arm.name in wanted:
            arm.restore()
            found[arm.name] = call_digests(kernel, arm.call)
    return found


def same_codes(task: CompareTask, known: Mapping[str, Mapping[str, str]]) -> dict[str, bool | None]:
    """By pair, whether both arms launch the same machine code; None if that is not known."""
    from ....verdict.identical_code import same_code

    return {pair.name: same_code(known.get(pair.new, {}), known.get(pair.old, {})) for pair in task.pairs}
