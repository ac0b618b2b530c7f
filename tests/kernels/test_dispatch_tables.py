"""The committed dispatch tables fit this checkout, and a call has the key of the case that measured it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusebench.config import find_project
from fusebench.registry import Collection, load_collection
from fusebench.registry.dispatching.tables import find_table
from fusebench.suites import list_suites, load_suite, select_cases

ROOT = Path(__file__).parents[2]
TABLES = sorted((ROOT / "kernels").glob("*/dispatch/*.json"))


@pytest.fixture(scope="module")
def collection() -> Collection:
    return load_collection([ROOT / "kernels"], operators=False, entry_points=False)


def test_every_op_has_a_table_for_the_h200_and_they_are_small() -> None:
    assert {file.parents[1].name for file in TABLES if file.name.startswith("nvidia_h200.")} >= {
        "norm_scale_shift",
        "norm_scale_shift_gate_select01",
        "norm_tanh_mul_add",
        "norm_tanh_mul_add_norm_scale",
        "qknorm_rope",
        "residual_gate_norm_scale_shift",
        "residual_norm_scale_shift_gate_select01",
        "rotary_embedding",
    }
    assert sum(file.stat().st_size for file in TABLES) < 100_000


@pytest.mark.parametrize("file", TABLES, ids=lambda file: f"{file.parents[1].name}-{file.stem}")
def test_a_table_can_be_used_here_and_holds_the_keys_of_its_op(collection: Collection, file: Path) -> None:
    op = collection.op(file.parents[1].name)
    gpu, _, triton = file.stem.partition(".triton-")
    found = find_table(op.name, collection.roots, gpu, f"{triton}.0", [str(one.id) for one in collection.kernels_of(op.name)])
    assert found.table is not None, found.why
    case = next(case for suite in _suites(collection) for case in suite if case.op == op.name)
    key = op.dispatch_key(op.parse_params(case.params))
    assert key is not None
    for group in found.table.groups:
        assert group.kinds.keys() == key.kinds.keys()
        assert {tuple(entry.sizes) for entry in group.entries} == {tuple(key.sizes)}


def test_a_call_has_the_key_of_its_case(collection: Collection) -> None:
    generator = torch.Generator().manual_seed(1)
    seen = set()
    for case in (case for suite in _suites(collection) for case in suite):
        op = collection.op(case.op)
        params = op.shrink(op.parse_params(case.params), 8)
        if params in seen:
            continue
        seen.add(params)
        arguments = op.arguments(params, op.buffers(params, device=torch.device("cpu"), generator=generator))
        assert op.dispatch_key(op.params_of(**arguments)) == op.dispatch_key(params), (
            f"{case.key}: let `dispatch_sizes` and `dispatch_kinds` name what a case and its call say alike"
        )
    assert len(seen) > 40


def _suites(collection: Collection) -> list[list[object]]:
    project = find_project(ROOT)
    names = [one.name for one in list_suites(project, collection.ops) if one.name == "nightly"]
    return [select_cases([load_suite(name, project, collection.ops)], None, None) for name in names]
