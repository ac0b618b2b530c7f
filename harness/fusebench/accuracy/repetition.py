"""Repeated calls on one draw: a kernel that is wrong once in fifty calls is found at 99 %.

A check calls a kernel a few times per draw, which finds what is wrong in every call.  A race or a counter may show in one call in fifty:
n calls miss it with probability 0.98^n.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from ..registry.kernel import Kernel
from ..registry.op import Op
from .contracts import judge_bitwise
from .draws import is_small
from .execution import run_again
from .memory import Placed
from .shared_draws import Draw

CALLS = 228
"""Calls of a kernel: 0.98^228 = 0.01."""

SECONDS = 0.15
"""Time of the repeated calls of a kernel, over all cases that a process checks; where several processes check, one makes them.  228 small
calls take 0.02 to 0.1 s."""

LARGE_SHARE = 0.5
"""Part of the remaining time that a large case may take; a small one that follows makes more calls of the rest."""


class Repetition:
    """The repeated calls of every kernel that a process checks: each kernel's are made once, not once per case."""

    def __init__(self, calls: int = CALLS, seconds: float = SECONDS) -> None:
        self._calls, self._seconds = calls, seconds
        self._made: dict[str, int] = {}
        self._spent: dict[str, float] = {}

    def due(self, kernel: Kernel) -> bool:
        """Whether calls and time of `kernel` are left."""
        name = _key(kernel)
        return self._made.get(name, 0) < self._calls and self._spent.get(name, 0.0) < self._seconds

    def run(self, kernel: Kernel, op: Op, draw: Draw, placed: Placed, right: Sequence[torch.Tensor], *, before: int) -> str:
        """Call `kernel` on `draw` until all its calls or its time are spent, and compare each result with `right` bit for bit.

        Args:
            right: the outputs of a call that was judged.
            before: calls of this check so far, which count too.

        Returns:
            What differs, or an empty string.
        """
        name, began = _key(kernel), time.monotonic()
        made, spent = self._made.get(name, 0) + before, self._spent.get(name, 0.0)
        left = self._seconds - spent
        end = began + (left if is_small(draw.buffers) else LARGE_SHARE * left)
        names, reason, number = op.outputs_of(draw.params), "", 0
        while not reason and made < self._calls and time.monotonic() < end:
            made, number = made + 1, number + 1
            for output, other, what in zip(run_again(kernel, op, draw.params, draw.buffers, placed), right, names, strict=True):
                if difference := judge_bitwise(output, other).first_difference:
                    reason = f"output {what!r}: call {number} on the same inputs differs from a right one: {difference}"
        self._made[name], self._spent[name] = made, spent + time.monotonic() - began
        return reason


def _key(kernel: Kernel) -> str:
    """The kernel in its revision: `ab` checks two of one id."""
    return f"{kernel.id} {kernel.file}"
