"""Comparisons that no device made: raw samples of two arms under noise like a GPU's, through the shipped trimmed mean, test and
confirmation.

A model is a set of amounts; 0 switches a source of noise off.  Sizes are logarithms of a time (0.005 is 0.5 %) unless named otherwise.
Arrays are (comparisons, replicates, rounds, arms); arm 0 is the old kernel and arm 1 the new.  Every process and placement is drawn for
each arm: two arms of one kernel differ by luck alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from fusebench.schema import Confirmation, Finding, VerdictKind
from fusebench.stats.confirmation import confirm
from fusebench.stats.sequential import Plan, judge
from fusebench.verdict.calibration import Trial
from fusebench.verdict.conclusion import PROCESSES, conclude, placements_for

Array = npt.NDArray[np.float64]

ROUNDS = 20
TRIM = 0.1


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Where the times scatter from."""

    name: str
    time_us: float = 12.0
    placement: float = 0.0035
    """Standard deviation per arm between placements: the log ratio's is sqrt(2) of it, 0.5 % as measured at 12 us."""
    degrees: float = math.inf
    """Of freedom of the placements' Student t distribution; at 2 its variance is infinite.  `placement` then is its scale."""
    process: float = 0.0005
    """Standard deviation per arm between processes."""
    modes: float = 0.0
    """Distance between the two modes, equally likely, in which a process may run an arm."""
    slow_placement: float = 0.0
    """What one placement in five costs an arm on top: a skewed distribution."""
    jitter: float = 0.006
    """Standard deviation of single calls."""
    tick_us: float = 0.0
    drift: float = 0.0
    """How much clocks rise over a process's replicates, acting on whatever runs at that moment."""
    outliers: float = 0.0
    """Share of calls that something interrupts, for up to 10 times their time."""
    throttled: float = 0.0
    """Share of replicates in the middle of which the clock drops by a fifth."""


TYPICAL = Noise(name="none of these")

DURATIONS = (
    Noise(name="2.8 us", time_us=2.8, placement=0.0084, tick_us=0.032),
    Noise(name="6 us", time_us=6.0, placement=0.0055, tick_us=0.032),
    Noise(name="12 us", time_us=12.0, placement=0.0037, tick_us=0.032),
    Noise(name="125 us", time_us=125.0, placement=0.0020, tick_us=0.032),
)
"""Scatter at the upper end of what one H200 showed: the log ratio of two arms has sd 1.2 % at 2.8 us, 0.56 % at 12 us, 0.35 % at 125 us
between placements; 6 us lies between."""

NOISES = (
    Noise(name="drift", drift=0.05),
    Noise(name="bimodal processes", modes=0.006),
    Noise(name="placement bias", slow_placement=0.012),
    Noise(name="32 ns ticks", time_us=3.0, placement=0.007, jitter=0.004, tick_us=0.032),
    Noise(name="outliers", outliers=0.03),
    Noise(name="throttling", throttled=0.3),
    Noise(name="heavy tails", placement=0.0025, degrees=2.0),
)
"""The ways to be fooled, each on top of the typical scatter.  A process's mode is larger than the margin, a slow placement costs three
times it, a tick is 1 % of the time, and a throttled call loses fifty times the margin."""


class Machine:
    """Many comparisons side by side, each in a process of its own."""

    def __init__(self, noise: Noise, comparisons: int, slowdown: float, generator: np.random.Generator) -> None:
        """`slowdown` is the share by which the new kernel takes longer in truth."""
        self.noise = noise
        self._slowdown = math.log1p(slowdown)
        self._generator = generator
        self._process = np.zeros((comparisons, 2))
        self._taken = np.zeros(comparisons)
        self.start(np.arange(comparisons))

    def start(self, rows: npt.NDArray[np.intp]) -> None:
        """Fresh processes for these comparisons."""
        shape = (len(rows), 2)
        self._process[rows] = self._generator.normal(0.0, self.noise.process, shape)
        self._process[rows] += self.noise.modes * self._generator.integers(0, 2, shape)
        self._taken[rows] = 0

    def replicates(self, rows: npt.NDArray[np.intp], count: int) -> Array:
        """Log ratios, new over old, of `count` more replicates of each of these comparisons: (rows, count)."""
        means = np.log(trimmed_means(self.samples(rows, count), TRIM))
        return np.asarray(means[..., 1] - means[..., 0])

    def samples(self, rows: npt.NDArray[np.intp], count: int) -> Array:
        """Times in microseconds: (rows, count, rounds, 2)."""
        noise, generator = self.noise, self._generator
        shape = (len(rows), count, ROUNDS, 2)
        placement = generator.normal(size=(*shape[:2], 1, 2))
        if math.isfinite(noise.degrees):
            placement = generator.standard_t(noise.degrees, size=placement.shape)
        logs = math.log(noise.time_us) + noise.placement * placement + self._process[rows][:, None, None, :]
        logs = logs + noise.slow_placement * (generator.random(placement.shape) < 0.2) + np.array([0.0, self._slowdown])
        logs = logs + noise.jitter * generator.normal(size=shape)
        if noise.drift:
            logs += noise.drift * self._moments(rows, count) / (64 * ROUNDS)
        if noise.throttled:
            logs += self._throttle(shape)
        times = np.exp(logs)
        if noise.outliers:
            interrupted = generator.random(shape) < noise.outliers
            times[interrupted] *= 1 + 9 * generator.random(int(interrupted.sum()))
        if noise.tick_us:
            times = np.maximum(np.floor(times / noise.tick_us + generator.random(shape)), 1) * noise.tick_us
        self._taken[rows] += count
        return np.asarray(times)

    def _moments(self, rows: npt.NDArray[np.intp], count: int) -> Array:
        """When each call ran, in rounds since its process began; the arms take turns at going first."""
        rounds = (self._taken[rows][:, None] + np.arange(count))[..., None] * ROUNDS + np.arange(ROUNDS)
        second = np.stack([np.arange(ROUNDS) % 2, 1 - np.arange(ROUNDS) % 2], axis=-1)
        return np.asarray(rounds[..., None] + 0.5 * second)

    def _throttle(self, shape: tuple[int, ...]) -> Array:
        """From a moment within the replicate, and perhaps between the two calls of one round, everything is slower."""
        calls = np.arange(ROUNDS)[:, None] * 2 + np.stack([np.arange(ROUNDS) % 2, 1 - np.arange(ROUNDS) % 2], axis=-1)
        begin = self._generator.integers(0, 2 * ROUNDS, (*shape[:2], 1, 1))
        hit = self._generator.random((*shape[:2], 1, 1)) < self.noise.throttled
        return np.asarray(math.log(1.25) * (hit & (calls >= begin)))


