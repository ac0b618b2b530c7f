"""The streaming yardstick reads and writes what its op does, each byte once, in the op's own proportion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.registry.launching import interpreting
from fusebench.timing.yardstick import (
    ALIGNMENT,
    EQUAL,
    HOST_TEXT,
    MOST_REGIONS,
    SHAPE,
    Mix,
    Regions,
    Shape,
    device_call,
    regions_of,
    stream_of,
    yardstick_text,
)

CPU = torch.device("cpu")
MIXES = [
    Mix(4096, 4096),
    Mix(4096, 4096, in_place=True),
    Mix(4480, 4096, in_place=True),
    Mix(20_800, 4096),
    Mix(4096, 8192),
    Mix(4160, 8192),
    Mix(64_000, 64),
    Mix(64, 64_000),
    Mix(64, 64),
]
"""Those of a norm, in place, with a cache of cosines, with a float32 modulation, of a selection, with its index; a sum, a fill, nothing."""
SHAPES = [Shape(256, 4), Shape(512, 4, per_multiprocessor=1), Shape(1024, 8, 2, "evict_first", "evict_last", stages=3)]


@pytest.mark.parametrize("mix", MIXES)
def test_regions_hold_the_bytes_of_both_sides(mix: Mix) -> None:
    regions = regions_of(mix)
    assert abs(4 * regions.read - mix.read) <= 2 * ALIGNMENT
    assert abs(4 * regions.written - mix.written) <= 2 * ALIGNMENT
    assert all(words % ALIGNMENT == 0 for words in (regions.words, regions.part_read, regions.part_written))
    assert max(regions.part_read, regions.part_written) < regions.words
    assert max(regions.reads, regions.writes) <= MOST_REGIONS


def test_a_mix_of_another_size_keeps_its_proportion_and_nothing_is_read_as_often_as_written() -> None:
    assert Mix(5000, 1000, in_place=True).scaled(1_200_000) == Mix(1_000_000, 200_000, in_place=True)
    assert Mix(0, 0).scaled(200) == EQUAL.scaled(200) == Mix(100, 100)


def streamed(mix: Mix, shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Source before, source after, target; the target out of place lies within a longer buffer of zeros."""
    regions = regions_of(mix)
    source = torch.randint(-(2**31), 2**31 - 1, (regions.read,), dtype=torch.int32)
    before = source.clone()
    target = source if mix.in_place else torch.zeros(regions.written + 64, dtype=torch.int32)
    device_call(regions, source, target, shape, multiprocessors=2)()
    return before, source, target


def expected(before: torch.Tensor, regions: Regions, block: int) -> torch.Tensor:
    """Every word read once: a word that is left out or added twice changes a sum."""
    value = (torch.arange(regions.words) % block).int()
    for number in range(regions.reads):
        value += before[number * regions.words : (number + 1) * regions.words]
    value[: regions.part_read] += before[regions.reads * regions.words :]
    return torch.cat([*(value + number for number in range(regions.writes)), value[: regions.part_written] + regions.writes])


