"""The targets of a calibration: kernels of known behaviour, and the arms that slow them down by a known share of their time."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from ...schema import Case, Injection, Language, Role
from ...stats.sequential import Plan
from ...timing.coldness import require_emptied
from ...timing.pairs import Pair
from ..case_kernels import AnyKernel, Kernels, case_kernels, timeable
from ..context import MeasuringContext
from ..workers.interference import Worker
from ..workers.protocol import CalibrationTask, ExtraArm, Failure, Measured
from ..workers.remarks import label_refused

CALIBRATION_KERNELS = Path(__file__).parents[2] / "calibration_kernels"
"""A kernels folder of fusebench's own, with the op `planted`."""
OWN_OP = "planted"
WAITING_KERNEL = "planted/negate_and_wait@1"
"""One launch; on a GPU with a delay two launches, and the second waits."""
SPINNING_KERNEL = "planted/negate_and_spin@2"
"""One launch that waits: a delay within a GPU kernel."""
ROW_KEYS = ("tokens", "rows", "elements")
"""Parameters whose work grows in proportion to them."""
DELAY_KEY = "delay_ns"
BASE_DELAY_NS = 2000
"""Both arms of a delayed pair wait at least this long.  A launch in one arm alone would cost some 2 us, 16 % of a kernel of 12 us, whatever
it waits; and a delay within a kernel counts in full only where it outlasts the other programs."""
MEMORY_SHARE = 0.4
"""Share of the device's memory for the buffers of one measurement: an arm with parameters of its own has its values a second time."""
MOST_PAIRS = 18
"""Pairs in one measurement.  Each round holds every arm once: with more, a pair's two calls lie ever farther apart in time.  Pairs of 24 us
on an H200 scattered by 0.88 % with 36 pairs in a round and by 0.69 % with five."""
GPU_ELEMENTS = (2**16, 2**20, 6_250_000, 25_000_000, 100_000_000)
"""About 2, 3.5, 12, 50 and 200 us on an H200, cold."""
CHAIN_ELEMENTS = (2**16, 6_250_000)
"""About 5 and 16 us on an H200 with the launch that waits: the time between two launches scatters, which is seen in short calls."""
CPU_ELEMENTS = (2**16, 2**19)
"""Some 5 and 20 us.  Torch splits vectors of more than 2**15 elements among threads: across that size, more rows do not mean more work."""


class CalibrationTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on one case, and the parameter by which it is made slower."""

    case: Case
    kernel: str
    injection: Injection
    key: str
    """The case's parameter that is raised; empty if no slowdown can be injected."""
    bytes: int = 0
    """Bytes that the op reads and writes: about the size of an arm's buffers."""

    @property
    def name(self) -> str:
        return f"{self.kernel} on {self.case.key} ({self.injection})"


class Comparing(msgspec.Struct, frozen=True, kw_only=True):
    """Arms and pairs of one measurement. Every pair has arms of its own, so that no two share a placement."""

    arms: tuple[ExtraArm, ...]
    pairs: tuple[Pair, ...]
    nominal: dict[str, float]
    """By pair, the nominal slowdown: a share of the time, in a pilot of the work; 0 for identical arms."""

    def batches(self, most: int) -> list[Comparing]:
        """The pairs in measurements of at most `most` each."""
        arms = {arm.name: arm for arm in self.arms}
        parts = [self.pairs[start : start + most] for start in range(0, len(self.pairs), most)]
        return [
            Comparing(
                arms=tuple(arms[name] for pair in part for name in (pair.new, pair.old)),
                pairs=part,
                nominal={pair.name: self.nominal[pair.name] for pair in part},
            )
            for part in parts
        ]


class Way(StrEnum):
    """How fusebench's own kernels are slowed down."""

    ROWS = "rows"
    """One launch with more elements."""
    DELAY = "delay"
    """One launch that waits longer."""
    CHAIN = "chain"
    """Two launches; the second waits longer."""


