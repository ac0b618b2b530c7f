"""The accuracy gate: draws fresh inputs, runs a kernel guarded, and judges it by its contract.  A kernel that is wrong is never timed."""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import KernelDeclarationError
from ..registry.kernel import Kernel
from ..registry.op import Buffers, Op
from ..registry.torch_operator import interpreting
from ..schema import Accuracy, Bitwise, Close, Language
from .contracts import BIAS_ELEMENTS, BIAS_ROWS, bounds, floor_ulps, judge_bitwise, judge_close
from .draws import MAGNITUDES, MOST_DRAWS, Special, is_small, keep_in_range, plant, special_draws
from .execution import place_at_random, run_guarded, run_plain, shares_memory
from .memory import Placed
from .metrics import ErrorMetrics, compare, merge

LOOSE_TOLERANCE = 5e-2
"""Absolute and relative tolerance that other harnesses pass bfloat16 kernels with: reported, never the gate."""

_CONFIRM_BELOW = 1 << 20
"""Elements of a draw below which a broken error bound is put to more draws before it counts: the maximum over a few thousand elements rests
on a handful of large ones, and the luck of those is not the kernel's fault."""

_CONFIRM_FACTORS = (4, 16)
"""Draws in multiples of the first judgement's, each judged again.  A bfloat16 kernel that rounds as often as the split chain but
elsewhere fails the first judgement in 30 % of the checks of 17 x 256 elements, 10 % with four times the draws, 1 % with sixteen.  What
still fails is found again on as many fresh draws, or was luck: of 30 checks of float32 rows of 8192, where four roundings are two units
in the last place, one failed with sixteen times the draws, and over a suite of hundreds of cases that is a false alarm in every run."""

_GROSS = 4.0
"""Multiple of the bound that no luck explains: fails at once."""

OnDraw = Callable[[int, int], None]
"""Called after each draw with the number done and the number planned as far as is known."""


def check_kernel(
    kernel: Kernel,
    op: Op,
    params: Any,
    *,
    split: Kernel,
    others: Mapping[str, Kernel] | None = None,
    device: torch.device,
    seed: int | None = None,
    rows: int | None = None,
    on_draw: OnDraw | None = None,
) -> Accuracy:
    """Judge `kernel` on `params` by its contract; one that covers a part of the op by that part's reference and split chain.

    Args:
        split: the op's split reference, whose errors the `close` contract is relative to.
        others: kernels by id, among which a `bitwise` contract finds its target.
        device: where inputs are made and the kernel runs.
        seed: of all draws; taken from the operating system when None, and recorded in the result.
        rows: check the case shrunk to that many tokens (`Op.shrink`), for interpreters; to more where a token has so few elements that
            bias would need hundreds of draws.
        on_draw: progress.

    Returns:
        The result; `passed` is False with a `reason` that names what was wrong, where, and at which magnitude.

    Raises:
        KernelDeclarationError: a bitwise target that is not among `others`, or an op whose arguments copy their buffers.
        Exception: whatever the kernel raises; the caller decides what status that is.
    """
    if kernel.part is not None:
        op, split = kernel.part.op_of(op), kernel.part.split_of(split)
    checked, tokens = (params, None) if rows is None else _shrink(op, params, rows)
    seed = secrets.randbits(32) if seed is None else seed
    check = _Check(kernel, op, checked, split, others or {}, device, seed, on_draw)
    reason = check.run()
    return check.result(reason, tokens=tokens)


