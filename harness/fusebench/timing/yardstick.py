"""The streaming yardstick: one launch that reads and writes as many bytes as an op, each once, in place where the op works in place.

A device reads faster than it writes, so that a launch is a limit for an op only if it has the op's own mix of both.  On a GPU the launch is
`stream_kernels.stream` in one fixed `SHAPE`: a shape chosen by timing could change between two runs, and the gate compares runs by their
yardsticks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from ..registry import Op

ALIGNMENT = 16
"""Words of 4 bytes to which regions are rounded: 64 bytes, so that every access of a warp is 16 bytes wide per thread."""
MOST_REGIONS = 8
"""Regions that one tile reads or writes at most.  A mix beyond that has parts of regions instead."""
CPU_REST_SHARE = 0.1
"""On a CPU, each torch call costs microseconds: a rest of reads or writes below this share of the bytes joins the elementwise call."""


class Mix(NamedTuple):
    """Bytes that one call of an op must move."""

    read: int
    written: int
    in_place: bool = False
    """Whether the written bytes lie where bytes were read."""

    @property
    def total(self) -> int:
        return self.read + self.written

    def scaled(self, total: int) -> Mix:
        """The same mix of `total` bytes; as many read as written where this one moves nothing."""
        read = round(total * self.read / self.total) if self.total else total // 2
        return Mix(read, total - read, self.in_place)


EQUAL = Mix(1, 1)
"""As many bytes read as written."""


class Regions(NamedTuple):
    """A mix in words of 4 bytes: whole regions of one length, and a part of one more."""

    words: int
    """Length of a region."""
    reads: int
    """Whole regions to read."""
    part_read: int
    writes: int
    part_written: int

    @property
    def read(self) -> int:
        return self.reads * self.words + self.part_read

    @property
    def written(self) -> int:
        return self.writes * self.words + self.part_written


class Shape(NamedTuple):
    """How a stream is launched."""

    block: int
    """Words of one tile of one region."""
    warps: int
    per_multiprocessor: int = 0
    """Programs per multiprocessor, which take one tile after the other; 0 for one tile per program."""
    load_hint: str = ""
    """Eviction policy of the loads; empty for the device's default."""
    store_hint: str = ""
    stages: int = 1
    """Tiles in flight per program, by asynchronous copies to shared memory; 1 for plain loads."""

    def __str__(self) -> str:
        programs = f"{self.per_multiprocessor} programs per multiprocessor" if self.per_multiprocessor else "one tile per program"
        hints = "".join(f", {what} {hint}" for what, hint in (("loads", self.load_hint), ("stores", self.store_hint)) if hint)
        stages = f", {self.stages} stages" if self.stages > 1 else ""
        return f"tiles of {self.block} words, {self.warps} warps, {programs}{hints}{stages}"


SHAPE = Shape(512, 4)
"""How every yardstick is launched: one access of 16 bytes per thread and region, and many small programs.

More warps hide latency better than more loads per thread.  On an H200, of 26 shapes in 22 cases of all ops (0.75 MB to 2.9 GB), this one
took at most 0.8 % longer than the best at 100 us and more, and 1.7 % at 10 to 100 us, where the best of so many is by chance some 1 %
below its mean.  At 5 us and 1:2 it took 6.6 % longer, and below 3 us up to 60 % longer, where the floor is the limit.  No fused kernel was
faster than it: the fastest took 0.1 % longer.
"""

HOST_TEXT = "torch calls on the host"
"""The text of a CPU's yardstick in records."""


def mix_of(op: Op, params: Any) -> Mix:
    """The bytes of one case of an op."""
    written = op.bytes_written(params)
    return Mix(op.minimum_bytes(params) - written, written, op.in_place)


def yardstick_text(device_kind: str) -> str:
    """How a yardstick is launched on `cpu` or `cuda`: two texts are two yardsticks, whose times are never compared."""
    return str(SHAPE) if device_kind == "cuda" else HOST_TEXT


def regions_of(mix: Mix) -> Regions:
    """`mix` in words, rounded to whole `ALIGNMENT`s, at least one of each.

    A region is as long as the smaller of both sides, but no shorter than a `MOST_REGIONS`-th of the larger one.
    """
    read, written = (max(1, round(size / (4 * ALIGNMENT))) * ALIGNMENT for size in (mix.read, mix.written))
    shortest = -(-max(read, written) // (MOST_REGIONS * ALIGNMENT)) * ALIGNMENT
    words = max(min(read, written), shortest)
    return Regions(words, *divmod(read, words), *divmod(written, words))


def stream_of(
    mix: Mix, empty: Callable[[int], torch.Tensor], device: torch.device, generator: torch.Generator, shape: Shape = SHAPE
) -> Callable[[], torch.Tensor]:
    """The yardstick's call, which returns the written words (int32, flat).

    Args:
        empty: makes an uninitialised buffer of so many int32 words.
        generator: of the words to read; power and clocks depend on the data.
        shape: `SHAPE` unless given; not for a CPU.
    """
    regions = regions_of(mix)
    if device.type != "cuda":
        return _host_call(_for_host(regions), mix.in_place, empty, generator)
    source = empty(regions.read).random_(generator=generator)
    target = source if _overwrites(mix, regions) else empty(regions.written)
    return device_call(regions, source, target, shape, _multiprocessors(device))


def _overwrites(mix: Mix, regions: Regions) -> bool:
    return mix.in_place and regions.written <= regions.read


def device_call(
    regions: Regions, source: torch.Tensor, target: torch.Tensor, shape: Shape, multiprocessors: int
) -> Callable[[], torch.Tensor]:
    """A call of the Triton stream over `source` (`regions.read` int32 words) and `target`, which it returns."""
    from .stream_kernels import stream

    tiles = -(-regions.words // shape.block)
    programs = min(tiles, shape.per_multiprocessor * multiprocessors) if shape.per_multiprocessor else tiles
    launch = stream[(programs,)]

    def call() -> torch.Tensor:
        launch(
            source,
            target,
            regions.words,
            regions.part_read,
            regions.part_written,
            tiles,
            reads=regions.reads,
            writes=regions.writes,
            reads_part=regions.part_read > 0,
            writes_part=regions.part_written > 0,
            block=shape.block,
            load_hint=shape.load_hint,
            store_hint=shape.store_hint,
            stages=shape.stages,
            num_warps=shape.warps,
        )
        return target

    return call


def _multiprocessors(device: torch.device) -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _for_host(regions: Regions) -> Regions:
    """Read words, written words and their common part for a CPU, as `Regions` of one region."""
    read, written = regions.read, regions.written
    if abs(read - written) < CPU_REST_SHARE * (read + written):
        read = written = (read + written) // 2
    words = min(read, written)
    return Regions(words, 1, read - words, 1, written - words)


def _host_call(
    regions: Regions, in_place: bool, empty: Callable[[int], torch.Tensor], generator: torch.Generator
) -> Callable[[], torch.Tensor]:
    """An elementwise call over the common part, a sum over the rest of the reads, a fill of the rest of the writes."""
    import torch

    source = empty(regions.read).random_(generator=generator)
    target = source[: regions.words] if in_place and not regions.part_written else empty(regions.written)
    common, rest = source[: regions.words], source[regions.words :]
    flipped, filled = target[: regions.words], target[regions.words :]

    def call() -> torch.Tensor:
        torch.bitwise_not(common, out=flipped)
        if regions.part_read:
            rest.amax()
        if regions.part_written:
            filled.fill_(1)
        return target

    return call
