"""Cases of residual_gate_norm_scale_shift: what is refused, what a call amounts to, and the bytes and operations of a case."""

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
FLUX = {"tokens": 4096, "hidden": 3072}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"hidden": 0}, "hidden is 0; it must be a multiple of 8 from 8 to 8192"),
        ({"hidden": 100}, "hidden is 100"),
        ({"hidden": 8200}, "hidden is 8200"),
        ({"frames": 3, "modulation": "frame", "tokens": 4}, r"frames is 3; it must divide tokens \(4\)"),
        ({"frames": 3}, "frames is 3; it must be 1 unless a modulation has the form 'frame'"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"eps": float("nan")}, "eps is nan; it must be positive and finite"),
        ({"norm": "group"}, "norm"),
        ({"dtype": "float64"}, "dtype"),
        ({"modulation": "head"}, "modulation"),
        ({"modulation_dtype": "bfloat16"}, "modulation_dtype"),
        ({"tokens": 4.5}, "tokens"),
        ({"scale": 1}, "unknown field `scale`"),
        ({"gate": "row"}, "gate"),
        ({"gate": "token", "frames": 3}, "frames is 3"),
    ],
)
def test_an_impossible_case_is_refused_by_key_and_value(parse: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        parse(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 2},
        {"batch": 2, "modulation": "scalar", "affine": True},
        {"batch": 2, "modulation": "channel", "dtype": "float16", "modulation_dtype": "float32", "eps": 1e-5},
        {"batch": 2, "modulation": "token", "strided": True},
        {"batch": 2, "modulation": "frame", "frames": 3, "norm": "rms", "affine": True, "modulation_dtype": "float32"},
        {"batch": 2, "gate": "none", "modulation": "token"},
        {"batch": 2, "gate": "frame", "frames": 3, "modulation": "channel"},
        {"batch": 2, "gate": "token", "modulation": "scalar", "modulation_dtype": "float32"},
    ],
)
def test_a_calls_arguments_amount_to_the_case_they_were_made_from(op: Any, parse: Any, changes: dict[str, Any]) -> None:
    params = parse(**changes)
    arguments = op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0)))
    assert op.params_of(**arguments) == params


def test_one_sample_of_a_form_per_batch_is_a_form_per_channel(op: Any, parse: Any) -> None:
    arguments = op.arguments(parse(), op.buffers(parse(), device=CPU, generator=torch.Generator().manual_seed(0)))
    assert op.params_of(**arguments).modulation == "channel"


def test_dispatch_takes_an_empty_batch(collection: Any) -> None:
    empty, row = torch.ones(0, 5, 64), torch.ones(64)
    returned = dispatch("residual_gate_norm_scale_shift", collection=collection)(empty, empty, row, None, None, row, row, eps=1e-6)
    assert [tensor.shape for tensor in returned] == [empty.shape] * 2


def test_an_eps_that_is_no_case_is_refused_as_an_argument_error(op: Any) -> None:
    x, row = torch.ones(1, 5, 64), torch.ones(64)
    with pytest.raises(KernelArgumentError, match="argument eps: found nan"):
        op.params_of(x, x, None, None, None, row, row, eps=float("nan"))


def test_minimum_bytes_are_those_counted_by_hand(op: Any) -> None:
    activations = 4 * 4096 * 3072 * 2  # x and residual read, y and v written, two bytes each
    modulation = 3 * 3072 * 2
    assert op.minimum_bytes(op.parse_params(FLUX)) == activations + modulation == 100_681_728
    assert op.minimum_bytes(op.parse_params(FLUX | {"gate": "none"})) == activations + 2 * 3072 * 2
    changes = {"gate": "token", "modulation": "scalar", "modulation_dtype": "float32", "strided": True, "norm": "rms", "affine": True}
    assert op.minimum_bytes(op.parse_params(FLUX | changes)) == activations + 4096 * 3072 * 4 + 2 * 4 + 3072 * 4


def test_flops_are_those_counted_by_hand(op: Any) -> None:
    # Per element: gate, sum; sum, difference, square and sum, product; scale and shift.  Per row: two means, eps, reciprocal root.
    assert op.flops(op.parse_params(FLUX)) == 4096 * (9 * 3072 + 4) + 3072
    assert op.flops(op.parse_params(FLUX | {"gate": "none", "norm": "rms", "affine": True})) == 4096 * (7 * 3072 + 3) + 3072


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "4096x3072 bf16"),
        ({"gate": "none"}, "4096x3072 bf16 no gate"),
        ({"gate": "token", "modulation": "scalar"}, "4096x3072 bf16 scalar token gate"),
        ({"frames": 16, "gate": "frame", "modulation": "frame"}, "4096x3072 bf16 F16 frame gate"),
    ],
)
def test_a_cases_label_names_what_differs_from_the_usual(op: Any, changes: dict[str, Any], label: str) -> None:
    assert op.shape(op.parse_params(FLUX | changes)) == label


@pytest.mark.parametrize(
    ("rows", "due"), [(100, (3, 12, 4)), (36, (3, 12, 4)), (30, (3, 8, 4)), (9, (3, 3, 3)), (4, (3, 1, 1)), (1, (1, 1, 1))]
)
def test_a_shrunk_case_has_at_most_so_many_rows_and_whole_frames(parse: Any, op: Any, rows: int, due: tuple[int, ...]) -> None:
    params = parse(batch=3, tokens=12, frames=4, modulation="frame", eps=1e-5)
    shrunk = op.shrink(params, rows)
    assert (shrunk.batch, shrunk.tokens, shrunk.frames) == due
    assert msgspec.structs.replace(shrunk, batch=3, tokens=12, frames=4) == params


def test_op_py_imports_no_torch() -> None:
    code = f"""
import sys
from pathlib import Path
from fusebench.registry import load_collection
collection = load_collection([Path({str(KERNELS)!r})], kernels=False, entry_points=False)
assert not collection.problems, collection.problems
op = collection.op("residual_gate_norm_scale_shift")
params = op.parse_params({FLUX!r})
assert op.minimum_bytes(params) and op.flops(params) and op.shape(params)
assert "torch" not in sys.modules and "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
