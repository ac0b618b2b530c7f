"""Ops as a substituted model calls them: through `dispatch`, with every call counted by its place while somebody looks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..registry.dispatching.dispatcher import Dispatcher, dispatch
from .extra_call import ExtraCall
from .linear_gelu import LinearGelu
from .silu_product import SiluProduct

if TYPE_CHECKING:
    from ..registry.lookup import Collection


EXTRA_CALLS: Mapping[str, type[ExtraCall]] = {one.name: one for one in (LinearGelu, SiluProduct)}


class OpCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an op by a model."""

    site: str
    place: str
    """Path of the calling module, such as `transformer_blocks.3.attn`."""

    op: str
    params: Any
    """The op's `Params` that the arguments amount to."""
    shape: str
    minimum_bytes: int

    kernel: str
    fallback: str
    """Why no kernel of the preferred role ran; empty where one did."""


class SiteOp:
    """The callable of one op at one place of a model: `dispatch`, and a note of each call while calls are recorded."""

    def __init__(self, calls: OpCalls, dispatcher: Dispatcher | ExtraCall, site: str, place: str) -> None:
        self._calls, self._dispatcher, self._site, self._place = calls, dispatcher, site, place

    @property
    def takes_packed(self) -> bool:
        """Whether its queries and keys may be slices of wider rows: not for a library's kernels, some of which take dense rows alone."""
        return not self._calls.peer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._calls.recording:
            self._calls.note(self._dispatcher, self._site, self._place, args, kwargs)
        return self._dispatcher(*args, **kwargs)


class OpCalls:
    """Gives a model its ops, and counts their calls.

    Args:
        prefer: the role that `dispatch` tries first.
        collection: where kernels are looked up; by default those of the surrounding project.
        peer: a library whose kernels, `peer_LIBRARY`, are tried alone; empty for all of the preferred role.
    """

    def __init__(self, *, prefer: str = "fused", collection: Collection | None = None, peer: str = "") -> None:
        self._prefer, self._collection, self.peer = "peer" if peer else prefer, collection, peer
        self._dispatchers: dict[str, Dispatcher | ExtraCall] = {}
        self._noted: list[OpCall] = []
        self.recording = False
        self.places: dict[str, list[str]] = {}
        """Paths of the modules that were given an op, by site."""

    def at(self, op: str, site: str, place: str) -> SiteOp:
        """The callable of `op`, or of one of `EXTRA_CALLS`, for one site and place of a model."""
        if op not in self._dispatchers:
            self._dispatchers[op] = self._extra(op) if op in EXTRA_CALLS else self._dispatcher(op)
        self.places.setdefault(site, []).append(place)
        return SiteOp(self, self._dispatchers[op], site, place)

    def _extra(self, name: str) -> ExtraCall:
        return EXTRA_CALLS[name](f"not of {self.peer}: a peer's variant has its kernels alone" if self.peer else "")

    def _dispatcher(self, op: str) -> Dispatcher:
        dispatcher = dispatch(op, prefer=self._prefer, collection=self._collection)
        if self.peer:
            dispatcher.candidates = [one for one in dispatcher.candidates if one.id.name == f"peer_{self.peer}"]
        return dispatcher

    @property
    def dispatchers(self) -> Mapping[str, Dispatcher | ExtraCall]:
        """The dispatcher of each op that the model was given, by the op's name."""
        return self._dispatchers

    @contextlib.contextmanager
    def record(self) -> Iterator[list[OpCall]]:
        """Record every call for the time of the block; the list grows as calls come.  For eager calls: a compiled graph holds none."""
        self._noted, self.recording = [], True
        try:
            yield self._noted
        finally:
            self.recording = False

    def note(self, dispatcher: Dispatcher | ExtraCall, site: str, place: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record one call."""
        chosen = dispatcher.explain(*args, **kwargs)
        params = dispatcher.op.params_of(*args, **kwargs)
        op = dispatcher.op
        self._noted.append(
            OpCall(
                site=site,
                place=place,
                op=op.name,
                params=params,
                shape=op.shape(params),
                minimum_bytes=op.minimum_bytes(params),
                kernel=chosen.kernel,
                fallback=chosen.reason,
            )
        )
