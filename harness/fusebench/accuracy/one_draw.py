"""One draw of a check: the kernel run guarded on its inputs, and its errors beside the split chain's."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..registry.kernel import Kernel
from ..registry.op import Op
from .contracts import equal_elements, judge_bitwise, judge_close
from .draws import Special
from .execution import place_at_random, run_guarded, run_plain, shares_memory
from .memory import Placed
from .metrics import ErrorMetrics
from .repetition import Repetition
from .shared_draws import Draw, Draws

LOOSE_TOLERANCE = 5e-2
"""Absolute and relative tolerance of other harnesses for bfloat16 kernels: reported, never the gate."""


@dataclass(frozen=True, kw_only=True)
class OutputErrors:
    """The errors of one output in one draw."""

    kernel: ErrorMetrics
    split: ErrorMetrics
    dtype: torch.dtype
    elements: int
    equal_to_split: int
    """Elements that equal the split chain's bit for bit."""
    within_loose_tolerance: bool
    """Judged where inputs have magnitude 1, as in those harnesses; elsewhere True."""


@dataclass
class Drawn:
    """The result of a draw.  `outputs` is empty if `reason` says why they cannot be compared."""

    reason: str
    """A failure that no pooling of draws can excuse, or an empty string."""
    outputs: dict[str, OutputErrors] = field(default_factory=dict)
    planted_only: bool = False
    """Whether the failure is no more than what became of planted NaN and Inf; `outputs` then holds the errors of the finite values."""


