"""Tunable choices: kernels of their own that nothing selects but their name and a dispatch table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusebench import Arguments, kernel, tensor
from fusebench.errors import KernelDeclarationError, UnknownNameError
from fusebench.registry import Collection, dispatch, load_collection
from fusebench.registry.dispatching import dispatcher
from fusebench.registry.dispatching.tables import encode_table
from fusebench.runner.case_kernels import case_kernels
from fusebench.schema import Case, KernelId
from fusebench.schema.dispatch import TABLE_VERSION, DispatchTable, KernelTime, TableEntry, TableGroup, TableRun

KERNELS = Path(__file__).parents[3] / "kernels"
OP = "norm_scale_shift"
DECLARED, CHOICE = f"{OP}/fused_triton@2", f"{OP}/fused_triton__twice_the_warps@2"
CASE = Case(suite="s", name="c", op=OP, params={"tokens": 8, "hidden": 256})


@pytest.fixture(scope="module")
def collection() -> Collection:
    return load_collection([KERNELS], only={OP}, operators=False, entry_points=False)


def call() -> tuple[torch.Tensor | None, ...]:
    generator = torch.Generator().manual_seed(1)
    x, scale, shift = (torch.randn(shape, generator=generator).bfloat16() for shape in ((1, 8, 256), (1, 1, 256), (1, 1, 256)))
    return x, None, None, scale, shift


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [
        (None, False),
        ("*", False),
        ("fused_triton*", False),
        ("norm_scale_shift/*", False),
        ("fused_triton__*", True),
        ("*__twice_the_warps@2", True),
        (f"fused_cuda,{CHOICE}", True),
    ],
)
def test_a_choice_is_selected_by_its_own_name_alone(collection: Collection, pattern: str | None, selected: bool) -> None:
    found = {str(one.id) for one in collection.kernels_of(OP, pattern)}
    assert (CHOICE in found) == selected
    unit = case_kernels(collection, CASE, "cpu", pattern)
    assert (CHOICE in {str(one.id) for one in unit.runnable}) == selected


def test_a_choice_computes_what_its_kernel_does_under_the_same_conditions(collection: Collection) -> None:
    declared, choice = collection.kernels[DECLARED], collection.kernels[CHOICE]
    assert torch.equal(choice(*call()), declared(*call()))
    params = collection.op(OP).parse_params(CASE.params)
    assert choice.contract_for(params) == declared.contract_for(params)
    assert choice.replays == declared.replays
    declared_supports = declared._supports
    try:
        declared.supports(lambda params: "never")
        assert choice.reason_unsupported(params) == "never"
    finally:
        declared.supports(declared_supports)


def test_a_process_that_calls_one_choice_finds_its_file() -> None:
    found = load_collection([KERNELS], only={OP}, kernel=KernelId.parse(CHOICE), operators=False, entry_points=False)
    assert CHOICE in found.kernels


def test_a_glob_that_only_choices_would_match_is_told_what_it_lacks(collection: Collection) -> None:
    with pytest.raises(UnknownNameError, match=r"a choice is matched by a glob with __ alone, here \*__twice\*: unknown kernel 'twice\*'"):
        collection.require_match("twice*")
    collection.require_match("*__twice*")


def test_a_run_measures_the_choice_that_dispatch_takes(collection: Collection) -> None:
    unit = case_kernels(collection, CASE, "cpu", dispatched=CHOICE)
    assert CHOICE in {str(one.id) for one in unit.runnable}
    assert unit.dispatched == CHOICE
    assert CHOICE not in {str(one.id) for one in case_kernels(collection, CASE, "cpu", "fused_cuda", dispatched=CHOICE).runnable}


def test_dispatch_takes_a_choice_only_where_a_table_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    op = load_collection([KERNELS], only={OP}, operators=False, entry_points=False).op(OP)
    key = op.dispatch_key(op.params_of(*call()))
    assert key is not None
    monkeypatch.setattr(dispatcher, "_gpu_of", lambda device, args, kwargs: "Toy GPU")
    monkeypatch.setattr(dispatcher, "_triton_version", lambda: "3.6.0")
    monkeypatch.setattr(dispatcher, "reason_not_runnable", lambda kernel, device: None)
    own = tmp_path / "own"
    folder = own / OP / "dispatch"
    folder.mkdir(parents=True)
    both = load_collection([own, KERNELS], only={OP}, operators=False, entry_points=False)
    assert not both.problems
    assert dispatch(OP, collection=both).explain(*call()).kernel == DECLARED
    entry = TableEntry(sizes=key.sizes, case="s:c", runs=("r",), times=(KernelTime("fused_triton__twice_the_warps@2", 1.0, 0.1),))
    runs = {"r": TableRun(commit="", created="", torch="", triton="", driver="", timer="")}
    groups = (TableGroup(kinds=key.kinds, entries=(entry,)),)
    table = DispatchTable(schema_version=TABLE_VERSION, op=OP, gpu="Toy GPU", triton="3.6", runs=runs, groups=groups)
    (folder / "toy_gpu.triton-3.6.json").write_bytes(encode_table(table))
    taken = dispatch(OP, collection=both)
    assert taken.explain(*call()).kernel == CHOICE
    assert torch.equal(taken(*call()), both.kernels[DECLARED](*call()))


class Call(Arguments):
    x: torch.Tensor = tensor("N")


def takes_a_choice(call: Call, choice: int = 1) -> None:
    """A kernel's function."""


def takes_none(call: Call) -> None:
    """A kernel's function without the parameter."""


@pytest.mark.parametrize(
    ("name", "choices", "function", "said"),
    [
        ("a__b", {}, takes_a_choice, "stands between a kernel's name and such a label, and in no name"),
        ("a", {"B": 1}, takes_a_choice, "expected labels of lower-case letters and digits"),
        ("a", {"b__c": 1}, takes_a_choice, "expected labels of lower-case letters and digits"),
        ("a", {"b": 1}, takes_none, "its function takes `(call: Arguments, choice=...)`"),
        ("a", {"b": 1}, lambda x: None, "its function takes `(call: Arguments, choice=...)`"),
    ],
)
def test_choices_that_cannot_work_are_refused(name: str, choices: dict[str, int], function: object, said: str) -> None:
    with pytest.raises(KernelDeclarationError) as refused:
        kernel("scale", name, version=1, role="fused", language="torch", choices=choices)(function)  # type: ignore[arg-type]
    assert said in str(refused.value)
