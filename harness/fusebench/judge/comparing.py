"""The calls that the judge makes of its own beside the gate's: fresh values in each, every output compared afterwards.

They hide the gate's calls among them, they are the timed ones, and their number finds a kernel that is wrong now and then: one wrong call
in fifty shows in 228 calls with 99 % (1 - 0.98^228).
"""

from __future__ import annotations

import math
import random
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..accuracy.contracts import bounds, floor_ulps, judge_bitwise, judge_close
from ..accuracy.draws import Special
from ..accuracy.execution import place_at_random, run_guarded, run_plain
from ..accuracy.memory import ALIGNMENT, VIEW_ALIGNMENT, Placed
from ..accuracy.metrics import ErrorMetrics, merge
from ..accuracy.shared_draws import Draw, Draws
from ..registry import Kernel, Op
from ..registry.signature import positional_names
from ..schema import Bitwise, Close, Contract
from ..schema.evaluation import EvaluationStatus
from .exchange import Returned
from .failures import CandidateError
from .phases import COMPARE, DRAW, Phases

GROSS = 4.0
"""Multiple of a contract's bound that no luck of a single call explains; the gate, which pools draws, judges what lies nearer."""
NEAR_CONSTANT_GROSS = 1.25
"""The same for RMS errors of calls whose rows are nearly constant, held against the split chain's in such calls alone: their elements err
alike, so that a call has no luck.  Right norms of 256 to 5120 channels, sums of up to 512 elements in a row among them, reach 0.46 of the
bound there; a variance as E[x^2] - mean^2 reaches 1.7 to 2.5 at 256 channels and 4.4 or more at 3072.  Maximum errors, which rest on one
element, are not held to it."""
SETTLED, _SETTLED_CALLS = 1.5, 8
"""Multiple of a contract's bound that RMS errors of many calls may reach together, and the fewest calls of a magnitude that are judged so.
The gate, which comes first, holds a kernel to the bound itself; this holds calls to it that come after the gate."""
_SPECIAL_SHARE, _PLAIN_SHARE, _NEAR_CONSTANT_SHARE = 0.15, 0.2, 0.16
"""Shares of calls with rows of special values, as some of the gate's calls have, and of calls all of whose rows have no outlier channels,
or are nearly constant.  A variance as E[x^2] - mean^2 passed 4 of 14 evaluations with half as many of the latter."""
_BETWEEN_SHARE = 0.25
"""Share of calls at a magnitude between those of the op.  A kernel wrong for rows of 1e5 to 1e11 alone passed without them."""
_VIEW_SHARE = 0.25
"""Share of calls, of those that are not timed, whose buffers lie at other multiples of `VIEW_ALIGNMENT` than of `ALIGNMENT`."""
_PLANTED = tuple(kind for kind in Special if kind not in (Special.PLAIN, Special.NEAR_CONSTANT))


@dataclass
class Call:
    """One call of the judge's own."""

    magnitude: float
    draw: Draw
    placed: Placed
    arguments: Mapping[str, Any]
    near_constant: bool = False
    """Whether its rows are."""
    usual: bool = True
    """Whether none of its rows are special."""


