"""Evidence that verdicts bring with them: who is asked for it, and that nobody's failure touches a verdict.

A provider answers for one kind of evidence: `static` (static_attachment.py) and `counters` (counters/attachment.py); another is an object
with the same three members, listed beside them where the providers of a command are made (cli/evidence_work.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from ..errors import FusebenchError
from ..schema import Attachment, Case

Key = tuple[str, str]
"""A case's key and a kernel's id."""


class EvidenceTarget(msgspec.Struct, frozen=True):
    """A kernel on a case that has regressed."""

    kernel: str
    """`op/name@version`."""
    case: Case
    slower: bool = True
    """False where its speed is known not to be what regressed."""

    @property
    def key(self) -> Key:
        return self.case.key, self.kernel


class Provider(Protocol):
    """Something that can say what changed about a kernel on a case."""

    @property
    def kind(self) -> str:
        """As in the attachments that it makes."""

    @property
    def title(self) -> str:
        """What the evidence is called where there is none."""

    def explain(self, suspects: Sequence[EvidenceTarget]) -> Mapping[Key, Attachment]:
        """What it knows, by suspect; suspects that it has no business with are left out.

        May raise FusebenchError where it knows nothing at all, and holds whatever lock it needs itself.
        """


def attachments_of(suspects: Sequence[EvidenceTarget], providers: Sequence[Provider]) -> dict[Key, tuple[Attachment, ...]]:
    """Every provider's evidence by suspect, in the order of the providers; no entry where none has any.

    Verdicts stand whatever happens here: a provider that fails, or is interrupted by Ctrl-C, leaves its reason in the place of evidence.
    """
    found: dict[Key, list[Attachment]] = {}
    for provider in providers if suspects else ():
        try:
            explained = provider.explain(suspects)
        except FusebenchError as error:
            explained = _without(provider, suspects, str(error))
        except KeyboardInterrupt:
            explained = _without(provider, suspects, "interrupted by Ctrl-C")
        except Exception as error:  # noqa: BLE001 - a defect in gathering evidence must not cost the measurement that it was for
            explained = _without(provider, suspects, f"{type(error).__name__}: {error}")
        for suspect in suspects:
            if (attachment := explained.get(suspect.key)) is not None:
                found.setdefault(suspect.key, []).append(attachment)
    return {key: tuple(attachments) for key, attachments in found.items()}


def _without(provider: Provider, suspects: Sequence[EvidenceTarget], reason: str) -> dict[Key, Attachment]:
    missing = Attachment(kind=provider.kind, title=provider.title, notes=(f"not collected: {' '.join(reason.split())}",))
    return {suspect.key: missing for suspect in suspects}
