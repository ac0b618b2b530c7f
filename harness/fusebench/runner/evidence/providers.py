"""The providers of evidence about regressions: compiled code of both revisions, and hardware counters where they can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...config import Project
from ...cores import usable_cores
from ...counters.attachment import CountersEvidence, KernelFolders, OnCapture, Rows, Sentences
from ...device import Device
from ...errors import UsageError
from ...evidence.attached import Provider
from ...evidence.evidence_cache import EvidenceCache, cache_folder
from ...evidence.static_attachment import EvidenceReply, EvidenceRequest, EvidenceSource, StaticEvidence, compiled_source
from ...evidence.static_process import Progress
from ...evidence.targets import target_of
from ...schema import CacheState, Run
from ...suites import Ops
from ..case_kernels import Kernels
from .recorded_sources import Compile, OlderTimesNamed, baseline_kernels, baseline_source, run_source

THIS_CHECKOUT = "this checkout"
"""Head's name in reports."""


class EvidenceTools(NamedTuple):
    """The wording of evidence, and its progress display; reports and the command line provide both."""

    rows: Rows
    """Rows of a table of counters that changed."""
    sentences: Sentences
    """The reading of counters, in words."""
    progress: Callable[[str], AbstractContextManager[Callable[[Progress], None]]]
    """A line of progress under a label."""


class MeasuredKernels(NamedTuple):
    """The kernels that were measured here, where and how."""

    collection: Kernels
    device: Device
    cache: CacheState
    kernel_timeout: float
    """Seconds without a sign of life after which a kernel counts as hung."""


def providers_between(
    measured: MeasuredKernels, base: Sequence[Path], name: str, tools: EvidenceTools, *, head: str = THIS_CHECKOUT
) -> list[Provider]:
    """For a comparison of the measured kernels, which reports call `head`, with those in the folders `base`, which they call `name`."""
    collection, device = measured.collection, measured.device
    compile_in = _compiler(collection.ops, tools)
    static = StaticEvidence(
        lambda: target_of(device.kind, device.name, device.compute_capability),
        before=compile_in(base, name),
        after=compile_in(collection.roots, head),
    )
    return [static, *_counters(measured, lambda: nullcontext(KernelFolders(tuple(base), name)), tools)]


def providers_of_run(project: Project, measured: MeasuredKernels, baseline: Run, tools: EvidenceTools) -> list[Provider]:
    """For the run that was just made of this checkout's kernels, and judged by `baseline`."""
    collection, device = measured.collection, measured.device
    project = msgspec.structs.replace(project, kernels=collection.roots)
    compile_in = _compiler(collection.ops, tools)
    static = StaticEvidence(
        lambda: target_of(device.kind, device.name, device.compute_capability),
        before=baseline_source(baseline.environment, project, compile_in),
        after=compile_in(project.kernels, THIS_CHECKOUT),
    )
    counters = _counters(measured, lambda: baseline_kernels(baseline.environment, project), tools)
    return [OlderTimesNamed(baseline, one) for one in (static, *counters)]


def providers_of_gate(project: Project, ops: Ops, run: Run, baseline: Run, tools: EvidenceTools) -> list[Provider]:
    """For a stored run judged against `baseline`, perhaps on a machine without its device: only evidence that needs no device."""
    compile_in = _compiler(ops, tools)
    static = StaticEvidence(
        lambda: target_of(run.environment.device, run.environment.device_name),
        before=baseline_source(baseline.environment, project, compile_in),
        after=run_source(run.environment, project, compile_in),
    )
    return [OlderTimesNamed(baseline, static)]


def _counters(measured: MeasuredKernels, base: Callable[[], AbstractContextManager[KernelFolders]], tools: EvidenceTools) -> list[Provider]:
    """Hardware counters of head and base; none on a device that has none."""
    if measured.device.kind != "cuda":
        return []

    @contextmanager
    def captures_shown() -> Iterator[OnCapture]:
        with tools.progress("evidence, hardware counters") as show:
            yield lambda what, done, total: show(Progress(what, done, total))

    return [
        CountersEvidence(
            measured.device,
            measured.collection,
            base,
            cache=measured.cache,
            silence_s=measured.kernel_timeout,
            rows=tools.rows,
            sentences=tools.sentences,
            progress=captures_shown,
        )
    ]


def _compiler(ops: Ops, tools: EvidenceTools) -> Compile:
    def compile_in(roots: Sequence[Path], name: str) -> EvidenceSource:
        def tell(wanted: EvidenceRequest) -> EvidenceReply:
            unknown = sorted({case.op for case in wanted.cases} - ops.keys())
            if unknown:
                raise UsageError(f"the kernels' folders of this project hold no op {', '.join(unknown)}")
            with tools.progress(f"evidence, {name}, {wanted.target.name}") as show:
                jobs, cache = usable_cores(), EvidenceCache(cache_folder())
                return compiled_source(roots, name, ops=ops, jobs=jobs, cache=cache, on_progress=show)(wanted)

        return tell

    return compile_in
