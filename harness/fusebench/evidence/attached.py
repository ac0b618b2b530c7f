"""Evidence attached to verdicts: the providers, and a guard so that no failure of a provider touches a verdict.

A provider has one kind of evidence: `static` (static_attachment.py) or `counters` (counters/attachment.py).  Another one is an object with
the same three members, listed beside them where a command makes its providers (cli/shared/evidence_work.py).
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
    """A regressed kernel on a case."""

    kernel: str
    """`op/name@version`."""
    case: Case
    slower: bool = True
    """False if the regression is known not to be one of speed."""

    @property
    def key(self) -> Key:
        return self.case.key, self.kernel


class Provider(Protocol):
    """Explains what changed about a kernel on a case."""

    @property
    def kind(self) -> str:
        """The kind of its attachments."""

    @property
    def title(self) -> str:
        """The title of an attachment without evidence."""

    def explain(self, suspects: Sequence[EvidenceTarget]) -> Mapping[Key, Attachment]:
        """The evidence by suspect; suspects that it does not cover have no entry.

        It takes the locks that it needs itself.

        Raises:
            FusebenchError: it has no evidence at all.
        """


def attachments_of(suspects: Sequence[EvidenceTarget], providers: Sequence[Provider]) -> dict[Key, tuple[Attachment, ...]]:
    """Every provider's evidence by suspect, in the order of the providers; no entry where no provider has any.

    Verdicts stand in any case: a provider that fails, or is interrupted by Ctrl-C, leaves its reason in place of evidence.
    """
    found: dict[Key, list[Attachment]] = {}
    for provider in providers if suspects else ():
        try:
            explained = provider.explain(suspects)
        except FusebenchError as error:
            explained = _without(provider, suspects, str(error))
        except KeyboardInterrupt:
            explained = _without(provider, suspects, "interrupted by Ctrl-C")
        except Exception as error:  # noqa: BLE001 - a defect in gathering evidence must not cost the measurement
            explained = _without(provider, suspects, f"{type(error).__name__}: {error}")
        for suspect in suspects:
            if (attachment := explained.get(suspect.key)) is not None:
                found.setdefault(suspect.key, []).append(attachment)
    return {key: tuple(attachments) for key, attachments in found.items()}


def _without(provider: Provider, suspects: Sequence[EvidenceTarget], reason: str) -> dict[Key, Attachment]:
    missing = Attachment(kind=provider.kind, title=provider.title, notes=(f"not collected: {' '.join(reason.split())}",))
    return {suspect.key: missing for suspect in suspects}
