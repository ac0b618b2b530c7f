"""Layouts say what torch says, and what is remembered is not remembered while an operator is traced."""

from __future__ import annotations

import pytest
import torch

from fusebench.errors import KernelArgumentError
from fusebench.registry import launching
from fusebench.registry.layouts import layout_of, refuse, remembered

TENSORS = {
    "contiguous": torch.ones(2, 3, 8),
    "transposed": torch.ones(3, 2, 8).transpose(0, 1),
    "columns": torch.ones(2, 3, 16)[..., 8:],
    "one row of wider ones": torch.ones(1, 1, 16)[..., 8:],
    "expanded": torch.ones(1, 1, 8).expand(2, 3, 8),
    "empty": torch.ones(0, 3, 8),
    "one value": torch.ones(1),
}


@pytest.mark.parametrize("name", [name for name in TENSORS if name != "empty"])
def test_contiguity_is_torchs(name: str) -> None:
    assert layout_of(TENSORS[name]).is_contiguous == TENSORS[name].is_contiguous()


def test_layouts_of_equal_tensors_are_one_key_and_of_others_are_not() -> None:
    assert len({layout_of(torch.ones(2, 3, 8)), layout_of(torch.zeros(2, 3, 8))}) == 1
    assert len({layout_of(tensor) for tensor in TENSORS.values()}) == len(TENSORS)
    assert layout_of(torch.ones(8)) != layout_of(torch.ones(8, dtype=torch.float16))


def test_a_layout_reads_as_shape_dtype_and_strides_where_they_are_unusual() -> None:
    assert str(layout_of(TENSORS["contiguous"])) == "[2, 3, 8] in torch.float32"
    assert str(layout_of(TENSORS["columns"])) == "[2, 3, 8] in torch.float32 with strides (48, 16, 1)"


def test_results_are_remembered_but_not_while_tracing() -> None:
    calls = []
    doubled = remembered(lambda number: calls.append(number) or number)
    assert [doubled(1), doubled(1), doubled(2)] == [1, 1, 2]
    assert calls == [1, 2]
    with launching.trace():
        assert doubled(1) == 1
    assert calls == [1, 2, 1]


def test_a_refusal_is_not_remembered_as_a_result() -> None:
    @remembered
    def refuses(op: str) -> None:
        refuse(op, "x", "this", "that")

    for _ in range(2):
        with pytest.raises(KernelArgumentError, match="some_op: argument x: found this; accepted is that"):
            refuses("some_op")
