"""Calls of a candidate in helper processes, ahead of the judged ones: what they compile, the judged process finds in the shared cache.

A helper answers the same requests as the judged process, so that a candidate cannot tell them apart.  Its answers decide nothing: the judge
compares the calls of one process alone, as without helpers, in the same order.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch

from ..accuracy.execution import place_at_random, run_plain
from ..registry import Kernel, Op
from ..schema.evaluation import EvaluationStatus
from .candidate_group import kill_all
from .channel.protocol import CaseOpened, Load, Loaded, OpenCase
from .exchange import Exchange
from .failures import CandidateError
from .process import KernelProcess

END_S = 5.0
"""Longest wait for a helper's thread once its process was killed."""


class CompilingAhead:
    """Helpers at work on one candidate.  A context manager: leaving it kills them."""

    def __init__(
        self,
        helpers: Sequence[KernelProcess],
        load: Load,
        shapes: Iterator[Any],
        *,
        op: Op,
        split: Kernel,
        device: torch.device,
        deadline: float,
        confined_like: KernelProcess,
    ) -> None:
        """
        Args:
            load: the candidate.
            shapes: parameters to call it with, the most urgent first.
            split: the op's split chain, for shapes and dtypes of outputs.
            deadline: of the evaluation, as `time.monotonic` has it.
            confined_like: the judged process; a helper that is confined by other measures calls nothing.
        """
        self._helpers, self._load, self._shapes = helpers, load, shapes
        self._op, self._split, self._device, self._deadline, self._like = op, split, device, deadline, confined_like
        self._next = threading.Lock()
        self._over = False
        self._threads = [threading.Thread(target=self._work, args=(one,), name="compiling ahead", daemon=True) for one in helpers]
        self.compiled = 0
        """Shapes that were called."""
        self.failures: list[str] = []
        """Why helpers ended early, each once."""

    def __enter__(self) -> CompilingAhead:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        kill_all(self._helpers)
        for thread in self._threads:
            thread.join(END_S)

    def _work(self, helper: KernelProcess) -> None:
        try:
            helper.until_ready()
            if helper.isolation != self._like.isolation:
                raise CandidateError(EvaluationStatus.UNFIT, "it is not confined as the judged process is")
            helper.ask(self._load, Loaded, doing="its import", deadline=self._deadline)
            for params in iter(self._shape, None):
                self._call(helper, params)
        except CandidateError as error:
            self._note(error.reason)
        except Exception as error:  # noqa: BLE001  out of memory, for instance: the judged process goes on without help
            self._note(f"{type(error).__name__}: {error}")
        finally:
            helper.kill()  # its memory is free, and its end is not waited for later

    def _shape(self) -> Any:
        """The next parameters; None once there are none, or the judgement has ended."""
        with self._next:
            return None if self._over else next(self._shapes, None)

    def _call(self, helper: KernelProcess, params: Any) -> None:
        question = OpenCase(token="", params=msgspec.to_builtins(params))
        if helper.ask(question, CaseOpened, doing="supports()", deadline=self._deadline)[0].declined is not None:
            return
        generator = torch.Generator(device=self._device).manual_seed(secrets.randbits(63))
        buffers = self._op.buffers(params, device=self._device, generator=generator)
        exchange = Exchange(helper, run_plain(self._split, self._op, params, buffers))
        placed = place_at_random(buffers, self._device, random.Random(secrets.randbits(128)))
        exchange.time([self._op.arguments(params, placed.buffers)], deadline=self._deadline, doing="1 calls")
        self.compiled += 1

    def _note(self, reason: str) -> None:
        if not self._over:
            self.failures.append(reason)
