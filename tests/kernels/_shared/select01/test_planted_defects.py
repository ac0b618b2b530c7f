"""The accuracy gate on copies of a select01 kernel that select wrongly: each is caught, the copy that selects rightly passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusebench.accuracy import check_kernel
from fusebench.registry import Kernel
from fusebench.registry.signature import positional_names
from fusebench.schema import Close, KernelId, Language, Role

Change = Callable[[dict[str, Any]], dict[str, Any]]


def swapped(arguments: dict[str, Any]) -> dict[str, Any]:
    """Row set 1 where set 0 is due, and the reverse."""
    other = {"0": "1", "1": "0"}
    kinds = ("scale", "shift", "gate")
    return arguments | {f"{kind}{number}": arguments[f"{kind}{other[number]}"] for kind in kinds for number in other}


def gates_swapped(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"gate0": arguments["gate1"], "gate1": arguments["gate0"]}


def first_sample_for_all(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"index": arguments["index"][:1].expand_as(arguments["index"])}


def strides_ignored(arguments: dict[str, Any]) -> dict[str, Any]:
    """The index read as if it were dense."""
    index = arguments["index"]
    return arguments | {"index": torch.as_strided(index, index.shape, (index.shape[1], 1))}


def one_token_late(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"index": arguments["index"].roll(1, dims=1)}


def nothing(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


def judged(bench: Any, params: Any, change: Change) -> Any:
    original = bench.kernel("fused_triton@2")

    def copy(*values: Any, **keywords: Any) -> Any:
        return original.function(**change(dict(zip(positional_names(bench.op.schema), values, strict=False)) | keywords))

    kernel = Kernel(
        copy, KernelId(bench.op.name, "copy", 1), role=Role.FUSED, language=Language.TRITON, contract=Close(), requires=(), note=""
    )
    return check_kernel(kernel, bench.op, params, split=bench.split, device=bench.device, seed=5)


CASE = {"batch": 2, "tokens": 6, "hidden": 96}
DEFECTS: dict[Change, dict[str, Any]] = {
    swapped: {},
    gates_swapped: {"index": "zeros"},
    first_sample_for_all: {"index": "random", "tokens": 12},
    strides_ignored: {"strided": True, "tokens": 14},
    one_token_late: {"index": "alternating"},
}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_wrong_selection_is_caught(bench: Any, parse: Any, defect: Change) -> None:
    params = parse(**(CASE | DEFECTS[defect]))
    accuracy = judged(bench, params, defect)
    assert not accuracy.passed
    assert re.search("exceeds|, expected", accuracy.reason), "caught by its error, not by a crash"


def test_a_copy_that_changes_nothing_passes(bench: Any, parse: Any) -> None:
    accuracy = judged(bench, parse(**CASE), nothing)
    assert accuracy.passed, accuracy.reason
