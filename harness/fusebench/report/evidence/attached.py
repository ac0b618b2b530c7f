"""Evidence attached to verdicts.  Equal evidence is shown once, with the cases it holds for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...schema import Attachment, Run
from .. import escape
from ..terminal import FittedTable

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_ON_A_TERMINAL = 8
"""Tables that still fit on a few screens; the rest is in the report and in --json."""
_NAMED_CASES = 4

Attached = tuple[str, str, Attachment]
"""Kernel, case key and one attachment of that result."""


class Evidence(msgspec.Struct, frozen=True):
    """One attachment and its subject."""

    subject: str
    """`qk/fused@1 on qk:flux, qk:wan`."""
    attachment: Attachment


def attached_to(run: Run) -> list[Attached]:
    """The attachments of a run's results."""
    return [(result.kernel, result.case_key, attachment) for result in run.results for attachment in result.attachments]


def grouped(entries: Iterable[Attached]) -> list[Evidence]:
    """A kernel's equal attachments together, in the order of the first."""
    cases: dict[tuple[str, Attachment], list[str]] = {}
    for kernel, case, attachment in entries:
        cases.setdefault((kernel, attachment), []).append(case)
    return [Evidence(f"{kernel} on {_named(keys)}", attachment) for (kernel, attachment), keys in cases.items()]


def evidence_parts(entries: Iterable[Attached]) -> list[RenderableType]:
    """Tables and sentences for a terminal: the first few, and how many more there are."""
    from rich.text import Text

    found = grouped(escape.cleaned(list(entries)))
    parts: list[RenderableType] = []
    for one in found[:SHOWN_ON_A_TERMINAL]:
        parts.append(Text.assemble((one.subject, "bold"), f": {one.attachment.title}"))
        if one.attachment.rows:
            parts.append(FittedTable(one.attachment.columns, one.attachment.rows))
        parts += [Text(f"  {note}") for note in one.attachment.notes]
    if len(found) > SHOWN_ON_A_TERMINAL:
        parts.append(Text(f"evidence about {len(found) - SHOWN_ON_A_TERMINAL} more is in the report and in --json", style="dim"))
    return parts


def evidence_row(attachments: Sequence[Attachment] | None) -> dict[str, Any]:
    """As a key of a row of JSON values; no key without any, so that rows stay what they were."""
    return {"attachments": [msgspec.to_builtins(attachment) for attachment in attachments]} if attachments else {}


def _named(keys: Sequence[str]) -> str:
    more = len(keys) - _NAMED_CASES
    return ", ".join(keys[:_NAMED_CASES]) + (f" and {more} more" if more > 0 else "")
