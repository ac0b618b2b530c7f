"""Evidence about regressions, as commands ask for it: the providers, and their progress on stderr."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UsageError

if TYPE_CHECKING:
    from ..config import Project
    from ..counters.attachment import KernelFolders, OnCapture
    from ..device import Device
    from ..evidence.attached import Provider
    from ..evidence.static_attachment import Side, Told, Wanted
    from ..registry import Collection, Op
    from ..runner.evidence.recorded_sources import Compile
    from ..schema import CacheState, Run


class Measured(NamedTuple):
    """What was measured here, and how."""

    collection: Collection
    device: Device
    cache: CacheState
    kernel_timeout: float


def providers_between(measured: Measured, other: Sequence[Path], name: str) -> list[Provider]:
    """For a comparison of this checkout's kernels with those in `other`, which reports call `name`."""
    from ..counters.attachment import KernelFolders
    from ..evidence.static_attachment import StaticEvidence
    from ..evidence.targets import target_of

    collection, device = measured.collection, measured.device
    compile_in = _compiler(collection.ops)
    static = StaticEvidence(
        lambda: target_of(device.kind, device.name, device.compute_capability),
        before=compile_in(other, name),
        after=compile_in(collection.roots, "this checkout"),
    )
    return [static, *_counters(measured, lambda: nullcontext(KernelFolders(tuple(other), name)))]


def providers_of_run(project: Project, measured: Measured, baseline: Run) -> list[Provider]:
    """For the run that was just made of this checkout's kernels, and judged by `baseline`."""
    import msgspec

    from ..evidence.static_attachment import StaticEvidence
    from ..evidence.targets import target_of
    from ..runner.evidence.recorded_sources import baseline_kernels, baseline_side

    collection, device = measured.collection, measured.device
    project = msgspec.structs.replace(project, kernels=collection.roots)
    compile_in = _compiler(collection.ops)
    static = StaticEvidence(
        lambda: target_of(device.kind, device.name, device.compute_capability),
        before=baseline_side(baseline.environment, project, compile_in),
        after=compile_in(project.kernels, "this checkout"),
    )
    return [static, *_counters(measured, lambda: baseline_kernels(baseline.environment, project))]


def providers_of_gate(project: Project, ops: Mapping[str, Op], run: Run, baseline: Run) -> list[Provider]:
    """For a stored run that is judged by `baseline`, perhaps on a machine without its device: nothing that needs one."""
    from ..evidence.static_attachment import StaticEvidence
    from ..evidence.targets import target_of
    from ..runner.evidence.recorded_sources import baseline_side, run_side

    compile_in = _compiler(ops)
    return [
        StaticEvidence(
            lambda: target_of(run.environment.device, run.environment.device_name),
            before=baseline_side(baseline.environment, project, compile_in),
            after=run_side(run.environment, project, compile_in),
        )
    ]


def _counters(measured: Measured, before: Callable[[], AbstractContextManager[KernelFolders]]) -> list[Provider]:
    """Hardware counters of both sides; none on a device that has none."""
    if measured.device.kind != "cuda":
        return []
    from ..counters.attachment import CountersEvidence
    from ..report.counters_table import changed_rows, readings

    return [
        CountersEvidence(
            measured.device,
            measured.collection,
            before,
            cache=measured.cache,
            silence_s=measured.kernel_timeout,
            rows=changed_rows,
            sentences=readings,
            progress=_captures_shown,
        )
    ]


@contextmanager
def _captures_shown() -> Iterator[OnCapture]:
    from ..evidence.messages import Progress
    from .static_work import ProgressLine

    with ProgressLine("evidence, hardware counters") as line:
        yield lambda what, done, total: line.show(Progress(what, done, total))


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
