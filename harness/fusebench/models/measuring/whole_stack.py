"""What a reduced stack says of the whole model: each stack's time per block from two sizes, and one step of the whole where it can run.

A step takes a constant and a time per block of each stack.  The reduced transformer is timed beside copies with half as many blocks of one
stack; the difference is the time of that stack's blocks.  The whole's step follows from it, and is checked once against a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import UsageError
from ...schema.models import WholeStack, WholeStep
from ..denoise import Denoising
from ..variants import FUSED, SPLIT, WARM_UPS, Variant, make_variant, share_weights
from . import step_timing
from .step_timing import Step, ratio, step_time, time_rounds
from .timed_variants import step_of

if TYPE_CHECKING:
    from ...registry.lookup import Collection

FEWEST = 3
"""Rounds of the sizes."""
AGREES = 0.05
"""Share by which the whole's step may differ from the extrapolated one without a remark."""


def whole_stack(
    transformer: Any,
    variants: Sequence[Variant],
    denoising: Denoising,
    collection: Collection,
    *,
    full: Mapping[str, int],
    build_whole: Callable[[], Any],
    rounds_s: float,
    whole_s: float,
    say: Callable[[str], None],
) -> WholeStack | None:
    """The whole's step by `split` and `fused`, where these ran; None where no stack is cut, or neither ran.

    Args:
        transformer: the reduced one, as diffusers makes it.
        full: blocks of every stack of the whole.
        build_whole: makes the whole transformer; raises UsageError where it does not fit.
        rounds_s: seconds for the rounds of smaller stacks.
        whole_s: seconds for the steps of the whole.
    """
    stacks = {stack: (int(denoising.config[stack]), count) for stack, count in full.items() if denoising.config[stack] < count}
    own = [one for one in variants if one.name in (SPLIT, FUSED)]
    if not stacks or not own:
        return None
    sizes = {stack: count // 2 for stack, (count, _) in stacks.items()}
    lone = [stack for stack, size in sizes.items() if not size]
    remarks = []
    steps = {one.name: WholeStep(variant=one.name) for one in own}
    if lone:
        remarks.append(f"one block of {', '.join(lone)} does not tell the time of a block: take at least 2")
    else:
        say(f"smaller stacks: {', '.join(f'{stack}={size}' for stack, size in sizes.items())}")
        timed: dict[str, Step] = {one.name: step_of(one, denoising) for one in own}
        for stack, size in sizes.items():
            smaller = shortened(transformer, denoising.model.stacks[stack], size)
            for one in own:
                timed[_key(one.name, stack)] = _warm(make_variant(one.name, denoising, smaller, collection), denoising, WARM_UPS)
        before = SPLIT if SPLIT in timed else FUSED
        rounds = time_rounds(timed, device=denoising.device, budget_s=rounds_s, before=before, fewest=FEWEST)
        steps = {name: extrapolated(name, rounds, stacks, sizes) for name in steps}
        remarks += [f"{name}: too noisy, in a round a smaller stack took no less" for name, step in steps.items() if step.time_ms is None]
    largest = max(count / here for here, count in stacks.values())
    steps, checked = _against_whole(steps, own, denoising, collection, largest=largest, build_whole=build_whole, left_s=whole_s, say=say)
    split, fused = (steps.get(name, WholeStep(variant=name)).rounds_ms for name in (SPLIT, FUSED))
    return WholeStack(
        sizes=sizes,
        steps=tuple(steps.values()),
        speedup=ratio(split, fused) if split and fused else None,
        checked="; ".join([*remarks, *checked]),
    )


def shortened(transformer: Any, attribute: str, size: int) -> Any:
    """A copy of the transformer with the first `size` blocks of one stack; it shares all weights."""
    shorter = share_weights(transformer)
    setattr(shorter, attribute, getattr(shorter, attribute)[:size])
    return shorter


def extrapolated(
    name: str, rounds: Mapping[str, Sequence[float]], stacks: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]
) -> WholeStep:
    """The whole's step of one variant; without a time where a smaller stack takes no less in a round.

    Args:
        rounds: milliseconds by round, of the variant and of it with a smaller stack.
        stacks: blocks that ran and blocks of the whole, by stack.
        sizes: blocks of the smaller stacks.
    """
    values, blocks, least = list(rounds[name]), dict[str, float](), float("inf")
    for stack, (count, whole) in stacks.items():
        per_block = [(here - less) / (count - sizes[stack]) for here, less in zip(rounds[name], rounds[_key(name, stack)], strict=True)]
        blocks[stack] = sum(per_block) / len(per_block)
        least = min(least, *per_block)
        values = [value + (whole - count) * each for value, each in zip(values, per_block, strict=True)]
    if least <= 0:
        return WholeStep(variant=name, block_ms=blocks)
    return WholeStep(variant=name, block_ms=blocks, rounds_ms=tuple(values), time_ms=step_time(values))


def _key(variant: str, stack: str) -> str:
    return f"{variant} with less {stack}"


def _warm(variant: Variant, denoising: Denoising, times: int) -> Step:
    step = step_of(variant, denoising)
    for _ in range(times):
        step()
    return step


def _against_whole(
    steps: Mapping[str, WholeStep],
    variants: Sequence[Variant],
    denoising: Denoising,
    collection: Collection,
    *,
    largest: float,
    build_whole: Callable[[], Any],
    left_s: float,
    say: Callable[[str], None],
) -> tuple[dict[str, WholeStep], list[str]]:
    """The steps with one of the whole each, and what was checked; only extrapolated ones where the whole takes too much memory or time.

    Args:
        largest: largest ratio of the whole's blocks to those that ran, which bounds a step's time where none was extrapolated.
    """
    found, told, whole = dict(steps), list[str](), None
    for variant in variants:
        name, known = variant.name, steps[variant.name].time_ms
        reduced_ms = step_timing.wall_ms(step_of(variant, denoising), denoising.device)
        each_s = (known.value if known is not None else largest * reduced_ms) / 1000
        if each_s > left_s:
            told.append(f"{name}: not checked against the whole, whose step would take {each_s:.3g} of {left_s:.3g} s; raise --budget")
            continue
        try:
            whole = build_whole() if whole is None else whole
        except UsageError as error:
            told.append(f"not checked against the whole: {error}")
            break
        say(f"a step of the whole with {name}")
        # The same kernels ran on the same sizes before, so that a long step needs no warm-up.
        step = _warm(make_variant(name, denoising, whole, collection), denoising, 1 if 2 * each_s <= left_s else 0)
        measured = step_timing.wall_ms(step, denoising.device)
        left_s -= measured / 1000
        found[name] = msgspec.structs.replace(steps[name], measured_ms=measured)
        told.append(
            f"{name}: a step of the whole takes {measured:.2f} ms" + (f", {_off(known.value, measured)}" if known is not None else "")
        )
    return found, told


def _off(told_ms: float, measured_ms: float) -> str:
    off = told_ms / measured_ms - 1
    return f"by its blocks {told_ms:.2f} ms ({100 * off:+.1f} %, {'within' if abs(off) <= AGREES else 'more than'} {100 * AGREES:.0f} %)"
