"""A call that substituted models make beside ops: no op of a project, so that no kernel of one runs and no suite has a case of it."""

from __future__ import annotations

from typing import Any, ClassVar

from ..registry.dispatching.counting import Selection, counting


class ExtraCall:
    """Stands for a `Dispatcher`, and for its op.

    Args:
        reason: why no call is fused; empty if calls may be.
    """

    name: ClassVar[str]
    """Among those of ops."""
    kernel: ClassVar[str]
    split: ClassVar[str]
    """What runs where a call is not fused."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason
        self._fallbacks: dict[str, Selection] = {}
        self.op = self

    def __call__(self, *args: Any) -> Any:
        """What the call computes, fused where it may be."""
        raise NotImplementedError

    def reason_split(self, *args: Any) -> str:
        """Why such a call is not fused; empty if it is."""
        raise NotImplementedError

    def explain(self, *args: Any) -> Selection:
        """What such a call runs, and why."""
        return self._selection(self.reason_split(*args))

    @property
    def fallbacks(self) -> list[Selection]:
        """Every distinct fallback of eager calls so far."""
        return list(self._fallbacks.values())

    def params_of(self, *args: Any) -> Any:
        """The sizes of a call."""
        raise NotImplementedError

    def shape(self, params: Any) -> str:
        """The sizes in words."""
        raise NotImplementedError

    def minimum_bytes(self, params: Any) -> int:
        """Bytes that a call must read and write."""
        raise NotImplementedError

    def _count(self, reason: str) -> None:
        if reason and reason not in self._fallbacks:
            self._fallbacks[reason] = self._selection(reason)
        if counting.calls is not None:
            counting.calls[self._selection(reason)] += 1

    def _selection(self, reason: str) -> Selection:
        if not reason:
            return Selection(kernel=self.kernel, fallback=False)
        return Selection(kernel=self.split, fallback=True, declined=((self.kernel, reason),))
