"""Watches one arm while it is timed: fresh inputs before each call, copies of a few calls' outputs, work that goes on after the return.

Nothing of it is timed: inputs change before the cache is emptied, outputs are copied after the clock of the call stopped.  A kernel
cannot know the chosen calls, which are drawn anew for each replicate.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..registry import Kernel, Op
from .values import FreshValues, Key

if TYPE_CHECKING:
    import torch

    from ..accuracy.timed_outputs import TimedCall

QUIET_S = 0.005
"""Time after a chosen call in which no other Python thread may work: the system's count of a thread's time is renewed every 1 to 4 ms."""
_Foreign = threading._DummyThread
PATIENCE_S = 2.0
"""Time that an arm's calls in a replicate are given for threads to end."""
BUSY_SHARE = 0.3
"""Share of that time from which threads count as working; time in which they waited for a core is left out."""
LEAST_WORK_NS = 500_000
"""Work in that time below which none counts: a thread that waits for a core all the time but for its first steps has no time to be held
against. An honest arm was blamed for the 45 us in which a thread of its neighbour came to rest."""


@dataclass(frozen=True)
class Choice:
    """A call whose outputs are to be copied."""

    number: int
    """Of the arm's calls in the replicate, from 0."""
    key: Key
    """Its inputs."""
    slot: int
    """The place that the copy takes: of several replicates, one stays."""


class Watch:
    """The calls of one arm on one placement."""

    def __init__(self, kernel: Kernel, op: Op, params: Any, values: FreshValues, placed: Mapping[str, torch.Tensor]) -> None:
        """`placed`: the arm's own buffers, which calls read and overwrite."""
        self.kernel, self.params, self.values = kernel, params, values
        self._op = op if kernel.part is None else kernel.part.op_of(op)
        self._placed = placed
        arguments = op.arguments(params, placed)
        self._targets = tuple(arguments[name] for name in self._op.outputs_of(params)) if op.in_place else ()
        self._addresses = [target.data_ptr() for target in self._targets]
        self._always, self._in_turn = _refreshed(placed, self._targets)
        self._turn = self._restored = self._done = 0
        self._key: Key | None = None
        """The inputs as a whole; None once some of them changed by themselves."""
        self._choices: dict[int, Choice] = {}
        self._threads: Sequence[threading.Thread] = ()
        """Alive before the call."""
        self._patience_s = PATIENCE_S
        self.kept: dict[int, TimedCall] = {}
        """By slot."""
        self.left_running = ""
        """Threads that calls left at work, in words."""

    def choose(self, choices: Sequence[Choice]) -> None:
        """Copy the outputs of these calls, counted from the next one."""
        self._restored = self._done = 0
        self._choices = {choice.number: choice for choice in choices}

    def restore(self) -> None:
        """Give the inputs new values: those that a call overwrites and the largest one every time, the others in turn."""
        choice = self._choices.get(self._restored)
        if choice is not None or self._restored == 0:
            self._fill(choice.key if choice is not None else self.values.next_key())
        else:
            names = [*self._always, *self._in_turn[self._turn : self._turn + 1]]
            for name in names:
                self._placed[name].copy_(self.values.window(name, self.values.next_place(name)))
            self._turn = (self._turn + 1) % max(1, len(self._in_turn))
            self._key = None
        self._restored += 1
        self._threads = threading.enumerate()

    def after(self, returned: Any) -> None:
        """Note what a call left, right after its clock stopped."""
        choice = self._choices.get(self._done)
        self._done += 1
        chosen = choice is not None and self._key is not None
        if choice is not None and self._key is not None:
            self.kept[choice.slot] = self._copied(returned, self._key)
        # A foreign thread that once called Python is listed for ever, whatever it does.
        if started := [thread for thread in threading.enumerate() if thread not in self._threads and type(thread) is not _Foreign]:
            self.left_running = f"{len(started)} threads that a call started were alive when it returned"
            self._await(started)
        elif chosen:
            self.left_running = self.left_running or _working_threads()

    def _await(self, started: Sequence[threading.Thread]) -> None:
        """Let the threads of a call end before the next arm's call, as long as there is patience: their work is this arm's."""
        began = time.monotonic()
        for thread in started:
            thread.join(max(0.0, self._patience_s))
        self._patience_s -= time.monotonic() - began

    def _fill(self, key: Key) -> None:
        for name, value in self.values.at(key).items():
            self._placed[name].copy_(value)
        self._key = key

    def _copied(self, returned: Any, key: Key) -> TimedCall:
        from ..accuracy.execution import MalformedError, as_tensors, not_plain
        from ..accuracy.timed_outputs import TimedCall

        values = self.values  # the copy is kept longer than this placement, which `self` would keep
        call = TimedCall(self.kernel, self.params, key, lambda: values.at(key), ())
        if self._op.in_place and returned is None:
            outputs = self._targets
            if self._addresses != [target.data_ptr() for target in outputs]:
                return replace(call, problem="it moved an argument to memory of its own, so that the caller's memory holds no result")
        else:
            try:
                outputs = as_tensors(returned)
            except MalformedError as error:
                return replace(call, problem=str(error))
        for output in outputs:
            if problem := not_plain(output):
                return replace(call, problem=f"an output is {problem}; return a plain torch.Tensor whose values are computed")
        return replace(call, outputs=tuple(output.clone() for output in outputs))


