"""Kernels that compute a part of their op: what may be declared, what the part makes of the op, and that dispatch passes them over."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fusebench import Part
from fusebench.errors import KernelDeclarationError
from fusebench.registry import Collection, dispatch, kernel, load_collection
from fusebench.registry.kernel import missing_modules, reason_not_runnable
from fusebench.registry.op_parts import declared_parts, judged_by
from fusebench.registry.sources import changed_files, definition_digests
from fusebench.runner.ab.revisions import changed_definition
from fusebench.schema import Bitwise

PART_FILE = Path(__file__).parents[1] / "toy_project" / "part.py"

ABSENT = """
from fusebench import kernel

@kernel("scale", "absent", version=1, role="peer", language="triton", requires=("no_such_library",), install="no-such-library")
def absent(x, *, factor=2.0):
    raise AssertionError("must not run")

@kernel("scale", "library", version=1, role="peer", language="triton")
def library(x, *, factor=2.0):
    raise AssertionError("must not run")
"""


@pytest.fixture
def collection(make_root: Callable[..., Path]) -> Collection:
    loaded = load_collection([make_root(files={"part.py": PART_FILE.read_text(), "absent.py": ABSENT})], entry_points=False)
    assert not loaded.problems
    return loaded


def make_part(**changes: object) -> Part:
    fields = {
        "covers": "half of it",
        "reference": lambda params, arguments: {},
        "split": lambda **arguments: (),
        "minimum_bytes": lambda params: 1,
    }
    return Part(**(fields | changes))  # type: ignore[arg-type]


def test_dispatch_never_chooses_a_part_and_says_why(collection: Collection) -> None:
    scale = dispatch("scale", prefer="peer", collection=collection)
    x = torch.ones(8)
    (returned,) = scale(x, factor=3.0)
    assert torch.equal(returned, torch.full((8,), 3.0))
    selection = scale.explain(x, factor=3.0)
    assert (selection.kernel, selection.fallback) == ("scale/split@1", True)
    assert ("scale/part@1", "covers only a part of the op: copy only: no factor") in selection.declined


def test_the_part_of_an_op_has_its_own_reference_and_bytes_and_all_else_of_the_op(collection: Collection) -> None:
    op, part = collection.op("scale"), collection.kernel("scale/part@1").part
    assert part is not None
    reduced = part.op_of(op)
    params = op.parse_params({"size": 8})
    arguments = reduced.arguments(params, {"x": torch.ones(8)})
    assert torch.equal(reduced.reference(params, arguments)["x"], torch.ones(8, dtype=torch.float64))
    assert (reduced.minimum_bytes(params), op.minimum_bytes(params)) == (16, 64)
    assert (reduced.name, reduced.outputs, reduced.in_place, reduced.shape(params)) == (op.name, op.outputs, True, "8")
    assert torch.equal(op.reference(params, arguments)["x"], torch.full((8,), 2.0, dtype=torch.float64)), "the op itself is as it was"


def test_a_part_may_have_fewer_outputs(collection: Collection) -> None:
    op = collection.op("scale")
    assert make_part(outputs=("x",)).op_of(op).outputs_of(op.parse_params({"size": 8})) == ("x",)
    with pytest.raises(KernelDeclarationError, match=r"names outputs y; op scale has x"):
        make_part(outputs=("y",)).op_of(op)


def test_a_part_is_described_in_words() -> None:
    with pytest.raises(KernelDeclarationError, match="covers"):
        make_part(covers=" ")


@pytest.mark.parametrize(
    ("change", "message"), [({"role": "fused"}, "with role 'fused'"), ({"contract": Bitwise("scale/split@1")}, r"with contract bitwise")]
)
def test_only_a_peer_with_a_close_contract_may_cover_a_part(change: dict[str, object], message: str) -> None:
    fields = {"version": 1, "role": "peer", "language": "torch", "covers": make_part()}
    with pytest.raises(KernelDeclarationError, match=message):
        kernel("scale", "part", **(fields | change))  # type: ignore[arg-type]


def test_the_description_of_a_kernel_holds_its_part_and_what_it_needs(collection: Collection) -> None:
    assert collection.kernel("scale/part@1").info.covers == "copy only: no factor"
    assert collection.kernel("scale/split@1").info.covers == ""
    absent = collection.kernel("scale/absent@1")
    assert (absent.info.requires, absent.info.install) == (("no_such_library",), "no-such-library")
    assert missing_modules(absent) == ["no_such_library"]
    assert reason_not_runnable(absent, "cuda") == "not installed: no_such_library (pip install no-such-library)"


def test_a_kernel_in_cuda_cpp_names_the_extra_that_it_needs(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["fusebench.registry.kernel"], "missing_modules", lambda kernel: ["cuda.core"])
    reason = reason_not_runnable(collection.kernel("scale/split@1"), "cuda")
    assert reason == "not installed: cuda.core (pip install 'fusebench[gpu]')"


def test_a_librarys_triton_kernel_is_not_interpreted(collection: Collection) -> None:
    library = collection.kernel("scale/library@1")
    assert "needs a GPU" in str(reason_not_runnable(library, "cpu", interpreter=True))
    assert reason_not_runnable(library, "cuda") is None


OWN_REFERENCE = """
from fusebench import Part, kernel

MINE = Part(
    covers={covers!r}, reference=lambda params, arguments: {{"x": arguments["x"].double() * 0}}, split=lambda x, *, factor: (x * 0,),
    minimum_bytes=lambda params: 1,
)

@kernel("scale", "own", version=1, role="peer", language="torch", covers=MINE)
def own(x, *, factor=2.0):
    return (x * 0,)
"""


def test_a_kernel_file_cannot_bring_the_reference_that_judges_it(make_root: Callable[..., Path]) -> None:
    root = make_root(files={"own.py": OWN_REFERENCE.format(covers="nothing at all")})
    (problem,) = load_collection([root], entry_points=False).problems
    assert "covers 'nothing at all', which op scale does not list; its parts: 'copy only: no factor'" in problem.message
    root = make_root(files={"own.py": OWN_REFERENCE.format(covers="copy only: no factor")})
    loaded = load_collection([root], entry_points=False)
    part = loaded.kernel("scale/own@1").part
    assert part is not None
    assert part is declared_parts(loaded.op("scale"))["copy only: no factor"], "the op's, not the file's"
    arguments = {"x": torch.ones(2)}
    assert part.reference(None, arguments)["x"].tolist() == [1.0, 1.0]


def test_a_part_is_judged_by_the_base_revisions_reference(collection: Collection, make_root: Callable[..., Path]) -> None:
    base = load_collection([make_root()], entry_points=False).op("scale")
    kernel = collection.kernel("scale/part@1")
    judged = judged_by(kernel, base)
    assert judged.part is declared_parts(base)[kernel.covers]
    assert judged.part is not kernel.part
    assert judged_by(kernel, None) is kernel
    whole = collection.kernel("scale/split@1")
    assert judged_by(whole, base) is whole


def test_a_changed_definition_is_told_apart_and_said(make_root: Callable[..., Path]) -> None:
    head, base = make_root("head"), make_root("base")
    assert definition_digests("scale", [head]) == definition_digests("scale", [base])
    file = head / "scale" / "op.py"
    file.write_text(file.read_text().replace("double()", "double() * 1.0"))
    changed = changed_files(definition_digests("scale", [head]), definition_digests("scale", [base]))
    assert changed == ("scale/op.py",)
    assert "the definition of op scale differs from the base revision's (scale/op.py)" in changed_definition("scale", changed)
