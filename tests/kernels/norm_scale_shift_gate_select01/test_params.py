"""Cases of norm_scale_shift_gate_select01: what is refused, what a call amounts to, and the bytes and operations of a case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fusebench.registry import dispatch

KERNELS = Path(__file__).parents[3] / "kernels"
CPU = torch.device("cpu")
BENCH = {"batch": 2, "tokens": 2048, "hidden": 3072}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"hidden": 100}, "hidden is 100; it must be a multiple of 8 from 8 to 8192"),
        ({"hidden": 8200}, "hidden is 8200"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"norm": "rms"}, "norm"),
        ({"modulation": "token"}, "modulation"),
        ({"frames": 3}, "frames"),
        ({"dtype": "float64"}, "dtype"),
        ({"modulation_dtype": "bfloat16"}, "modulation_dtype"),
        ({"index": "half"}, "index"),
        ({"index_dtype": "uint8"}, "index_dtype"),
        ({"gate": "token"}, "unknown field `gate`"),
    ],
)
def test_an_impossible_case_is_refused_by_key_and_value(parse: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        parse(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 2},
        {"affine": True, "eps": 1e-5, "index_dtype": "int64"},
        {"batch": 2, "strided": True, "index_dtype": "bool"},
        {"dtype": "float16", "modulation_dtype": "float32", "affine": True},
        {"dtype": "float32", "strided": True, "modulation_dtype": "activation"},
    ],
)
def test_a_calls_arguments_amount_to_the_case_they_were_made_from(op: Any, parse: Any, changes: dict[str, Any]) -> None:
    params = parse(**changes)
    arguments = op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0)))
    assert op.params_of(**arguments) == params


@pytest.mark.parametrize(
    ("index", "due"),
    [
        ("step", [0, 0, 0, 1, 1]),
        ("zeros", [0, 0, 0, 0, 0]),
        ("ones", [1, 1, 1, 1, 1]),
        ("alternating", [0, 1, 0, 1, 0]),
    ],
)
@pytest.mark.parametrize("strided", [False, True])
def test_an_index_pattern_holds_what_it_says(op: Any, parse: Any, index: str, due: list[int], strided: bool) -> None:
    params = parse(batch=2, tokens=5, index=index, strided=strided)
    arguments = op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0)))
    assert arguments["index"].tolist() == [due, due]


def test_a_random_index_is_about_half_ones_and_differs_between_samples(op: Any, parse: Any) -> None:
    params = parse(batch=2, tokens=1000, hidden=8, index="random")
    index = op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0)))["index"]
    assert set(index.flatten().tolist()) == {0, 1}
    assert 800 < int(index.sum()) < 1200  # 9 standard deviations
    assert not torch.equal(index[0], index[1])


def test_dispatch_takes_an_empty_batch(collection: Any, op: Any, parse: Any) -> None:
    params = parse()
    arguments = dict(op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0))))
    empty = {name: value[:0] if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    returned = dispatch(op.name, collection=collection)(**empty)
    assert [tuple(output.shape) for output in returned] == [(0, 3, 96)] * 2


def test_minimum_bytes_are_those_counted_by_hand(op: Any) -> None:
    activations = 3 * 4096 * 3072 * 2  # x read, y and gate_out written, two bytes each
    index, row = 4096 * 4, 3072 * 2
    assert op.minimum_bytes(op.parse_params(BENCH)) == activations + index + 2 * 6 * row
    for pattern in ("zeros", "ones"):
        assert op.minimum_bytes(op.parse_params(BENCH | {"index": pattern})) == activations + index + 2 * 3 * row, "one set is read"
    affine = op.parse_params(BENCH | {"affine": True, "modulation_dtype": "float32", "index_dtype": "bool", "strided": True})
    assert op.minimum_bytes(affine) == activations + 4096 + (2 * 6 + 2) * 3072 * 4
    assert op.minimum_bytes(op.parse_params({"tokens": 1, "hidden": 8})) == 3 * 16 + 4 + 3 * 16, "one token takes one set"


def test_flops_are_those_counted_by_hand(op: Any) -> None:
    # Per element: sum, difference, square and sum, product; scale and shift.  Per row: two means, eps, reciprocal root.
    assert op.flops(op.parse_params(BENCH)) == 4096 * ((7) * 3072 + 4) + 2 * 2 * 3072
    assert op.flops(op.parse_params(BENCH | {"affine": True, "index": "ones"})) == 4096 * ((9) * 3072 + 4) + 2 * 3072


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "2x2048x3072 bf16"),
        ({"affine": True, "index": "random"}, "2x2048x3072 bf16 affine random"),
        ({"batch": 1, "modulation_dtype": "float32", "index_dtype": "bool"}, "2048x3072 bf16 fp32 modulation bool index"),
    ],
)
def test_a_cases_label_names_what_differs_from_the_usual(op: Any, changes: dict[str, Any], label: str) -> None:
    assert op.shape(op.parse_params(BENCH | changes)) == label


@pytest.mark.parametrize(("rows", "due"), [(100, (3, 12)), (36, (3, 12)), (9, (3, 3)), (4, (3, 1)), (1, (1, 1))])
def test_a_shrunk_case_has_at_most_so_many_rows(parse: Any, op: Any, rows: int, due: tuple[int, int]) -> None:
    params = parse(batch=3, tokens=12, index="random", index_dtype="bool", eps=1e-5)
    shrunk = op.shrink(params, rows)
    assert (shrunk.batch, shrunk.tokens) == due
    assert msgspec.structs.replace(shrunk, batch=3, tokens=12) == params


def test_op_py_imports_no_torch() -> None:
    code = f"""
import sys
from pathlib import Path
from fusebench.registry import load_collection
collection = load_collection([Path({str(KERNELS)!r})], kernels=False, entry_points=False)
assert not collection.problems, collection.problems
op = collection.op("norm_scale_shift_gate_select01")
params = op.parse_params({BENCH!r})
assert op.minimum_bytes(params) and op.flops(params) and op.shape(params)
assert "torch" not in sys.modules and "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
