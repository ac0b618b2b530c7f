"""Evidence about regressions, as commands ask for it: the providers, and their progress on stderr."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from ..config import Project
    from ..device import Device
    from ..evidence.attached import Provider
    from ..evidence.static_attachment import Side, Told, Wanted
    from ..registry import Op
    from ..runner.recorded_sources import Compile
    from ..schema import Run


def providers_between(roots: Sequence[Path], other: Sequence[Path], name: str, ops: Mapping[str, Op], device: Device) -> list[Provider]:
    """For a comparison of the kernels in `roots` with those in `other`, which reports call `name`."""
    from ..evidence.static_attachment import StaticEvidence
    from ..evidence.targets import target_of

    compile_in = _compiler(ops)
    return [
        StaticEvidence(
            lambda: target_of(device.kind, device.name, device.compute_capability),
            before=compile_in(other, name),
            after=compile_in(roots, "this checkout"),
        )
    ]


def providers_of_run(project: Project, ops: Mapping[str, Op], device: Device, baseline: Run) -> list[Provider]:
    """For the run that was just made of the project's kernels on `device`, and judged by `baseline`."""
    from ..evidence.static_attachment import StaticEvidence
    from ..evidence.targets import target_of
    from ..runner.recorded_sources import baseline_side

    compile_in = _compiler(ops)
    return [
        StaticEvidence(
            lambda: target_of(device.kind, device.name, device.compute_capability),
            before=baseline_side(baseline.environment, project, compile_in),
            after=compile_in(project.kernels, "this checkout"),
        )
    ]


def providers_of_gate(project: Project, ops: Mapping[str, Op], run: Run, baseline: Run) -> list[Provider]:
    """For a stored run that is judged by `baseline`, perhaps on a machine without its device."""
    from ..evidence.static_attachment import StaticEvidence
    from ..evidence.targets import target_of
    from ..runner.recorded_sources import baseline_side, run_side

    compile_in = _compiler(ops)
    return [
        StaticEvidence(
            lambda: target_of(run.environment.device, run.environment.device_name),
            before=baseline_side(baseline.environment, project, compile_in),
            after=run_side(run.environment, project, compile_in),
        )
    ]


def _compiler(ops: Mapping[str, Op]) -> Compile:
    def compile_in(roots: Sequence[Path], name: str) -> Side:
        def tell(wanted: Wanted) -> Told:
            from ..evidence.evidence_cache import EvidenceCache, cache_folder
            from ..evidence.static_attachment import compiled_side
            from .static_work import ProgressLine

            unknown = sorted({case.op for case in wanted.cases} - ops.keys())
            if unknown:
                raise UsageError(f"the kernels' folders of this project hold no op {', '.join(unknown)}")
            with ProgressLine(f"evidence, {name}, {wanted.target.name}") as line:
                jobs, cache = len(os.sched_getaffinity(0)), EvidenceCache(cache_folder())
                return compiled_side(roots, name, ops=ops, jobs=jobs, cache=cache, on_progress=line.show)(wanted)

        return tell

    return compile_in