def _shrink(op: Op, params: Any, rows: int) -> tuple[Any, int | None]:
    """The case shrunk to `rows` tokens or more, and how many; None where that leaves the case as it is."""
    cpu = torch.device("cpu")
    buffers = op.buffers(op.shrink(params, rows), device=cpu, generator=torch.Generator().manual_seed(0))
    elements = max((buffer.numel() for buffer in buffers.values()), default=0)
    rows *= max(1, -(-BIAS_ELEMENTS // (BIAS_ROWS * max(1, elements))))
    shrunk = op.shrink(params, rows)
    return shrunk, rows if shrunk != params else None


@dataclass
class _Pool:
    """Metrics of the draws of one magnitude, per output name."""

    kernel: dict[str, list[ErrorMetrics]]
    split: dict[str, list[ErrorMetrics]]
    draws: int = 0

    def merged(self, name: str) -> tuple[ErrorMetrics, ErrorMetrics]:
        return merge(self.kernel[name]), merge(self.split[name])


@dataclass
class _Check:
    kernel: Kernel
    op: Op
    params: Any
    split: Kernel
    others: Mapping[str, Kernel]
    device: torch.device
    seed: int
    on_draw: OnDraw | None
    pools: dict[float, _Pool] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    placed: Placed | None = None
    draws: int = 0
    planned: int = 0
    compared: int = 0
    equal_to_split: int = 0
    loose: bool = True

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.generator = torch.Generator(device=self.device).manual_seed(self.seed)
        self.contract = self.kernel.contract_for(self.params)
        self.interpreted = self.kernel.language is Language.TRITON and interpreting()
        self.names = self.op.outputs_of(self.params)
        self.target = self._bitwise_target()

    def run(self) -> str:
        """The reason for failing, or an empty string."""
        self.planned = len(MAGNITUDES)
        for magnitude in MAGNITUDES:
            pool = self.pools[magnitude] = _Pool({name: [] for name in self.names}, {name: [] for name in self.names})
            buffers = self._inputs(magnitude)
            reason = self._draw_unit(pool, buffers) if magnitude == 1.0 else self._draw(pool, magnitude, buffers)
            if not reason:
                reason = self._extend(pool, magnitude, self._draws_for_bias(pool, magnitude))
            if not reason:
                reason = self._judge_patiently(pool, magnitude)
            if reason:
                return f"at input magnitude {magnitude:g}: {reason}"
        return ""

    def _bitwise_target(self) -> Kernel | None:
        if not isinstance(self.contract, Bitwise):
            return None
        if self.contract.to == str(self.split.id):
            return self.split
        if self.contract.to not in self.others:
            raise KernelDeclarationError(
                f"kernel {self.kernel.id} promises to equal {self.contract.to!r} bit for bit, which is not a loaded kernel; "
                f"loaded: {', '.join(sorted(self.others)) or 'none'}"
            )
        target = self.others[self.contract.to]
        if target.covers:
            raise KernelDeclarationError(
                f"kernel {self.kernel.id} promises to equal {target.id} bit for bit, which covers only a part of the op ({target.covers}); "
                "name a kernel that computes all of it"
            )
        return target

    def _draw_unit(self, pool: _Pool, buffers: Buffers) -> str:
        """One plain draw and those with special values, or, where inputs are large, special values in the only draw."""
        planted = special_draws(buffers)
        if len(planted) > 1 or is_small(buffers):
            if reason := self._draw(pool, 1.0, buffers):
                return reason
            buffers = self._inputs(1.0)
        self.planned += pool.draws + len(planted) - 1
        for number, kinds in enumerate(planted):
            if reason := self._draw(pool, 1.0, buffers if number == 0 else self._inputs(1.0), kinds):
                return f"with rows of {', '.join(kinds)} planted: {reason}"
        return ""

    def _draws_for_bias(self, pool: _Pool, magnitude: float) -> int:
        """Draws that fill `BIAS_ELEMENTS` and `BIAS_ROWS` for every output, going by the fullest draw so far."""
        need = 1
        # A draw that costs a GPU nothing costs an interpreter tenths of a second.  Equality of bits knows no bias, and how values are
        # rounded does not follow their magnitude; the other bounds are judged at every magnitude all the same.
        if self.interpreted and (self.target is not None or magnitude != 1.0):
            return need
        for parts in pool.kernel.values():
            elements, rows = max((part.elements, part.rows) for part in parts)
            if elements:
                need = max(need, -(-BIAS_ELEMENTS // elements), -(-BIAS_ROWS // rows))
        return min(need, MOST_DRAWS)

    def _extend(self, pool: _Pool, magnitude: float, draws: int) -> str:
        self.planned += max(0, draws - pool.draws)
        while pool.draws < draws:
            # An interpreter has no races, and memory that was not written shows in the draw before: these are here for statistics.
            if reason := self._draw(pool, magnitude, self._inputs(magnitude), twice=not self.interpreted):
                return reason
        return ""

    def _inputs(self, magnitude: float) -> Buffers:
        buffers = self.op.buffers(self.params, device=self.device, generator=self.generator, magnitude=magnitude)
        keep_in_range(buffers)
        return buffers

    def _draw(self, pool: _Pool, magnitude: float, buffers: Buffers, specials: tuple[Special, ...] = (), *, twice: bool = True) -> str:
        """Run everything on `buffers`, the kernel `twice` or once, and add to `pool`; what no pooling can excuse is the reason returned."""
        plant(buffers, specials, self.rng)
        reference = self.op.reference(self.params, self.op.arguments(self.params, buffers))
        split = run_plain(self.split, self.op, self.params, buffers)
        # The first call is the code that is timed, undisturbed, on other values at the addresses of the draw before: a result
        # kept by address is an old one.  The second, elsewhere in memory and under poison, must give the same bits: an error
        # that moves is a race, or memory that was never written.
        if self.placed is None:
            self.placed = place_at_random(buffers, self.device, self.rng)
        self.placed.refill(buffers)
        first = run_guarded(self.kernel, self.op, self.params, self.placed, expected=split, intercept=False)
        if first.faults:
            return "; ".join(first.faults)
        reasons = []
        if twice:
            elsewhere = place_at_random(buffers, self.device, self.rng)
            second = run_guarded(self.kernel, self.op, self.params, elsewhere, expected=split, intercept=True)
            if second.faults:
                return "; ".join(second.faults)
            reasons = self._compare_runs(first.outputs, second.outputs)
        if self.target is not None:
            reasons += self._compare_with_target(first.outputs, split, buffers)
        for name, output, due in zip(self.names, first.outputs, split, strict=True):
            self.dtypes[name] = output.dtype
            errors = compare(output, reference[name], tolerated=due)
            pool.kernel[name].append(errors)
            pool.split[name].append(compare(due, reference[name]))
            self.compared += output.numel()
            self.equal_to_split += judge_bitwise(output, due).equal
            if magnitude == 1.0:
                self.loose &= _within_loose_tolerance(output, reference[name])
            if errors.mismatches:
                reasons.append(f"output {name!r}: {judge_close(errors, errors, 1.0, 0.0)}")
        pool.draws += 1
        self.draws += 1
        if self.on_draw is not None:
            self.on_draw(self.draws, max(self.draws, self.planned))
        return "; ".join(reasons)

    def _compare_runs(self, first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> list[str]:
        reasons = []
        for name, one, other in zip(self.names, first, second, strict=True):
            if shares_memory(one, other):
                reasons.append(
                    f"output {name!r} of the second call is the memory that the first call returned, which the caller still holds"
                )
            elif difference := judge_bitwise(other, one).first_difference:
                reasons.append(
                    f"output {name!r}: two calls on the same inputs differ ({difference} as before): a race, or unwritten memory was used"
                )
        return reasons

    def _compare_with_target(self, outputs: tuple[torch.Tensor, ...], split: tuple[torch.Tensor, ...], buffers: Buffers) -> list[str]:
        assert self.target is not None
        due = split if self.target is self.split else run_plain(self.target, self.op, self.params, buffers)
        reasons = []
        for name, output, other in zip(self.names, outputs, due, strict=True):
            agreement = judge_bitwise(output, other)
            if agreement.first_difference:
                reasons.append(
                    f"output {name!r} is not bit for bit that of {self.target.id}: {agreement.elements - agreement.equal} of "
                    f"{agreement.elements} elements differ, first {agreement.first_difference}"
                )
        return reasons

    def _judge(self, pool: _Pool) -> str:
        if not isinstance(self.contract, Close):
            return ""
        for name in self.names:
            kernel, split = pool.merged(name)
            if reason := judge_close(kernel, split, self.contract.factor, floor_ulps(self.dtypes[name])):
                return f"output {name!r}: {reason}"
        return ""

    def _judge_patiently(self, pool: _Pool, magnitude: float) -> str:
        reason, draws = self._judge(pool), pool.draws
        for factor in _CONFIRM_FACTORS:
            if not reason or not self._may_be_luck(pool):
                break
            reason = self._extend(pool, magnitude, factor * draws) or self._judge(pool)
        if reason and self._may_be_luck(pool):
            # More draws cannot take an unlucky maximum back, so what they leave must be found again, on as many draws of their own.
            again = _Pool({name: [] for name in self.names}, {name: [] for name in self.names})
            reason = self._extend(again, magnitude, pool.draws) or (reason if self._judge(again) else "")
        return reason

    def _use_of_bound(self, pool: _Pool, name: str) -> float:
        kernel, split = pool.merged(name)
        factor = self.contract.factor if isinstance(self.contract, Close) else 1.0
        return max(bound.use for bound in bounds(kernel, split, factor, floor_ulps(self.dtypes[name])))

    def _may_be_luck(self, pool: _Pool) -> bool:
        elements = max(part.elements for parts in pool.kernel.values() for part in parts)
        return elements < _CONFIRM_BELOW and max(self._use_of_bound(pool, name) for name in self.names) < _GROSS

    def _channel_errors(self) -> tuple[float, float]:
        """Channel-relative RMS errors of kernel and split chain over all draws, of the output where the kernel compares worst."""
        pairs = []
        for name in self.names:
            kernel = merge(part for pool in self.pools.values() for part in pool.kernel[name])
            split = merge(part for pool in self.pools.values() for part in pool.split[name])
            pairs.append((kernel.channel_rms, split.channel_rms))
        return max(pairs, key=lambda pair: pair[0] / pair[1] if pair[1] else pair[0], default=(0.0, 0.0))

    def result(self, reason: str, *, tokens: int | None) -> Accuracy:
        judged = [(pool, name) for pool in self.pools.values() for name in self.names if pool.kernel[name]]
        kernel = split = ErrorMetrics()
        if judged:
            pool, name = max(judged, key=lambda at: self._use_of_bound(*at))
            kernel, split = pool.merged(name)
        own_channels, split_channels = self._channel_errors()
        return Accuracy(
            passed=not reason,
            contract=str(self.contract),
            rms_error=_storable(kernel.rms),
            max_error=_storable(kernel.max),
            mean_error=_storable(kernel.mean),
            split_rms_error=_storable(split.rms),
            split_max_error=_storable(split.max),
            channel_rms_error=_storable(own_channels),
            split_channel_rms_error=_storable(split_channels),
            equal_to_split=self.equal_to_split / self.compared if self.compared else 0.0,
            within_loose_tolerance=self.loose and bool(self.compared),
            draws=self.draws,
            elements=self.compared,
            seed=self.seed,
            tokens=tokens,
            interpreted=self.interpreted,
            reason=reason,
        )


def _within_loose_tolerance(output: torch.Tensor, reference: torch.Tensor) -> bool:
    # In the output's own dtype, as those harnesses do it, and cheap.
    return torch.allclose(output, reference.to(output.dtype), atol=LOOSE_TOLERANCE, rtol=LOOSE_TOLERANCE, equal_nan=True)


def _storable(value: float) -> float:
    """JSON has no infinity: the largest double stands for it."""
    return min(max(value, -sys.float_info.max), sys.float_info.max)