def built_in_targets(device_kind: str, ways: Container[str] = frozenset(Way)) -> list[CalibrationTarget]:
    """The op `planted` in sizes from about 2 to 200 us, slowed down in each of `ways`. A CPU has no launches, hence no chains of
    launches."""
    on_gpu = device_kind == "cuda"
    sizes = GPU_ELEMENTS if on_gpu else CPU_ELEMENTS
    kernels = {
        Way.ROWS: (WAITING_KERNEL, sizes),
        Way.DELAY: (SPINNING_KERNEL if on_gpu else WAITING_KERNEL, sizes),
        Way.CHAIN: (WAITING_KERNEL, CHAIN_ELEMENTS if on_gpu else ()),
    }
    return [_built_in(way, kernel, size) for way, (kernel, counts) in kernels.items() if way in ways for size in counts]


def one_of_each(targets: Sequence[CalibrationTarget]) -> list[CalibrationTarget]:
    """Of each way of slowing down, the target in the middle of the sizes: the shorter of two."""
    ways: dict[str, list[CalibrationTarget]] = {}
    for target in targets:
        ways.setdefault(target.case.name.partition("_")[0], []).append(target)
    return [found[(len(found) - 1) // 2] for found in ways.values()]


def _built_in(way: Way, kernel: str, elements: int) -> CalibrationTarget:
    injection = Injection.ROWS if way is Way.ROWS else Injection.DELAY
    params = {"elements": elements, DELAY_KEY: BASE_DELAY_NS if injection is Injection.DELAY else 0}
    case = Case(suite="calibration", name=f"{way}_{elements}", op="planted", params=params)
    key = DELAY_KEY if injection is Injection.DELAY else "elements"
    return CalibrationTarget(case=case, kernel=kernel, injection=injection, key=key, bytes=8 * elements)


def targets_of(collection: Kernels, cases: Iterable[Case], device_kind: str, pattern: str | None = None) -> list[CalibrationTarget]:
    """For every case the newest kernel of each role and language that matches `pattern` and can be timed.

    Kernels of torch.compile and of other libraries are left out where others can be timed: their speed gates nothing.  The targets of one
    rank of all cases come before those of the next, so that a calibration that ends early has seen every case.
    """
    ranks: dict[int, list[CalibrationTarget]] = {}
    for case in cases:
        unit = case_kernels(collection, case, device_kind, pattern, with_baseline=False)
        ready = [kernel for kernel in unit.runnable if timeable(kernel, device_kind) is None and not kernel.covers]
        key = next((key for key in ROW_KEYS if isinstance(case.params.get(key), int)), "")
        size = int(unit.facts.known("minimum_bytes")) if ready else 0
        for rank, kernel in enumerate(_newest_of_each(ready)):
            target = CalibrationTarget(case=case, kernel=str(kernel.id), injection=Injection.ROWS, key=key, bytes=size)
            ranks.setdefault(rank, []).append(target)
    return [target for rank in sorted(ranks) for target in ranks[rank]]


def _newest_of_each(kernels: Sequence[AnyKernel]) -> list[AnyKernel]:
    """The newest kernel of each role and language, fused ones first; of names with equal versions the first."""
    gating = [kernel for kernel in kernels if kernel.role in (Role.FUSED, Role.SPLIT)] or kernels[:1]
    found: dict[tuple[Role, Language], AnyKernel] = {}
    for kernel in sorted(gating, key=lambda kernel: kernel.role is not Role.FUSED):
        known = found.get((kernel.role, kernel.language))
        if known is None or kernel.id.version > known.id.version:
            found[kernel.role, kernel.language] = kernel
    return list(found.values())


def fewest_first(targets: Sequence[CalibrationTarget], measured: Mapping[tuple[str, str], int]) -> list[CalibrationTarget]:
    """The targets with the fewest A/A comparisons in `measured` (by case and kernel) first, otherwise in their order."""
    return sorted(targets, key=lambda target: measured.get((target.case.key, target.kernel), 0))


def fits(target: CalibrationTarget, value: int, memory_bytes: int | None) -> bool:
    """Whether a pair whose new arm has this value of the target's parameter fits in the memory; True if that is not known."""
    return memory_bytes is None or _pair_bytes(target, value) <= MEMORY_SHARE * memory_bytes


def pairs_at_once(target: CalibrationTarget, values: Iterable[int], memory_bytes: int | None) -> int:
    """The number of pairs that fit in one measurement if all have the largest of `values` (of the target's parameter); no limit if the
    memory size is unknown."""
    if memory_bytes is None or target.bytes == 0:
        return MOST_PAIRS
    largest = max((_pair_bytes(target, value) for value in values), default=2.0 * target.bytes)
    return max(1, min(MOST_PAIRS, int(MEMORY_SHARE * memory_bytes / largest)))


def _pair_bytes(target: CalibrationTarget, value: int) -> float:
    """Bytes of both arms: added rows take memory, a delay takes none."""
    raised = value / target.case.params[target.key] if target.injection is Injection.ROWS else 1.0
    return target.bytes * (1.0 + raised)


def comparing(target: CalibrationTarget, identical: int, counts: Mapping[float, int], values: Mapping[float, int]) -> Comparing:
    """`identical` pairs of equal arms and, of each nominal share, as many pairs as `counts` says, raised to what `values` says of it."""
    wanted = [(0.0, number) for number in range(identical)]
    wanted += [(nominal, number) for nominal, count in counts.items() for number in range(count)]
    arms: list[ExtraArm] = []
    pairs: list[Pair] = []
    nominals: dict[str, float] = {}
    for nominal, number in wanted:
        name = f"{f'injected {100 * nominal:.2f} %' if nominal else 'identical'} #{number + 1}"
        params = {**target.case.params, target.key: values[nominal]} if nominal else None
        arms += [
            ExtraArm(name=f"{name}: new", kernel=target.kernel, params=params),
            ExtraArm(name=f"{name}: old", kernel=target.kernel),
        ]
        pairs.append(Pair(name, new=f"{name}: new", old=f"{name}: old"))
        nominals[name] = nominal
    return Comparing(arms=tuple(arms), pairs=tuple(pairs), nominal=nominals)


def measure_pairs(
    target: CalibrationTarget,
    arms: Sequence[ExtraArm],
    pairs: Sequence[Pair],
    worker: Worker,
    context: MeasuringContext,
    *,
    replicates: int = 2,
    looks: Plan | None = None,
    lengths: dict[str, int] | None = None,
) -> Measured | None:
    """The measurement; None, with a warning, where the target failed or was not cold.

    Raises:
        DeviceUnfitError: the device was touched again and again, or its timer lost records.
        NotColdError: emptying the cache had no effect.
    """
    task = CalibrationTask(
        case=target.case,
        plan=msgspec.structs.replace(context.plan, replicates=replicates),
        timer=context.pool.timer,
        seed=random.SystemRandom().randrange(2**31),
        arms=tuple(arms),
        pairs=tuple(pairs),
        looks=looks,
        lengths=lengths,
    )
    reply = context.ask(task, worker)
    if isinstance(reply, Failure):
        context.warn(f"{target.name} is left out where it failed: {reply.reason}")
        return None
    require_emptied(reply.coldness)
    if refused := label_refused(reply, context.plan.trim):
        context.warn(f"{target.name} is left out where its times are labelled cold and are not: {refused}")
        return None
    if disbelieved := {**reply.suspicious, **reply.wrong}:
        arm, why = next(iter(disbelieved.items()))
        context.warn(f"{target.name} is left out where the times of {arm} are not believed: {why}")
        return None
    context.note_timer(reply)
    return reply
