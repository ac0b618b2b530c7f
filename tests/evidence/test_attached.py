"""Evidence for verdicts: every provider is heard, and what befalls one is told in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from fusebench.errors import UsageError
from fusebench.evidence.attached import EvidenceTarget, Key, attachments_of
from fusebench.schema import Attachment, Case

FIRST, SECOND = (EvidenceTarget("op/k@1", Case(suite="s", name=name, op="op", params={})) for name in ("one", "two"))


class Planned:
    """A provider that does what the test says."""

    def __init__(self, kind: str, explain: Callable[[Sequence[EvidenceTarget]], Mapping[Key, Attachment]]) -> None:
        self.kind, self.title, self.explain = kind, f"evidence of kind {kind}", explain


def knows(kind: str, *suspects: EvidenceTarget) -> Planned:
    return Planned(kind, lambda _: {one.key: Attachment(kind=kind, title="known") for one in suspects})


def fails(error: BaseException) -> Planned:
    def explain(_: Sequence[EvidenceTarget]) -> Mapping[Key, Attachment]:
        raise error

    return Planned("failing", explain)


def test_a_suspect_gets_what_every_provider_knows_in_their_order() -> None:
    found = attachments_of([FIRST, SECOND], [knows("static", FIRST, SECOND), knows("counters", SECOND)])
    assert {key: [one.kind for one in attached] for key, attached in found.items()} == {
        ("s:one", "op/k@1"): ["static"],
        ("s:two", "op/k@1"): ["static", "counters"],
    }


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UsageError("no\ntoolchain"), "not collected: no toolchain"),
        (ZeroDivisionError("planted"), "not collected: ZeroDivisionError: planted"),
        (KeyboardInterrupt(), "not collected: interrupted by Ctrl-C"),
    ],
)
def test_a_provider_that_fails_leaves_its_reason_and_the_others_are_heard(error: BaseException, said: str) -> None:
    found = attachments_of([FIRST, SECOND], [fails(error), knows("static", FIRST)])
    missing = Attachment(kind="failing", title="evidence of kind failing", notes=(said,))
    assert found == {FIRST.key: (missing, Attachment(kind="static", title="known")), SECOND.key: (missing,)}


def test_nobody_is_asked_where_nothing_regressed() -> None:
    assert attachments_of([], [fails(AssertionError("asked"))]) == {}
