"""The wording of evidence about regressions in commands, and its progress on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...evidence.static_process import Progress
    from ...runner.evidence.providers import EvidenceTools


def evidence_tools() -> EvidenceTools:
    """The words of reports, and one line of progress."""
    from ...report.evidence.counters_table import changed_rows, readings
    from ...runner.evidence.providers import EvidenceTools

    return EvidenceTools(rows=changed_rows, sentences=readings, progress=_progress)


@contextmanager
def _progress(label: str) -> Iterator[Callable[[Progress], None]]:
    from .static_work import ProgressLine

    with ProgressLine(label) as line:
        yield line.show
