"""The accuracy gate: draws inputs as often as a judgement needs, and judges a kernel by its contract.

`accuracy.one_draw` examines one draw, `accuracy.pool` pools several.  A kernel that is wrong is never timed.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from ..errors import KernelDeclarationError
from ..registry.kernel import Kernel, refused_contract
from ..registry.launching import interpreting
from ..registry.op import Op
from ..schema import Accuracy, Bitwise, Contract, Language, OutputError
from .contracts import BIAS_ELEMENTS, BIAS_ROWS, FLOAT32_FLOOR_ULPS
from .draws import MOST_DRAWS, Special
from .metrics import ErrorMetrics, merge, rms_spread
from .one_draw import Drawing, Drawn
from .pool import Pool
from .repetition import Repetition
from .shared_draws import Draws, DrawStore, Timed, room_on

_CONFIRM_FACTORS = (4, 16)
"""Multiples of the first judgement's draws, each judged again.  A bfloat16 kernel that rounds as often as the split chain, but elsewhere,
fails the first judgement in 30 % of the checks of 17 x 256 elements, with four times the draws in 10 %, with sixteen times in 1 %.  A
remaining failure must appear again on as many fresh draws; otherwise it was luck.  Of 30 checks of float32 rows of 8192, where four
roundings are two units in the last place, one failed with sixteen times the draws: over a suite of hundreds of cases, a false alarm in
every run."""

OnDraw = Callable[[int, int], None]
"""Called after each draw with the number done and the number planned so far."""


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
    store: DrawStore | None = None,
    repetition: Repetition | None = None,
    timed: Timed = nullcontext,
) -> Accuracy:
    """Judge `kernel` on `params` by its contract; a kernel of a part of the op by that part's reference and split chain.

    Args:
        split: the op's split reference; the `close` contract is relative to its errors.
        others: kernels by id, among which a `bitwise` contract finds its target.
        device: where inputs are made and the kernel runs.
        seed: of all draws; taken from the operating system when None, and recorded in the result.
        rows: check the case shrunk to that many tokens (`Op.shrink`), for interpreters; to more where tokens have so few elements that
            bias would need hundreds of draws.
        on_draw: progress.
        store: where draws are kept for checks of other kernels on this case with the same `seed`.
        repetition: repeated calls of a kernel that passed, in search of a call that is wrong now and then; None for none.
        timed: entered around each draw that is not kept.

    Returns:
        The result; `passed` is False with a `reason` that names the defect, its place and its magnitude.

    Raises:
        KernelDeclarationError: the contract is refused (`registry.kernel.refused_contract`), a bitwise target is not among `others`, or an
            op's arguments copy their buffers.
        Exception: any error of the kernel; the caller chooses the status.
    """
    if kernel.part is not None:
        op, split = kernel.part.op_of(op), split.of_part(kernel.part)
    checked, tokens = (params, None) if rows is None else _shrink(op, params, rows)
    seed = secrets.randbits(32) if seed is None else seed
    room = room_on(device) if store is not None else 0
    case = (op.name, repr(checked), device, seed)
    shared = (store or DrawStore()).of(
        case, kernel.part, lambda: Draws(op, checked, split=split, device=device, seed=seed, room=room, timed=timed)
    )
    if refused := refused_contract(kernel.id, kernel.contract_for(checked), op):
        raise KernelDeclarationError(refused)
    check = _Check(
        kernel, op, checked, split=split, others=others or {}, device=device, draws=shared, on_draw=on_draw, repetition=repetition
    )
    reason = check.run()
    if shared.overwritten():
        check.errors_only = False
        reason = reason or "it writes far outside of its buffers: inputs and references that the check keeps for other kernels have changed"
    return check.result(reason, tokens=tokens)


def _shrink(op: Op, params: Any, rows: int) -> tuple[Any, int | None]:
    """The case shrunk to `rows` tokens or more, and their number; None if that leaves the case as it is."""
    cpu = torch.device("cpu")
    buffers = op.buffers(op.shrink(params, rows), device=cpu, generator=torch.Generator().manual_seed(0))
    elements = max((buffer.numel() for buffer in buffers.values()), default=0)
    rows *= max(1, -(-BIAS_ELEMENTS // (BIAS_ROWS * max(1, elements))))
    shrunk = op.shrink(params, rows)
    return shrunk, rows if shrunk != params else None


def bitwise_target(kernel: Kernel, contract: Contract, split: Kernel, others: Mapping[str, Kernel]) -> Kernel | None:
    """The kernel that `kernel` promises to equal bit for bit, or None.

    Raises:
        KernelDeclarationError: it is not among `others`, or covers only a part of the op.
    """
    if not isinstance(contract, Bitwise):
        return None
    if contract.to == str(split.id):
        return split
    if contract.to not in others:
        raise KernelDeclarationError(
            f"kernel {kernel.id} promises to equal {contract.to!r} bit for bit, which is not a loaded kernel; "
            f"loaded: {', '.join(sorted(others)) or 'none'}"
        )
    target = others[contract.to]
    if target.covers:
        raise KernelDeclarationError(
            f"kernel {kernel.id} promises to equal {target.id} bit for bit, which covers only a part of the op ({target.covers}); "
            "name a kernel that computes all of it"
        )
    return target


def _judged_contract(kernel: Kernel, params: Any, contract: Contract, split: Kernel, others: Mapping[str, Kernel]) -> Contract:
    """The contract that errors are judged by: a bitwise kernel's is that of its target, so that two kernels cannot vouch for each other.

    A kernel that equals the split chain needs no more.

    Raises:
        KernelDeclarationError: targets that lead back to the kernel.
    """
    seen = [str(kernel.id)]
    while (target := bitwise_target(kernel, contract, split, others)) not in (None, split):
        seen.append(str(target.id))
        if seen.count(seen[-1]) > 1:
            raise KernelDeclarationError(f"kernels promise to equal each other bit for bit: {', '.join(seen)}; one must promise Close()")
        kernel, contract = target, target.contract_for(params)
    return contract


class _Check:
    """A check in progress: its number of draws, and their pooled judgement."""

    def __init__(
        self,
        kernel: Kernel,
        op: Op,
        params: Any,
        *,
        split: Kernel,
        others: Mapping[str, Kernel],
        device: torch.device,
        draws: Draws,
        on_draw: OnDraw | None,
        repetition: Repetition | None,
    ) -> None:
        self.contract = kernel.contract_for(params)
        self.judged = _judged_contract(kernel, params, self.contract, split, others)
        self.interpreted = kernel.language is Language.TRITON and interpreting()
        self.names = op.outputs_of(params)
        self.draws_of_case, self.on_draw = draws, on_draw
        target = bitwise_target(kernel, self.contract, split, others)
        self.refusal = ""
        if target is not None and target is not split and (declined := target.reason_unsupported(params)):
            self.refusal = f"it promises to equal {target.id} bit for bit, which declines this case: {declined}"
        if self.interpreted:
            repetition = None  # it has no races, and a call takes milliseconds
        self.drawing = Drawing(kernel, op, params, draws=draws, split=split, target=target, device=device, repetition=repetition)
        self.pools: dict[float, Pool] = {}
        self.draws = self.planned = self.compared = self.equal_to_split = 0
        self.loose = True
        self.errors_only = False
        """Whether the failure is the size of the errors, or no more than what became of planted NaN and Inf."""
        self.planted = ""
        """The latter, which is told unless there is another failure."""

    def run(self) -> str:
        """The reason of a failure, or an empty string."""
        if self.refusal:
            return self.refusal
        magnitudes = self.draws_of_case.magnitudes
        self.planned = len(magnitudes)
        for magnitude in magnitudes:
            pool = self.pools[magnitude] = Pool(self.names, self.judged)
            reason = self._draw_unit(pool) if magnitude == 1.0 else self._draw(pool, magnitude).reason
            if not reason:
                reason = self._extend(pool, magnitude, self._draws_for_bias(pool, magnitude))
            if not reason:
                reason = self._judge_patiently(pool, magnitude)
                self.errors_only = bool(reason) and reason == pool.judge()
            if reason:
                return self._at(magnitude, reason)
        if reason := self.drawing.repeat():
            return reason
        self.errors_only = bool(self.planted)
        return self.planted

    def _at(self, magnitude: float, reason: str) -> str:
        return f"at input magnitude {magnitude:g}{self._variant_at(magnitude)}: {reason}"

    def _variant_at(self, magnitude: float) -> str:
        """The option in which draws of `magnitude` differ from the case, in words."""
        if magnitude >= 1.0 or not self.drawing.of_variant:
            return ""
        eps = getattr(self.draws_of_case.variant, "eps", None)
        return f" and eps {eps:g}" if isinstance(eps, float) else ""

    def _draw_unit(self, pool: Pool) -> str:
        """One plain draw and the draws with special values or, where inputs are large, special values in the only draw."""
        planted = self.draws_of_case.unit_specials()
        self.planned += len(planted) - 1
        for kinds in planted:
            drawn = self._draw(pool, 1.0, kinds)
            told = f"with rows of {', '.join(kinds)} planted: {drawn.reason}" if kinds else drawn.reason
            if drawn.planted_only:
                self.planted = self.planted or self._at(1.0, told)
            elif drawn.reason:
                return told
        return ""

    def _draws_for_bias(self, pool: Pool, magnitude: float) -> int:
        # A draw that costs a GPU nothing costs an interpreter tenths of a second.  Equality of bits has no bias, and rounding does not
        # depend on magnitude; the other bounds are judged at every magnitude all the same.
        if self.interpreted and (isinstance(self.contract, Bitwise) or magnitude != 1.0):
            return 1
        return min(pool.draws_for_bias(), MOST_DRAWS)

    def _extend(self, pool: Pool, magnitude: float, draws: int) -> str:
        self.planned += max(0, draws - pool.draws)
        while pool.draws < draws:
            # An interpreter has no races, and the draw before has shown unwritten memory: these draws are for statistics.
            if reason := self._draw(pool, magnitude, twice=not self.interpreted).reason:
                return reason
        return ""

    def _draw(self, pool: Pool, magnitude: float, specials: tuple[Special, ...] = (), *, twice: bool = True) -> Drawn:
        """The next draw, added to `pool`."""
        drawn = self.drawing.draw(magnitude, specials, twice=twice)
        if not drawn.outputs:
            return drawn
        pool.add(drawn.outputs)
        for errors in drawn.outputs.values():
            self.compared += errors.elements
            self.equal_to_split += errors.equal_to_split
            self.loose &= errors.within_loose_tolerance
        self.draws += 1
        if self.on_draw is not None:
            self.on_draw(self.draws, max(self.draws, self.planned))
        return drawn

    def _judge_patiently(self, pool: Pool, magnitude: float) -> str:
        reason, draws = pool.judge(), pool.draws
        for factor in _CONFIRM_FACTORS:
            if not reason or not pool.may_be_luck():
                break
            reason = self._extend(pool, magnitude, factor * draws) or pool.judge()
        if reason and pool.may_be_luck():
            # More draws cannot lower an unlucky maximum, so a remaining failure must appear again on as many draws of its own, with special
            # values where the first ones had them: a fault may lie in these alone.
            again = Pool(self.names, self.judged)
            hard = self._draw_unit(again) if magnitude == 1.0 else ""
            reason = hard or self._extend(again, magnitude, pool.draws) or (reason if again.judge() else "")
        return reason

    def _outputs(self) -> tuple[OutputError, ...]:
        """Every output's errors over all draws."""
        found = []
        for name in self.names:
            draws = [part for pool in self.pools.values() for part in pool.kernel[name]]
            beside = [part for pool in self.pools.values() for part in pool.split[name]]
            kernel, split = merge(draws), merge(beside)
            if kernel.channel_elements:
                unit, rms, split_rms = "channel", kernel.channel_rms, split.channel_rms
                ulp, rounding = kernel.ulp_channel_rms, kernel.rounding_channel_rms
                squares, elements = [one.channel_squares for one in draws], [one.channel_elements for one in draws]
                split_squares = [one.channel_squares for one in beside]
            else:
                unit, rms, split_rms = "value", kernel.relative_rms, split.relative_rms
                ulp, rounding = kernel.ulp_relative_rms, kernel.rounding_relative_rms
                squares, elements = [one.relative_squares for one in draws], [one.relative_elements for one in draws]
                split_squares = [one.relative_squares for one in beside]
            found.append(
                OutputError(
                    name=name,
                    unit=unit,
                    rms=_storable(rms),
                    split_rms=_storable(split_rms),
                    floor=_storable(FLOAT32_FLOOR_ULPS * ulp),  # 0 for 16-bit outputs: their units are not summed
                    rounding=_storable(rounding),
                    spread=rms_spread(squares, elements),
                    ratio_spread=rms_spread(squares, split_squares),
                )
            )
        return tuple(found)

    def result(self, reason: str, *, tokens: int | None) -> Accuracy:
        judged = [(pool, name) for pool in self.pools.values() for name in self.names if pool.kernel[name]]
        kernel = split = ErrorMetrics()
        if judged:
            pool, name = max(judged, key=lambda at: at[0].use_of_bound(at[1]))
            kernel, split = pool.merged(name)
        outputs = self._outputs()
        channels = [(one.rms, one.split_rms) for one in outputs if one.unit == "channel"]
        own_channels, split_channels = max(channels, key=lambda pair: pair[0] / pair[1] if pair[1] else pair[0], default=(0.0, 0.0))
        return Accuracy(
            passed=not reason,
            contract=str(self.contract),
            rms_error=_storable(kernel.rms),
            max_error=_storable(kernel.max),
            mean_error=_storable(kernel.mean),
            split_rms_error=_storable(split.rms),
            split_max_error=_storable(split.max),
            channel_rms_error=own_channels,
            split_channel_rms_error=split_channels,
            outputs=outputs,
            equal_to_split=self.equal_to_split / self.compared if self.compared else 0.0,
            within_loose_tolerance=self.loose and bool(self.compared),
            draws=self.draws,
            elements=self.compared,
            seed=self.draws_of_case.seed,
            tokens=tokens,
            interpreted=self.interpreted,
            errors_only=self.errors_only,
            reason=reason,
        )


def _storable(value: float) -> float:
    """JSON has no infinity: the largest double replaces it."""
    return min(max(value, -sys.float_info.max), sys.float_info.max)
