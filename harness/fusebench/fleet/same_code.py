"""Whether two commits' kernels are the same without a measurement: by their source files, else by their compiled code.

Compiled code is compared for the device's target, with the torch operators around it and the scalar arguments of every launch.  Where a
file changed that is no code, the machine code does not show what the kernel reads from it: such commits are never called the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..cores import usable_cores
from ..device import Device
from ..errors import FusebenchError
from ..evidence.collecting import collect
from ..evidence.evidence_cache import EvidenceCache
from ..evidence.fingerprint import case_key, fingerprint, toolchain
from ..evidence.records import StaticStatus
from ..evidence.static_gate import launch_digest
from ..evidence.targets import Target, target_of
from ..runner.ab.revisions import Revisions
from ..runner.case_kernels import Kernels
from ..runner.evidence.regressions import COMPILED
from ..schema import Case, Role
from ..store.bisection_record import Basis

Code = tuple[object, ...]


class SameCode:
    """Compares the kernel `kernel` of two commits on one case."""

    def __init__(self, kernel: str, case: Case, device: Device, scratch: Path, tell: Callable[[str], None]) -> None:
        """
        Args:
            scratch: a folder for compiled code.
            tell: is told, once, why compiled code cannot be compared.
        """
        self._kernel, self._case, self._device, self._tell = kernel, case, device, tell
        self._cache = EvidenceCache(scratch)
        self._codes: dict[tuple[Path, ...], Code | None] = {}

    def basis(self, one: Kernels, other: Kernels) -> Basis | None:
        """What shows that both are the same; None if they differ, or if that is unknown."""
        _, pairs = Revisions(one, other).kernel_pairs(self._case, self._device.kind, self._kernel)
        pair = pairs[0]
        if pair.same_source and not pair.reason:
            return Basis.SAME_SOURCE
        if pair.reason or pair.changed_data or pair.any_kernel.role in (Role.PEER, Role.COMPILED):
            return None
        if self._device.kind != "cuda" or pair.any_kernel.language not in COMPILED:
            return None
        codes = self._code(one), self._code(other)
        return Basis.SAME_CODE if codes[0] is not None and codes[0] == codes[1] else None

    def _code(self, kernels: Kernels) -> Code | None:
        """Everything that a call launches; None if that is unknown."""
        if kernels.roots not in self._codes:
            try:
                self._codes[kernels.roots] = self._compiled(kernels)
            except FusebenchError as error:
                self._codes[kernels.roots] = None
                self._tell(f"compiled code is not compared: {error}")
        return self._codes[kernels.roots]

    def _compiled(self, kernels: Kernels) -> Code | None:
        target: Target = target_of(self._device.kind, self._device.name, self._device.compute_capability)
        report = collect(
            [self._case],
            target,
            ops=kernels.ops,
            roots=kernels.roots,
            kernel=(self._kernel,),
            jobs=usable_cores(),
            cache=self._cache,
        )
        recorded = self._cache.case(case_key(fingerprint(kernels.roots, toolchain()), target.name, self._case, (self._kernel,)))
        calls = next((one.calls for one in recorded.kernels if one.kernel == self._kernel), "") if recorded is not None else ""
        found = next((one for one in report.results if one.kernel == self._kernel), None)
        if found is None or found.status is not StaticStatus.COMPILED or not calls:
            return None
        return (found.params, calls, *(launch_digest(launch) for launch in found.launches))