class Comparison:
    """Draws calls of one case, and compares what came back."""

    def __init__(
        self,
        kernel: Kernel,
        op: Op,
        params: Any,
        *,
        split: Kernel,
        target: Kernel | None,
        contract: Contract,
        device: torch.device,
        phases: Phases,
    ) -> None:
        """`target`: of a bitwise contract; the op's own split chain may be it."""
        self._phases = phases
        self._kernel, self._op = kernel, op
        self._split, self._target, self._contract, self._device = split, target, contract, device
        self._rng = random.Random(secrets.randbits(128))
        self._draws = Draws(op, params, split=split, device=device, seed=secrets.randbits(63), timed=partial(phases.timed, DRAW))
        self._between = between(self._draws.magnitudes)
        self._numbers = 0
        self._variant: bool | None = None
        self._names = op.outputs_of(params)
        self._found: dict[tuple[float, str, bool], list[tuple[ErrorMetrics, ErrorMetrics]]] = {}
        self._unsettled: dict[tuple[float, str], list[tuple[ErrorMetrics, ErrorMetrics]]] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self.compared = 0
        self._ahead: deque[Call] = deque()

    def some(self, count: int, *, timed: bool = False) -> list[Call]:
        """`count` calls of fresh values at fresh places; timed ones at addresses that models have, which decide how fast memory is."""
        if timed:
            return [self._next(views=0.0) for _ in range(count)]
        return [self._ahead.popleft() if self._ahead else self._next() for _ in range(count)]

    @contextmanager
    def drawing_ahead(self, count: int) -> Iterator[None]:
        """Draw up to `count` of the next calls in another thread, as far as the block lasts: it waits for a process that compiles."""
        if count > 0:
            self._takes_variant()  # asks that process
        over, failures = threading.Event(), list[Exception]()

        def draw() -> None:
            try:
                if self._device.type == "cuda":
                    torch.cuda.set_device(self._device)  # for this thread
                for _ in range(count):
                    if over.is_set():
                        break
                    self._ahead.append(self._next())
            except Exception as error:  # noqa: BLE001  raised below, where the caller draws
                failures.append(error)

        thread = threading.Thread(target=draw, name="draws ahead", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if failures:
            raise failures[0]

    def _next(self, views: float = _VIEW_SHARE) -> Call:
        in_between = bool(self._between) and self._rng.random() < _BETWEEN_SHARE
        magnitude = self._rng.choice(self._between if in_between else (1.0, *self._draws.magnitudes))
        kinds = (self._rng.choice(_PLANTED), Special.PLAIN, Special.NEAR_CONSTANT, None)
        shares = (_SPECIAL_SHARE, _PLAIN_SHARE, _NEAR_CONSTANT_SHARE)
        (kind,) = self._rng.choices(kinds, (*shares, 1 - sum(shares)))
        specials = () if kind is None else (kind,)
        self._numbers += 1
        draw = self._draws.draw(magnitude, self._numbers, specials, variant=magnitude < 1.0 and self._takes_variant())
        alignment = VIEW_ALIGNMENT if self._rng.random() < views else ALIGNMENT
        placed = place_at_random(draw.buffers, self._device, self._rng, alignment)
        return Call(magnitude, draw, placed, self._op.arguments(draw.params, placed.buffers), kind is Special.NEAR_CONSTANT, not specials)

    def _takes_variant(self) -> bool:
        """Whether small inputs come with another option than the case's, as they do in the gate."""
        if self._variant is None:
            variant = self._draws.variant
            self._variant = variant is not None and self._kernel.reason_unsupported(variant) is None
        return self._variant

    def expected(self) -> Sequence[torch.Tensor]:
        """Outputs of the split chain, for shapes and dtypes."""
        return self._draws.draw(1.0, 0, ()).split

    def judge(self, call: Call, returned: Returned) -> None:
        """Compare one call's outputs.

        Raises:
            CandidateError: they are wrong, beyond what luck explains.
        """
        with self._phases.timed(COMPARE):
            self._judge(call, returned)

    def _judge(self, call: Call, returned: Returned) -> None:
        kernel = _delivering(self._kernel, self._op, returned)
        execution = run_guarded(kernel, self._op, call.draw.params, call.placed, expected=call.draw.split, intercept=False)
        self.compared += 1
        if execution.faults:
            self._wrong("; ".join(execution.faults))
        for name, output, due in zip(self._names, execution.outputs, call.draw.split, strict=True):
            errors = call.draw.references[name].errors(output, tolerated=due)
            if errors.mismatches:
                where = "; ".join(errors.first_mismatches)
                self._wrong(
                    f"output {name!r}: NaN or Inf where the reference has none, or the reverse, in {errors.mismatches} elements: {where}"
                )
            self._dtypes[name] = output.dtype
            found = self._found.setdefault((call.magnitude, name, call.near_constant), [])
            found.append((errors, call.draw.split_errors[name]))
            if call.usual:
                self._unsettled.setdefault((call.magnitude, name), []).append(found[-1])
            if isinstance(self._contract, Close):
                self._require_near(name, call, errors, found)
        if isinstance(self._contract, Bitwise) and self._target is not None:
            self._require_bits(call, execution.outputs)

    def settle(self) -> None:
        """Judge the calls since the last time together: errors that no single call shows add up, and so does a bias.

        Raises:
            CandidateError: they are larger than a contract allows.
        """
        found, self._unsettled = self._unsettled, {}
        if not isinstance(self._contract, Close):
            return
        for (magnitude, name), parts in found.items():
            if len(parts) < _SETTLED_CALLS:
                continue
            own, split = (merge(one) for one in zip(*parts, strict=True))
            if reason := judge_close(own, split, SETTLED * self._contract.factor, SETTLED * floor_ulps(self._dtypes[name]), maxima=False):
                text = f"output {name!r} at input magnitude {magnitude:g}, {len(parts)} calls together: {reason}"
                raise CandidateError(EvaluationStatus.WRONG, text)

    def _require_near(self, name: str, call: Call, errors: ErrorMetrics, found: Sequence[tuple[ErrorMetrics, ErrorMetrics]]) -> None:
        """One call against the split chain's errors in all calls of its kind so far, so that one lucky split chain accuses nobody, or in
        this call, where these are larger: all of a gated norm is lost beside 1e14, an error as large as the gate of that draw."""
        assert isinstance(self._contract, Close)
        gross = NEAR_CONSTANT_GROSS if call.near_constant else GROSS
        kind = ", rows nearly constant" if call.near_constant else ""
        factor, floor = self._contract.factor, floor_ulps(self._dtypes[name])
        of_all, of_this = (bounds(errors, split, factor, floor) for split in (merge(one for _, one in found), found[-1][1]))
        for bound in (min(pair, key=lambda one: one.use) for pair in zip(of_all, of_this, strict=True)):
            if bound.use >= gross and bound.limit > 0 and not (call.near_constant and bound.maximum):
                text = f"{bound.what} {bound.error:.3g} exceeds {bound.limit:.3g} ({bound.origin}) more than {gross:g} times"
                self._wrong(f"output {name!r} at input magnitude {call.magnitude:g}{kind}: {text}")

    def _require_bits(self, call: Call, outputs: Sequence[torch.Tensor]) -> None:
        assert self._target is not None
        due = call.draw.split if self._target is self._split else run_plain(self._target, self._op, call.draw.params, call.draw.buffers)
        for name, output, other in zip(self._names, outputs, due, strict=True):
            agreement = judge_bitwise(output, other)
            if agreement.first_difference:
                self._wrong(f"output {name!r} is not bit for bit that of {self._target.id}: first {agreement.first_difference}")

    def _wrong(self, reason: str) -> None:
        raise CandidateError(EvaluationStatus.WRONG, f"{reason} (call {self.compared} of those compared)")


def between(magnitudes: Sequence[float]) -> tuple[float, ...]:
    """Powers of ten strictly between the least and the greatest of `magnitudes`, which are not among them.

    Few enough that calls of the same magnitude are judged together; the rows of one draw spread over more than a power of ten.
    """
    least, most = min(magnitudes), max(magnitudes)
    powers = (float(f"1e{exponent}") for exponent in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1))
    return tuple(power for power in powers if least < power < most and power not in magnitudes)


def named(op: Op, values: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by name."""
    return dict(zip(positional_names(op.schema), values, strict=False)) | dict(keywords)


def _delivering(kernel: Kernel, op: Op, returned: Returned) -> Kernel:
    """A kernel whose call does what the candidate's process did."""
    return Kernel(
        lambda *values, **keywords: returned.deliver(named(op, values, keywords)),
        kernel.id,
        role=kernel.role,
        language=kernel.language,
        contract=kernel.contract,
        requires=(),
        note="",
    )
