"""Hardware counters as evidence for verdicts: a kernel of head beside the same kernel of base."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec

from ..device import Device, device_lock, require_idle
from ..device.nsight import require_counters
from ..errors import FusebenchError
from ..evidence.attached import EvidenceTarget, Key
from ..registry import Collection, Declarations
from ..schema import Attachment, CacheState
from .capturing import Settings, capture, settings_for
from .command import REPORT_SUFFIX
from .metric_sets import EVIDENCE, FULL
from .records import Capture, CaptureStatus

MOST = 4
"""Kernels and cases to capture after one comparison, in base and head each.  A capture took 10 to 11 s on an H200 beside other work, most
of it the start of the process; a regression should not cost more than about a minute on top."""

SETTLE_S = 10.0
"""Seconds for the device to become idle after the measurement: the driver averages utilisation over up to a second, and may list processes
that have just ended."""

COLUMNS = ("figure", "before", "after", "change")
LEFT_OUT = (
    f"left out: after a measurement fusebench captures {MOST} kernels and cases, each kernel's first before any kernel's second; "
    "`fusebench ncu` captures others"
)
UNCHANGED = "no figure of both captures changed by 1 % or more"


class KernelFolders(msgspec.Struct, frozen=True):
    """The kernels folders of one revision."""

    roots: tuple[Path, ...]
    name: str
    """`this checkout`, `commit 1a2b3c`."""
    notes: tuple[str, ...] = ()
    """Remarks on the origin of the folders."""


Rows = Callable[[Capture, Capture], Sequence[tuple[str, ...]]]
"""Returns rows of `COLUMNS`: the figures that changed from one capture to the other."""

Sentences = Callable[[Capture], Sequence[str]]
"""Returns the meaning of a capture's figures, in words."""

OnCapture = Callable[[str, int, int], None]
"""Called with the name of the next capture, the number of captures before it, and the number of all."""


