"""Cases of qknorm_rope: what is refused, what a call amounts to, and the bytes and operations of a case."""

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

KERNELS = Path(__file__).parents[3] / "kernels"
CPU = torch.device("cpu")

FLUX_1024 = {"tokens": 4096, "heads": 24, "head_dim": 128, "rope_dim": 128, "layout": "interleaved"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"heads": 0}, "heads is 0"),
        ({"kv_heads": 0}, "kv_heads is 0"),
        ({"heads": 32, "kv_heads": 5}, r"kv_heads is 5; it must be positive and divide heads \(32\)"),
        ({"heads": 4, "kv_heads": 8}, "kv_heads is 8"),
        ({"head_dim": 72}, "head_dim is 72; it must be one of 64, 80, 96, 128, 256"),
        ({"rope_dim": 0}, "rope_dim is 0"),
        ({"rope_dim": 63}, "rope_dim is 63; it must be even"),
        ({"rope_dim": 130}, r"at most head_dim \(128\)"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"eps": -1e-6}, "eps is -1e-06"),
        ({"eps": float("nan")}, "eps is nan; it must be positive and finite"),
        ({"eps": float("inf")}, "eps is inf"),
        ({"position_offset": -1}, "position_offset is -1"),
        ({"layout": "gptj"}, "layout"),
        ({"dtype": "float64"}, "dtype"),
        ({"position_dtype": "int16"}, "position_dtype"),
        ({"mode": "exact"}, "mode"),
        ({"cache_dtype": "bfloat16"}, "cache_dtype"),
        ({"tokens": 4.5}, "tokens"),
        ({"rotary": 64}, "unknown field `rotary`"),
    ],
)
def test_an_impossible_case_is_refused_by_key_and_value(parse: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        parse(**changes)


@pytest.mark.parametrize("missing", ["tokens", "heads", "head_dim", "layout"])
def test_a_case_without_a_required_key_is_refused(op: Any, missing: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"required field `{missing}`"):
        op.parse_params({key: value for key, value in FLUX_1024.items() if key != missing})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 1, "packed": True},
        {"layout": "neox", "dtype": "float16", "cache_dtype": "activation", "head_dim": 80, "rope_dim": 32},
        {"dtype": "float32", "mode": "round_norm", "affine": False, "position_dtype": "int32", "position_offset": 9, "eps": 1e-5},
    ],
)
def test_a_calls_arguments_amount_to_the_case_they_were_made_from(op: Any, parse: Any, changes: dict[str, Any]) -> None:
    params = parse(**changes)
    arguments = op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0)))
    # A call spells out what a case leaves to its defaults.
    due = msgspec.structs.replace(params, kv_heads=params.key_heads, rope_dim=params.rotary)
    assert op.params_of(**arguments) == due