class Drawing:
    """Runs a kernel on draws of one case."""

    def __init__(
        self,
        kernel: Kernel,
        op: Op,
        params: Any,
        *,
        draws: Draws,
        split: Kernel,
        target: Kernel | None,
        device: torch.device,
        repetition: Repetition | None,
    ) -> None:
        """
        Args:
            target: the kernel that this one promises to equal bit for bit, or None.
            repetition: the calls that `repeat` makes; None for none.
        """
        self._kernel, self._op = kernel, op
        self._draws, self._split, self._target, self._device = draws, split, target, device
        self._names = op.outputs_of(params)
        self._rng = random.Random(draws.seed)
        self._numbers = dict.fromkeys(draws.magnitudes, 0)
        self._placed: Placed | None = None
        self._repetition = repetition if repetition is not None and repetition.due(kernel) else None
        self._calls = 0
        self._last: tuple[Draw, list[torch.Tensor]] | None = None
        # torch.compile of the split chain holds eps as a constant: another one would compile every case anew.
        known = draws.variant is None or kernel.compiled or kernel.reason_unsupported(draws.variant) is not None
        self.of_variant = not known
        """Whether draws of magnitudes below 1 are of the case's variant."""

    def draw(self, magnitude: float, specials: tuple[Special, ...], *, twice: bool) -> Drawn:
        """Run the kernel `twice` or once on the next draw of `magnitude`, in which `specials` are planted.

        Raises:
            KernelDeclarationError: an op's arguments copy their buffers.
            Exception: any error of the kernel.
        """
        draw = self._draws.draw(magnitude, self._numbers[magnitude], specials, variant=self.of_variant and magnitude < 1.0)
        self._numbers[magnitude] += 1
        buffers, split = draw.buffers, draw.split
        # The first call is the timed code as it is, on other values at the addresses of the draw before: it shows a result kept by address.
        # The second call, elsewhere in memory and under poison, must give the same bits: an error that moves is a race or a read of
        # unwritten memory.
        if self._placed is None:
            self._placed = place_at_random(buffers, self._device, self._rng)
        self._placed.refill(buffers)
        first = run_guarded(self._kernel, self._op, draw.params, self._placed, expected=split, intercept=False)
        if first.faults:
            return Drawn("; ".join(first.faults))
        reasons = []
        returned = [*first.outputs]
        self._calls += 1 + twice
        if self._repetition is not None:
            self._last = draw, [output.clone() for output in first.outputs]
        if twice:
            elsewhere = place_at_random(buffers, self._device, self._rng)
            second = run_guarded(self._kernel, self._op, draw.params, elsewhere, expected=split, intercept=True)
            if second.faults:
                return Drawn("; ".join(second.faults))
            reasons = self._compare_runs(first.outputs, second.outputs)
            returned += second.outputs
        if self._target is not None:
            reasons += self._compare_with_target(self._target, first.outputs, draw)
        errors = errors_of(self._names, first.outputs, draw, look_loosely=magnitude == 1.0)
        kinds = kinds_of_value(errors)
        if not self._op.in_place:
            _wipe(returned)
        planted_only = bool(specials and kinds and not reasons)
        return Drawn("; ".join(reasons + kinds), _finite(errors) if planted_only else errors, planted_only)

    def repeat(self) -> str:
        """Call the kernel on the last draw until its calls or its time are spent; the difference of a call, or an empty string."""
        if self._repetition is None or self._last is None or self._placed is None:
            return ""
        draw, right = self._last
        return self._repetition.run(self._kernel, self._op, draw, self._placed, right, before=self._calls)

    def _compare_runs(self, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> list[str]:
        reasons = []
        for name, one, other in zip(self._names, first, second, strict=True):
            if shares_memory(one, other):
                reasons.append(
                    f"output {name!r} of the second call is the memory that the first call returned, which the caller still holds"
                )
            elif difference := judge_bitwise(other, one).first_difference:
                reasons.append(
                    f"output {name!r}: two calls on the same inputs differ ({difference} as before): a race, or unwritten memory was used"
                )
        return reasons

    def _compare_with_target(self, target: Kernel, outputs: Sequence[torch.Tensor], draw: Draw) -> list[str]:
        due = draw.split if target is self._split else run_plain(target, self._op, draw.params, draw.buffers)
        return differences_from(target, self._names, outputs, due)


def errors_of(names: Sequence[str], outputs: Sequence[torch.Tensor], draw: Draw, *, look_loosely: bool) -> dict[str, OutputErrors]:
    """By name, the errors of a call's outputs on the inputs of `draw`.

    Args:
        look_loosely: whether the fixed tolerance of other harnesses is tried, too.
    """
    return {
        name: OutputErrors(
            kernel=draw.references[name].errors(output, tolerated=due),
            split=draw.split_errors[name],
            dtype=output.dtype,
            elements=output.numel(),
            equal_to_split=equal_elements(output, due),
            within_loose_tolerance=not look_loosely or _within_loose_tolerance(output, draw.references[name].values),
        )
        for name, output, due in zip(names, outputs, draw.split, strict=True)
    }


def _finite(errors: Mapping[str, OutputErrors]) -> dict[str, OutputErrors]:
    return {name: replace(one, kernel=replace(one.kernel, mismatches=0, first_mismatches=())) for name, one in errors.items()}


def kinds_of_value(errors: Mapping[str, OutputErrors]) -> list[str]:
    """Outputs with NaN or Inf where the reference has none, or the reverse, one sentence each."""
    return [f"output {name!r}: {judge_close(one.kernel, one.kernel, 1.0, 0.0)}" for name, one in errors.items() if one.kernel.mismatches]


def differences_from(target: Kernel, names: Sequence[str], outputs: Sequence[torch.Tensor], due: Sequence[torch.Tensor]) -> list[str]:
    """Outputs that are not, bit for bit, those of `target`, which are `due`: one sentence each."""
    reasons = []
    for name, output, other in zip(names, outputs, due, strict=True):
        agreement = judge_bitwise(output, other)
        if agreement.first_difference:
            reasons.append(
                f"output {name!r} is not bit for bit that of {target.id}: {agreement.elements - agreement.equal} of "
                f"{agreement.elements} elements differ, first {agreement.first_difference}"
            )
    return reasons


def _wipe(outputs: Sequence[torch.Tensor]) -> None:
    """Overwrite outputs that were judged: the next kernel is checked on the same draws, and may be given their memory."""
    for output in outputs:
        if output.is_floating_point():
            output.detach().fill_(torch.nan)


def _within_loose_tolerance(output: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether the finite values are: those harnesses plant no others."""
    expected = reference.to(output.dtype)  # in the output's own dtype, as in those harnesses, and cheap
    if torch.allclose(output, expected, atol=LOOSE_TOLERANCE, rtol=LOOSE_TOLERANCE, equal_nan=True):
        return True
    close = torch.isclose(output, expected, atol=LOOSE_TOLERANCE, rtol=LOOSE_TOLERANCE)
    return bool((close | ~torch.isfinite(output) | ~torch.isfinite(expected)).all())