class Outcomes(msgspec.Struct, kw_only=True):
    """What became of many comparisons of one kind."""

    first: list[Finding]
    confirmations: list[Confirmation | None]
    """Of every claimed change."""
    verdicts: list[VerdictKind]
    """After confirmation."""
    logs: list[Array]
    time_us: float
    injected: float

    def count(self, kind: VerdictKind) -> int:
        return sum(one is kind for one in self.verdicts)

    def count_first(self, kind: VerdictKind) -> int:
        return sum(one.kind is kind for one in self.first)

    def trials(self) -> list[Trial]:
        return [
            Trial(time_us=self.time_us, injected=self.injected, kind=kind, replicates=finding.replicates)
            for kind, finding in zip(self.verdicts, self.first, strict=True)
        ]


def compare(noise: Noise, slowdown: float, comparisons: int, seed: int, plan: Plan | None = None) -> Outcomes:
    """So many comparisons, each sampled until it is decided or the plan ends, and confirmed in fresh processes where it claims a change."""
    plan = plan or Plan()
    machine = Machine(noise, comparisons, slowdown, np.random.default_rng(seed))
    logs: list[Array] = [np.empty(0)] * comparisons
    findings: dict[int, Finding] = {}
    rows = np.arange(comparisons)
    taken = 0
    for look in plan.looks:
        more = machine.replicates(rows, look - taken)
        taken = look
        for row, values in zip(rows.tolist(), more, strict=True):
            logs[row] = np.concatenate([logs[row], values])
            findings[row] = judge(logs[row], noise.time_us, plan)
        rows = np.array([row for row in rows.tolist() if findings[row].next_look is not None], dtype=np.intp)
        if len(rows) == 0:
            break
    claimed = np.array([row for row, finding in findings.items() if finding.claims_change], dtype=np.intp)
    fresh = _fresh(machine, claimed, findings)
    first = [findings[row] for row in range(comparisons)]
    confirmations = [confirm(one, fresh[row], plan.pass_level) if row in fresh else None for row, one in enumerate(first)]
    verdicts = [conclude(one, confirmation).kind for one, confirmation in zip(first, confirmations, strict=True)]
    return Outcomes(first=first, confirmations=confirmations, verdicts=verdicts, logs=logs, time_us=noise.time_us, injected=slowdown)


def _fresh(machine: Machine, rows: npt.NDArray[np.intp], findings: dict[int, Finding]) -> dict[int, list[Sequence[float]]]:
    """By comparison, the log ratios of each fresh process."""
    found: dict[int, list[Sequence[float]]] = {row: [] for row in rows.tolist()}
    for count in sorted({placements_for(findings[row]) for row in found}):
        alike = np.array([row for row in found if placements_for(findings[row]) == count], dtype=np.intp)
        for _ in range(PROCESSES):
            machine.start(alike)
            for row, values in zip(alike.tolist(), machine.replicates(alike, count), strict=True):
                found[row].append(values.tolist())
    return found


def trimmed_means(samples: Array, trim: float) -> Array:
    """`fusebench.stats.paired.trimmed_mean` along the axis of rounds, for many at once."""
    cut = math.floor(trim * samples.shape[-2])
    ordered = np.sort(samples, axis=-2)
    return np.asarray(ordered[..., cut : samples.shape[-2] - cut, :].mean(axis=-2))