class Touched:
    """Counts, by address, the loads and the stores of Triton's interpreter."""

    def __init__(self) -> None:
        self.loads: Counter[int] = Counter()
        self.stores: Counter[int] = Counter()


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> Touched:
    if not interpreting():
        pytest.skip("counts the accesses of Triton's interpreter")
    from triton.runtime.interpreter import InterpreterBuilder

    found = Touched()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def counted_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        found.loads.update(ptrs.data[mask.data].tolist())
        return load(self, ptrs, mask, *rest)

    def counted_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        found.stores.update(ptrs.data[mask.data].tolist())
        return store(self, ptrs, value, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted_load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", counted_store)
    return found


def words_of(tensor: torch.Tensor, count: int) -> Counter[int]:
    """The addresses of the first `count` words, each once."""
    return Counter(range(tensor.data_ptr(), tensor.data_ptr() + 4 * count, 4))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mix", MIXES)
def test_every_word_is_read_once_and_written_once_and_every_load_counts(mix: Mix, shape: Shape, touched: Touched) -> None:
    regions = regions_of(mix)
    before, source, target = streamed(mix, shape)
    assert touched.loads == words_of(source, regions.read)
    assert touched.stores == words_of(target, regions.written)
    assert torch.equal(target[: regions.written], expected(before, regions, shape.block))
    untouched = source[regions.written :] if mix.in_place else target[regions.written :]
    assert torch.equal(untouched, before[regions.written :] if mix.in_place else torch.zeros(64, dtype=torch.int32))
    assert mix.in_place or torch.equal(source, before)


def test_a_planted_skip_shows(touched: Touched) -> None:
    """The last tile of both regions is left out."""
    regions, shape = regions_of(Mix(8192, 4096)), Shape(256, 4)
    source, target = torch.ones(regions.read, dtype=torch.int32), torch.zeros(regions.written, dtype=torch.int32)
    device_call(regions._replace(words=regions.words - shape.block), source, target, shape, 2)()
    assert touched.loads != words_of(source, regions.read)
    assert touched.stores != words_of(target, regions.written)
    assert not torch.equal(target, expected(source, regions, shape.block))


def test_on_a_cpu_torch_reads_and_writes_the_same_bytes() -> None:
    def made(mix: Mix) -> list[int]:
        sizes: list[int] = []

        def empty(words: int) -> torch.Tensor:
            sizes.append(4 * words)
            return torch.empty(words, dtype=torch.int32)

        stream_of(mix, empty, CPU, torch.Generator().manual_seed(1))()
        return sizes

    assert made(Mix(8192, 4096)) == [8192, 4096]
    assert made(Mix(4096, 8192)) == [4096, 8192]
    assert made(Mix(8192, 4096, in_place=True)) == [8192]
    assert made(Mix(4480, 4096)) == [4288, 4288], "a small rest joins the elementwise call"


def test_the_text_of_a_yardstick_tells_shapes_apart() -> None:
    assert yardstick_text("cpu") == HOST_TEXT
    assert yardstick_text("cuda") == str(SHAPE)
    texts = [str(shape) for shape in (*SHAPES, Shape(512, 4), Shape(512, 8), Shape(512, 4, 1, "evict_first"), Shape(512, 4, 1, stages=2))]
    assert len(set(texts)) == len(texts)


PROGRAM = """
import json, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fusebench.timing.stream_kernels import stream
from fusebench.timing.yardstick import SHAPE, Mix, regions_of
from helpers.cubin_dump import resources

found = []
for read, written, in_place in json.loads(sys.argv[1]):
    mix = Mix(read, written, in_place)
    regions, shape = regions_of(mix), SHAPE
    constants = dict(reads=regions.reads, writes=regions.writes, reads_part=regions.part_read > 0, writes_part=regions.part_written > 0,
                     block=shape.block, load_hint=shape.load_hint, store_hint=shape.store_hint, stages=shape.stages)
    kinds = dict(source="*i32", target="*i32", words="i32", part_read="i32", part_written="i32", tiles="i32")
    names = stream.arg_names
    source = ASTSource(stream, {name: kinds.get(name, "constexpr") for name in names}, {(names.index(name),): value for name, value in
        constants.items()}, {(names.index(name),): [["tt.divisibility", 16]] for name in kinds if name != "tiles"})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": shape.warps})
    ptx = compiled.asm["ptx"]
    found.append(dict(regions=regions, vectors=shape.block // (4 * 32 * shape.warps), loads=re.findall(r"ld\\.global\\S*", ptx),
        stores=re.findall(r"st\\.global\\S*", ptx), **resources(compiled.asm["cubin"])))
json.dump(found, sys.stdout)
"""


def test_compiled_for_sm_90_every_access_is_16_bytes_wide_and_nothing_spills(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [environment.get("PYTHONPATH")])])
    sizes = [[2**10 * size for size in mix[:2]] + [mix.in_place] for mix in MIXES]
    program = [sys.executable, "-c", PROGRAM, json.dumps(sizes)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for one in json.loads(done.stdout):
        regions = Regions(*one["regions"])
        accesses = (
            one["vectors"] * (regions.reads + (regions.part_read > 0)),
            one["vectors"] * (regions.writes + (regions.part_written > 0)),
        )
        assert (len(one["loads"]), len(one["stores"])) == accesses
        assert all(".v4.b32" in access for access in one["loads"] + one["stores"])
        assert (one["STACK"], one["LOCAL"]) == (0, 0)
        assert one["REG"] <= 64, "32 warps per multiprocessor fit"