class CountersEvidence:
    """Captures a few suspects in base and head and compares their figures.

    Where counters cannot be read (no Nsight Compute, no permission, a busy or locked device), the first suspect gets one note.  The device
    is locked and found idle before the captures.
    """

    kind = "counters"
    title = "hardware counters"

    def __init__(
        self,
        device: Device,
        collection: Collection | Declarations,
        before: Callable[[], AbstractContextManager[KernelFolders]],
        *,
        cache: CacheState,
        silence_s: float,
        rows: Rows,
        sentences: Sentences,
        progress: Callable[[], AbstractContextManager[OnCapture]],
    ) -> None:
        """Args:
        collection: this checkout's kernels, whose ops make the inputs of both revisions.
        before: opens the base's kernels folders; raises FusebenchError where they are not available.
        cache: cache state of the timed run; `silence_s`: seconds without a sign of life after which a capture is ended.
        """
        self._device, self._collection, self._before = device, collection, before
        self._cache, self._silence_s, self._progress = cache, silence_s, progress
        self._rows, self._sentences = rows, sentences

    def explain(self, suspects: Sequence[EvidenceTarget]) -> dict[Key, Attachment]:
        """An attachment for every suspect that is slower: a table, a reason for its absence, or a note that it was left out."""
        slower = [suspect for suspect in suspects if suspect.slower]
        works = self._works(slower)
        chosen = first_of_each(works)
        found: dict[Key, Attachment] = {}
        reason = ""
        try:
            if chosen:
                for work, attachment in self._compared(chosen):
                    found |= {suspect.key: attachment for suspect in work}
        except FusebenchError as error:
            reason = f"not collected: {' '.join(str(error).split())}"
        except KeyboardInterrupt:
            reason = "not collected: interrupted by Ctrl-C"
        if reason and not found:
            others = f" (nor of {len(slower) - 1} more that are slower)" if len(slower) > 1 else ""
            return {slower[0].key: self._note(f"{reason}{others}")}
        due = {suspect.key for work in chosen for suspect in work}
        return found | {one.key: self._note(reason if one.key in due else LEFT_OUT) for one in slower if one.key not in found}

    def _works(self, suspects: Iterable[EvidenceTarget]) -> list[list[EvidenceTarget]]:
        """Suspects grouped by kernel and work: cases of one op with equal parameters are the same work under several names."""
        works: dict[tuple[str, bytes], list[EvidenceTarget]] = {}
        for suspect in suspects:
            params = self._collection.op(suspect.case.op).facts(suspect.case.params).params
            works.setdefault((suspect.kernel, params), []).append(suspect)
        return list(works.values())

    def _compared(self, works: Sequence[Sequence[EvidenceTarget]]) -> Iterator[tuple[Sequence[EvidenceTarget], Attachment]]:
        """Yield each group with its evidence as soon as that is complete.

        Raises:
            FusebenchError: counters cannot be read here, the device is busy or locked, or the base is not available.
        """
        with (
            self._ready() as settings,
            self._before() as before,
            tempfile.TemporaryDirectory(prefix="fusebench-counters-") as scratch,
            self._progress() as said,
        ):
            after = KernelFolders(self._collection.roots, "this checkout")
            for number, work in enumerate(works):
                captures: list[Capture] = []
                for revision in (before, after):
                    suspect, done = work[0], 2 * number + len(captures)
                    said(f"{suspect.kernel} on {suspect.case.key}, {revision.name}", done, 2 * len(works))
                    # A new file name: a failed capture must not find the report of another.
                    captures.append(self._capture(suspect, revision, settings, Path(scratch) / f"{done}{REPORT_SUFFIX}"))
                yield work, self._attachment((before, after), captures)

    @contextmanager
    def _ready(self) -> Iterator[Settings]:
        probe = require_counters()
        with device_lock(self._device):
            require_idle(self._device, wait_s=SETTLE_S)
            yield settings_for(self._device, probe, metric_set=EVIDENCE, metrics=FULL, cache=self._cache, silence_s=self._silence_s)

    def _capture(self, suspect: EvidenceTarget, revision: KernelFolders, settings: Settings, report: Path) -> Capture:
        case, op = suspect.case, self._collection.op(suspect.case.op)
        facts = op.facts(case.params)
        outcome = capture(
            case,
            suspect.kernel,
            roots=self._collection.roots,
            kernel_roots=revision.roots,
            settings=settings,
            report=report,
        )
        return Capture(
            case=case.name,
            suite=case.suite,
            op=op.name,
            kernel=suspect.kernel,
            role=self._collection.kernel(suspect.kernel).role,
            shape=facts.known("shape"),
            revision=revision.name,
            status=outcome.status,
            reason=outcome.reason,
            minimum_bytes=facts.known("minimum_bytes"),
            launches=outcome.launches,
        )

    def _attachment(self, revisions: tuple[KernelFolders, KernelFolders], captures: Sequence[Capture]) -> Attachment:
        before, after = captures
        complete = all(one.status is CaptureStatus.CAPTURED for one in captures)
        rows = tuple(self._rows(before, after)) if complete else ()
        notes = [
            f"{one.revision}: {one.status.value.replace('_', ' ')}: {one.reason}"
            for one in captures
            if one.status is not CaptureStatus.CAPTURED
        ]
        if complete and len(before.launches) != len(after.launches):
            notes.append(f"launches per call: {before.revision} {len(before.launches)}, {after.revision} {len(after.launches)}")
        if complete and not rows:
            notes.append(UNCHANGED)
        notes += [f"{one.revision}: {sentence}" for one in captures for sentence in self._sentences(one)]
        caches = "caches flushed" if self._cache is CacheState.COLD else "caches as they were"
        return Attachment(
            kind=self.kind,
            title=f"{self.title} of {self._device.name}, {caches}: {revisions[0].name} → {revisions[1].name}",
            columns=COLUMNS,
            rows=rows,
            notes=(*notes, *revisions[0].notes),
        )

    def _note(self, text: str) -> Attachment:
        return Attachment(kind=self.kind, title=self.title, notes=(text,))


def first_of_each(works: Sequence[Sequence[EvidenceTarget]]) -> list[Sequence[EvidenceTarget]]:
    """Up to `MOST` of them: each kernel's first before any kernel's second, in their order."""
    turns: dict[str, int] = {}
    ranked = []
    for place, work in enumerate(works):
        turn = turns.setdefault(work[0].kernel, 0)
        turns[work[0].kernel] += 1
        ranked.append((turn, place))
    return [works[place] for _, place in sorted(ranked)[:MOST]]