def _refreshed(placed: Mapping[str, torch.Tensor], targets: Sequence[torch.Tensor]) -> tuple[list[str], list[str]]:
    """Names of the buffers to change before every call, and of those to change in turn.

    A copy costs a call some 50 us, most of it in the profiler, so that not all of them change every time.
    """
    overwritten = {target.untyped_storage().data_ptr() for target in targets}
    floating = [name for name, buffer in placed.items() if buffer.is_floating_point()]
    largest = max(floating, key=lambda name: placed[name].nbytes, default="")
    always = [name for name, buffer in placed.items() if buffer.untyped_storage().data_ptr() in overwritten]
    if largest and not always:
        always = [largest]
    return always, [name for name in placed if name not in always]


def _working_threads() -> str:
    """Python threads that work although no call runs, in words; torch's own threads, which spin for a while, are none of them."""
    own = threading.current_thread()
    others = [thread.native_id for thread in threading.enumerate() if thread is not own and thread.native_id]
    if not others:
        return ""
    before, began = [_scheduled_ns(thread) for thread in others], time.monotonic_ns()
    time.sleep(QUIET_S)
    elapsed, worked, share = time.monotonic_ns() - began, 0, 0.0
    for thread, (ran, waited) in zip(others, before, strict=True):
        ran_now, waited_now = _scheduled_ns(thread)
        worked += max(0, ran_now - ran)
        # Of the time that it had a core or wanted none: on a busy machine the pause lasts tens of milliseconds, and any thread works in it.
        share += max(0, ran_now - ran) / max(1, elapsed - max(0, waited_now - waited), ran_now - ran)
    if worked < LEAST_WORK_NS or share <= BUSY_SHARE:
        return ""
    return f"threads worked for {worked / 1e3:.0f} us after a call had returned"


def _scheduled_ns(thread: int) -> tuple[int, int]:
    """Time of a thread on a core, and its waits for one, in nanoseconds; 0 for one that has ended, and where the system does not tell."""
    try:
        ran, waited = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[:2]
        return int(ran), int(waited)
    except (OSError, ValueError):
        return 0, 0


class Watcher:
    """Chooses the timed calls of a case, and keeps what they returned until they are judged."""

    def __init__(self, rng: random.Random, slots: int) -> None:
        """`slots`: calls of each arm that are judged."""
        self._rng, self._slots = rng, slots
        self._replicates = 0
        self._single = ""
        """Of the arms with Params of their own, the one that is judged: each of them needs a reference of its own."""
        self.kept: dict[str, dict[int, TimedCall]] = {}
        self.left_running: dict[str, str] = {}

    def choose(self, watches: Mapping[str, Watch], common: FreshValues, rounds: int) -> None:
        """Choose calls of the next replicate; every slot ends up with a call of any replicate, each equally likely."""
        self._replicates += 1
        slots = [slot for slot in range(self._slots) if self._rng.random() * self._replicates < 1]
        own = [name for name, watch in watches.items() if watch.values is not common]
        if own and not self._single:
            self._single = self._rng.choice(own)
        keys = {name: [watch.values.next_key() for _ in slots] for name, watch in watches.items() if name == self._single}
        shared = [common.next_key() for _ in slots]
        for name, watch in watches.items():
            wanted = slots if watch.values is common or name == self._single else []
            numbers = self._rng.sample(range(rounds), min(rounds, len(wanted)))
            watch.choose([
                Choice(number, key, slot) for number, key, slot in zip(numbers, keys.get(name, shared), wanted, strict=False)
            ])  # fmt: skip

    def collect(self, watches: Mapping[str, Watch]) -> None:
        """Take over the copies of a replicate."""
        for name, watch in watches.items():
            self.kept.setdefault(name, {}).update(watch.kept)
            if watch.left_running:
                self.left_running.setdefault(name, watch.left_running)
            watch.kept = {}
