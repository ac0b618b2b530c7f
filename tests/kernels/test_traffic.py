"""Bytes read and bytes written, which every op and every part of one states, against the tensors of its calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.config import find_project
from fusebench.registry import Collection, Op
from fusebench.suites import list_suites, load_suite
from fusebench.timing.yardstick import mix_of, regions_of

REPOSITORY = Path(__file__).parents[2]
ROWS = 3


@pytest.fixture(scope="module")
def shipped(collection: Collection) -> dict[str, list[Any]]:
    """By op, the parameters of every case of every suite that comes with fusebench, each once."""
    project, ops = find_project(REPOSITORY), collection.ops
    cases = [case for one in list_suites(project, ops) for case in load_suite(one.name, project, ops).cases]
    return {name: list(dict.fromkeys(op.parse_params(case.params) for case in cases if case.op == name)) for name, op in ops.items()}


def output_bytes(op: Op, params: Any, names: tuple[str, ...] | None = None) -> int:
    """Bytes of the outputs of a call: of the overwritten arguments, or of the tensors that the op's fake returns."""
    arguments = op.arguments(params, op.buffers(params, device=torch.device("cpu"), generator=torch.Generator().manual_seed(1)))
    if op.in_place:
        made = {name: arguments[name] for name in op.outputs_of(params)}
    else:
        returned = op.fake(**arguments)
        made = dict(zip(op.outputs, returned if isinstance(returned, tuple) else (returned,), strict=True))
    return sum(one.numel() * one.element_size() for name, one in made.items() if names is None or name in names)


def test_written_bytes_are_those_of_the_outputs_in_every_case(collection: Collection, shipped: Any, each_op: str) -> None:
    op = collection.ops[each_op]
    assert len(shipped[each_op]) > 20
    for params in shipped[each_op]:
        few = op.shrink(params, ROWS)
        written = output_bytes(op, few)
        # Dimensions that a rotation leaves alone need not be written.
        rotated = few.rotary / few.head_dim if each_op == "rotary_embedding" else 1
        assert op.bytes_written(few) == written * rotated, few


def test_bytes_read_and_written_make_the_minimum_in_every_case(collection: Collection, shipped: Any, each_op: str) -> None:
    op = collection.ops[each_op]
    for params in shipped[each_op]:
        mix = mix_of(op, params)
        assert mix.read > 0 < mix.written
        assert mix.total == op.minimum_bytes(params)
        assert mix.in_place == op.in_place
        assert not op.in_place or mix.read >= mix.written
        regions = regions_of(mix)
        if mix.total > 2**20:
            assert 4 * (regions.read + regions.written) == pytest.approx(mix.total, rel=1e-4)


def test_parts_write_their_own_outputs(collection: Collection, shipped: Any) -> None:
    parts = {id(one.part): (one.part, one.op) for one in collection.kernels.values() if one.part is not None}
    assert len(parts) >= 3
    for part, op in parts.values():
        assert op is not None
        for params in shipped[op.name][:20]:
            few = op.shrink(params, ROWS)
            reduced = part.op_of(op)
            assert reduced.bytes_written(few) == output_bytes(op, few, reduced.outputs_of(few))
            assert reduced.bytes_written(few) < reduced.minimum_bytes(few)