def test_a_batch_is_one_run_of_tokens_to_a_call(op: Any, parse: Any) -> None:
    params = parse(batch=2, tokens=5)
    arguments = op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0)))
    found = op.params_of(**arguments)
    assert (found.batch, found.tokens) == (1, 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eps": float("nan")}, "qknorm_rope: eps is nan"),
        ({"eps": 0.0}, "qknorm_rope: eps is 0.0"),
        ({"layout": "gptj"}, "argument layout"),
    ],
)
def test_a_call_that_is_no_case_is_refused_as_an_argument_error(op: Any, parse: Any, changes: dict[str, Any], message: str) -> None:
    arguments = op.arguments(parse(), op.buffers(parse(), device=CPU, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(KernelArgumentError, match=message):
        op.params_of(**(dict(arguments) | changes))


def test_query_heads_that_no_key_head_divides_are_refused(op: Any) -> None:
    q, k = torch.ones(2, 4, 64), torch.ones(2, 3, 64)
    with pytest.raises(KernelArgumentError, match="kv_heads is 3"):
        op.params_of(q, k, None, None, torch.ones(2, 64), torch.arange(2))


def test_dispatch_takes_an_empty_batch(collection: Any) -> None:
    q, k = torch.ones(0, 4, 64), torch.ones(0, 2, 64)
    returned = dispatch("qknorm_rope", collection=collection)(q, k, None, None, torch.ones(2, 64), torch.arange(0), layout="neox", eps=1e-6)
    assert [tensor.shape for tensor in returned] == [q.shape, k.shape]


def test_minimum_bytes_of_flux_1024_are_those_counted_by_hand(op: Any) -> None:
    params = op.parse_params(FLUX_1024)
    activations = 2 * (4096 * 24 * 128 * 2) * 2  # q and k, read and written, two bytes each
    weights = 2 * 128 * 2
    cache = 4096 * 128 * 4
    positions = 4096 * 8
    assert op.minimum_bytes(params) == activations + weights + cache + positions == 102_793_728


def test_minimum_bytes_count_each_input_once(op: Any) -> None:
    changes = {"batch": 2, "kv_heads": 8, "rope_dim": 64, "dtype": "float16", "cache_dtype": "activation", "position_dtype": "int32"}
    params = op.parse_params(FLUX_1024 | {"tokens": 10, "affine": False} | changes)
    # Samples share the cache's rows: 10 of them, not 20.  The value third of a packed projection is neither read nor written.
    due = 2 * 20 * (24 + 8) * 128 * 2 + 10 * 64 * 2 + 20 * 4
    assert op.minimum_bytes(params) == due
    assert op.minimum_bytes(msgspec.structs.replace(params, packed=True)) == due


def test_flops_of_flux_1024_are_those_counted_by_hand(op: Any) -> None:
    # Per element: square, add, scale, weight.  Per pair: four products, two sums.  Per row: mean, eps, reciprocal root.
    per_row = 4 * 128 + 6 * 64 + 3
    assert op.flops(op.parse_params(FLUX_1024)) == 4096 * 48 * per_row == 176_750_592
    assert op.flops(op.parse_params(FLUX_1024 | {"affine": False, "rope_dim": 64})) == 4096 * 48 * (3 * 128 + 6 * 32 + 3)


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "4096x24x128 bf16"),
        ({"batch": 2, "tokens": 2048}, "2x2048x24x128 bf16"),
        ({"kv_heads": 8, "rope_dim": 64, "layout": "neox"}, "4096x24/8x128 R64 bf16 neox"),
        ({"kv_heads": 24, "dtype": "float32", "packed": True}, "4096x24x128 fp32 packed"),
        ({"dtype": "float16", "mode": "round_norm", "affine": False}, "4096x24x128 fp16 round_norm no affine"),
    ],
)
def test_a_cases_label_names_what_differs_from_the_usual(op: Any, changes: dict[str, Any], label: str) -> None:
    assert op.shape(op.parse_params(FLUX_1024 | changes)) == label


@pytest.mark.parametrize(("rows", "batch", "tokens"), [(100, 3, 11), (33, 3, 11), (32, 3, 10), (4, 3, 1), (2, 2, 1), (1, 1, 1)])
def test_a_shrunk_case_has_at_most_so_many_rows_and_is_otherwise_the_same(parse: Any, op: Any, rows: int, batch: int, tokens: int) -> None:
    params = parse(batch=3, tokens=11, layout="neox", position_offset=4)
    shrunk = op.shrink(params, rows)
    assert (shrunk.batch, shrunk.tokens) == (batch, tokens)
    assert shrunk.rows <= rows
    assert msgspec.structs.replace(shrunk, batch=3, tokens=11) == params


def test_op_py_imports_no_torch() -> None:
    code = f"""
import sys
from pathlib import Path
from fusebench.registry import load_collection
collection = load_collection([Path({str(KERNELS)!r})], kernels=False, entry_points=False)
assert not collection.problems, collection.problems
op = collection.op("qknorm_rope")
params = op.parse_params({FLUX_1024!r})
assert op.minimum_bytes(params) and op.flops(params) and op.shape(params)
assert "torch" not in sys.modules and "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
