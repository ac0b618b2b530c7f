"""Cases of rotary_embedding: what is refused, what a call amounts to, bytes and operations, and the launch policy for few tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fusebench.errors import KernelArgumentError
from fusebench.registry import dispatch
from fusebench.timing.placement import ArmSpec, Placement

KERNELS = Path(__file__).parents[3] / "kernels"
CPU = torch.device("cpu")

FLUX = {"tokens": 4096, "heads": 24, "head_dim": 128, "layout": "interleaved"}
TENSORS = ("q", "k", "cos_cache", "sin_cache", "positions")

FORMS: dict[str, dict[str, Any]] = {
    "3-D": {},
    "2-D packed": {"rank": 2, "packed": True, "kv_heads": 1},
    "4-D packed": {"rank": 4, "packed": True, "batch": 2, "heads": 4, "kv_heads": 2, "caches": "separate"},
    "4-D by index": {"rank": 4, "batch": 2, "positions": "index", "layout": "neox", "position_offset": 3},
    "no k": {"kv_heads": 0, "head_dim": 320, "rope_dim": 64, "positions": "int32"},
    "no k, packed": {"kv_heads": 0, "packed": True, "dtype": "float16", "cache_dtype": "activation"},
}


def arguments(op: Any, params: Any) -> dict[str, Any]:
    return dict(op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"heads": 0}, "heads is 0"),
        ({"kv_heads": -1}, "kv_heads is -1"),
        ({"heads": 32, "kv_heads": 5}, r"kv_heads is 5; it must be 0 \(no k\) or divide heads \(32\)"),
        ({"head_dim": 72}, "head_dim is 72; it must be one of 64, 80, 96, 128, 256, 320"),
        ({"rope_dim": 0}, "rope_dim is 0"),
        ({"rope_dim": 63}, "rope_dim is 63; it must be even"),
        ({"rope_dim": 130}, r"at most head_dim \(128\)"),
        ({"position_offset": -1}, "position_offset is -1"),
        ({"positions": "index", "batch": 2}, "positions is index; it must be int32 or int64 for 2 samples in rank 3"),
        ({"rank": 5}, "rank"),
        ({"caches": "both"}, "caches"),
        ({"layout": "gptj"}, "layout"),
        ({"eps": 1e-6}, "unknown field `eps`"),
    ],
)
def test_an_impossible_case_is_refused_by_key_and_value(parse: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        parse(**changes)


@pytest.mark.parametrize("form", FORMS)
def test_a_calls_arguments_amount_to_the_case_they_were_made_from(op: Any, parse: Any, form: str) -> None:
    params = parse(**FORMS[form])
    # A call spells out what a case leaves to its defaults, and only four dimensions show samples.
    due = msgspec.structs.replace(params, kv_heads=params.key_heads, rope_dim=params.rotary)
    if params.rank != 4:
        due = msgspec.structs.replace(due, batch=1, tokens=params.rows)
    assert op.params_of(**arguments(op, params)) == due


@pytest.mark.parametrize("form", FORMS)
def test_arguments_are_views_of_the_cases_rank(op: Any, parse: Any, form: str) -> None:
    params = parse(**FORMS[form])
    buffers = op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0))
    made = op.arguments(params, buffers)
    for name, heads in (("q", params.heads), ("k", params.key_heads)):
        if not heads:
            assert made[name] is None
            continue
        shape = {
            2: (params.rows, heads * params.head_dim),
            3: (params.rows, heads, params.head_dim),
            4: (params.batch, params.tokens, heads, params.head_dim),
        }[params.rank]
        assert made[name].shape == shape
        owner = buffers["qkv" if params.packed else name]
        assert made[name].untyped_storage().data_ptr() == owner.untyped_storage().data_ptr()
        assert made[name].is_contiguous() is not params.packed


def test_a_case_without_k_has_one_output(op: Any, parse: Any) -> None:
    assert op.outputs_of(parse()) == ("q", "k")
    assert op.outputs_of(parse(kv_heads=0)) == ("q",)
    assert list(op.reference(parse(kv_heads=0), arguments(op, parse(kv_heads=0)))) == ["q"]


def test_a_case_without_k_can_be_timed_and_is_restored_between_rounds(collection: Any, op: Any, parse: Any) -> None:
    import random

    params = parse(kv_heads=0, position_offset=1)
    values = op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0))
    kernel = collection.kernel("rotary_embedding/split_torch@1")
    arm = Placement(op, params, values, CPU, random.Random(0)).arm(ArmSpec("split", kernel))
    arm.call()
    arm.restore()


def test_dispatch_falls_back_to_the_split_chain_on_the_cpu_with_and_without_k(collection: Any, op: Any, parse: Any) -> None:
    rotate = dispatch("rotary_embedding", collection=collection)
    for changes in ({}, {"kv_heads": 0, "rank": 2}):
        params = parse(**changes, position_offset=1)
        made = arguments(op, params)
        due = op.reference(params, made)
        q, *others = (made.pop(name) for name in TENSORS)
        outputs = rotate(q, *others, **made)
        assert outputs[0] is q, "in place"
        assert len(outputs) == len(due)
        torch.testing.assert_close(q.double(), due["q"], rtol=2**-8, atol=0)
    assert {selection.kernel for selection in rotate.fallbacks} == {"rotary_embedding/split_torch@1"}


def test_dispatch_takes_an_empty_batch(collection: Any) -> None:
    q = torch.ones(0, 5, 4, 64)
    (returned,) = dispatch("rotary_embedding", collection=collection)(q, None, torch.ones(5, 64), None, None, layout="neox")
    assert returned.shape == q.shape


def test_query_heads_that_no_key_head_divides_are_refused(op: Any) -> None:
    with pytest.raises(KernelArgumentError, match="kv_heads is 3"):
        op.params_of(torch.ones(2, 4, 64), torch.ones(2, 3, 64), torch.ones(2, 64), None, None)


def test_minimum_bytes_are_those_counted_by_hand(op: Any) -> None:
    activations = 2 * (4096 * 24 * 128 * 2) * 2  # q and k, read and written, two bytes each
    assert op.minimum_bytes(op.parse_params(FLUX)) == activations + 4096 * 128 * 4 + 4096 * 8
    # Only what is rotated moves: half of each head, one tensor, a 16-bit cache that samples share, no positions.
    changes = {"rope_dim": 64, "kv_heads": 0, "cache_dtype": "activation", "positions": "index", "batch": 2, "rank": 4}
    assert op.minimum_bytes(op.parse_params(FLUX | changes)) == 2 * (2 * 4096 * 24 * 64 * 2) + 4096 * 64 * 2


def test_flops_are_those_counted_by_hand(op: Any) -> None:
    assert op.flops(op.parse_params(FLUX)) == 4096 * 48 * 64 * 6
    assert op.flops(op.parse_params(FLUX | {"rope_dim": 32, "kv_heads": 0})) == 4096 * 24 * 16 * 6


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "4096x24x128 bf16"),
        ({"batch": 2, "tokens": 2048, "rank": 4}, "2x2048x24x128 bf16 4-D"),
        ({"kv_heads": 8, "rope_dim": 64, "layout": "neox"}, "4096x24/8x128 R64 bf16 neox"),
        ({"kv_heads": 0, "dtype": "float32", "packed": True, "rank": 2}, "4096x24/0x128 fp32 2-D packed"),
    ],
)
def test_a_cases_label_names_what_differs_from_the_usual(op: Any, changes: dict[str, Any], label: str) -> None:
    assert op.shape(op.parse_params(FLUX | changes)) == label


@pytest.mark.parametrize(("rows", "batch", "tokens"), [(100, 3, 11), (33, 3, 11), (32, 3, 10), (4, 3, 1), (2, 2, 1), (1, 1, 1)])
def test_a_shrunk_case_has_at_most_so_many_rows_and_is_otherwise_the_same(parse: Any, op: Any, rows: int, batch: int, tokens: int) -> None:
    params = parse(batch=3, tokens=11, layout="neox", position_offset=4)
    shrunk = op.shrink(params, rows)
    assert (shrunk.batch, shrunk.tokens) == (batch, tokens)
    assert msgspec.structs.replace(shrunk, batch=3, tokens=11) == params


def heads_of(module: Any, *counts: int) -> list[Any]:
    return [module("_plan").Heads(count, 0, 0) for count in counts]


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("counts", [(32, 8), (64, 8), (8, 8), (32, 1)])
def test_tiny_token_counts_are_spread_over_every_head(module: Any, rows: int, counts: tuple[int, int]) -> None:
    tiles, heads = module("_tiles"), heads_of(module, *counts)
    tile = module("fused_triton_v2").tile(rows, 128, *heads)
    launched = tiles.programs(rows, tile.block_heads, *heads)
    assert tile == (1, 1) if rows * sum(counts) < tiles.ENOUGH_PROGRAMS else launched >= tiles.ENOUGH_PROGRAMS
    assert launched > rows * 2, "more than the program per token of version 1"


@pytest.mark.parametrize(("rotary", "block_heads"), [(32, 32), (64, 16), (80, 8), (128, 8), (256, 4), (320, 2)])
def test_many_tokens_give_every_lane_32_elements(module: Any, rotary: int, block_heads: int) -> None:
    assert module("fused_triton_v2").tile(4096, rotary, *heads_of(module, 32, 32)) == (block_heads, 1)


@pytest.mark.parametrize("rows", [1, 5, 32, 200, 512, 4096])
def test_blocks_shrink_no_further_than_the_gpu_needs(module: Any, rows: int) -> None:
    tiles, heads = module("_tiles"), heads_of(module, 24, 24)
    tile = module("fused_triton_v2").tile(rows, 128, *heads)
    assert tile.block_heads == 8 or tiles.programs(rows, 2 * tile.block_heads, *heads) < tiles.ENOUGH_PROGRAMS


def test_op_py_imports_no_torch() -> None:
    code = f"""
import sys
from pathlib import Path
from fusebench.registry import load_collection
collection = load_collection([Path({str(KERNELS)!r})], kernels=False, entry_points=False)
assert not collection.problems, collection.problems
op = collection.op("rotary_embedding")
params = op.parse_params({FLUX!r})
assert op.minimum_bytes(params) and op.flops(params) and op.shape(params)
assert "torch" not in sys.modules and "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
