"""One broken file is one clear message naming it; everything else keeps working."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fusebench.errors import KernelDeclarationError
from fusebench.registry import Collection, kernel, load_collection
from fusebench.registry.signature import argument_names
from fusebench.schema import KernelId

MakeRoot = Callable[..., Path]


def declare(arguments: str) -> str:
    return f"from fusebench import kernel\n\n@kernel({arguments})\ndef fast(x, *, factor=2.0):\n    return (x * factor,)\n"


BROKEN_FILES = {
    "missing version": (declare("'scale', 'fast', role='fused', language='torch'"), r"line 3: TypeError: .*'version'"),
    "version 0": (declare("'scale', 'fast', version=0, role='fused', language='torch'"), r"line 3: KernelDeclarationError: .*scale/fast@0"),
    "unknown role": (
        declare("'scale', 'fast', version=1, role='fussed', language='torch'"),
        r"line 3: KernelDeclarationError: .*found role='fussed', expected one of split, fused",
    ),
    "compiled in another role": (
        declare("'scale', 'fast', version=1, role='split', language='torch', compile={}"),
        r"line 3: KernelDeclarationError: .*found compile= with role 'split', expected role 'compiled'",
    ),
    "unknown language": (declare("'scale', 'fast', version=1, role='fused', language='tryton'"), r"line 3: .*'tryton'"),
    "unknown op": (
        declare("'scael', 'fast', version=1, role='fused', language='torch'"),
        r"kernel scael/fast@1: unknown op 'scael'; did you mean 'scale'\?",
    ),
    "no annotation": (
        declare("'scale', 'fast', version=1, role='fused', language='torch'").replace("x, *, factor=2.0", "call"),
        r"kernel scale/fast@1 takes \(call\), expected \(call: Arguments\), or the arguments spelled out, \(x, \*, factor\): got an "
        r"unexpected keyword argument 'factor'",
    ),
    "import error": ("import a_module_that_is_not_there\n", r"line 1: ModuleNotFoundError: .*a_module_that_is_not_there"),
    "syntax error": ("def broken(:\n", r"SyntaxError: .*line 1"),
    "exit": ("import sys\nsys.exit('this file gives up')\n", r"line 2: SystemExit: this file gives up"),
}


def load(root: Path) -> Collection:
    return load_collection([root], entry_points=False)


@pytest.mark.parametrize("defect", BROKEN_FILES)
def test_one_broken_kernel_file_is_one_problem_that_names_it(make_root: MakeRoot, defect: str) -> None:
    source, expected = BROKEN_FILES[defect]
    root = make_root(files={"z_broken.py": source, "good.py": declare("'scale', 'good', version=1, role='compiled', language='torch'")})
    collection = load(root)
    assert set(collection.kernels) == {"scale/split@1", "scale/good@1"}
    (problem,) = collection.problems
    assert problem.file == root / "scale" / "z_broken.py"
    assert problem.op == "scale"
    assert re.search(expected, problem.message), problem.message
    assert str(problem).startswith(str(problem.file))


def test_two_kernels_of_one_id_in_one_file_are_both_refused_though_they_share_a_python_name(make_root: MakeRoot) -> None:
    twice = declare("'scale', 'fast', version=1, role='compiled', language='torch'") * 2
    collection = load(make_root(files={"fast.py": twice}))
    assert set(collection.kernels) == {"scale/split@1"}
    (problem,) = collection.problems
    assert "duplicate kernel id scale/fast@1: also declared in the same file, and none of them is used" in problem.message


@pytest.mark.parametrize("kernel_id", [None, "scale/fast@1"])
def test_a_version_that_two_files_declare_is_refused_in_both(make_root: MakeRoot, kernel_id: str | None) -> None:
    source = declare("'scale', 'fast', version=1, role='compiled', language='torch'")
    root = make_root(files={"a.py": source, "z.py": source})
    wanted = KernelId.parse(kernel_id) if kernel_id is not None else None
    collection = load_collection([root], entry_points=False, kernel=wanted)
    assert "scale/fast@1" not in collection.kernels
    assert [problem.file.name for problem in collection.problems] == ["a.py", "z.py"]
    assert "also declared in" in collection.problems[0].message
    assert "a new idea is a new version" in collection.problems[1].message


def test_the_default_compiled_kernel_is_made_of_no_split_chain_that_is_refused(make_root: MakeRoot) -> None:
    root = make_root(files={"again.py": declare("'scale', 'split', version=1, role='split', language='torch'")})
    op = root / "scale" / "op.py"
    op.write_text(op.read_text().replace("    in_place = True", "    in_place = True\n    compiled = {}"))
    collection = load(root)
    assert not collection.kernels
    assert len(collection.problems) == 2


@pytest.mark.parametrize(("package", "hidden"), [("op", "op.py"), ("split", "split.py")])
def test_a_package_beside_a_file_of_its_name_is_refused(make_root: MakeRoot, package: str, hidden: str) -> None:
    """Python would import the package in place of the file."""
    root = make_root(files={f"scale/{package}/__init__.py": "raise AssertionError('imported')"})
    (problem,) = load(root).problems
    assert problem.file == root / "scale" / hidden
    assert f"hidden by the package {package}/ beside it" in problem.message


def test_a_folder_that_hides_the_op_of_another_root_is_refused(make_root: MakeRoot, tmp_path: Path) -> None:
    root, adding = make_root(), tmp_path / "adding" / "scale"
    (adding / "op").mkdir(parents=True)
    (adding / "op" / "__init__.py").write_text("raise AssertionError('imported')")
    (adding / "more.py").write_text(declare("'scale', 'more', version=1, role='fused', language='torch'"))
    collection = load_collection([root, adding.parent], entry_points=False)
    (problem,) = collection.problems
    assert problem.file == adding / "op"
    assert "hides the definition of op 'scale'" in problem.message
    assert set(collection.kernels) == {"scale/split@1"}


def test_declarations_of_a_file_that_fails_halfway_do_not_count(make_root: MakeRoot) -> None:
    half = declare("'scale', 'fast', version=1, role='compiled', language='torch'") + "\nraise RuntimeError('halfway')\n"
    collection = load(make_root(files={"fast.py": half}))
    assert set(collection.kernels) == {"scale/split@1"}
    assert len(collection.problems) == 1


def test_a_folder_without_an_op_is_a_problem_and_other_ops_work(make_root: MakeRoot) -> None:
    root = make_root(files={"stray/fast.py": declare("'stray', 'fast', version=1, role='fused', language='torch'")})
    collection = load(root)
    assert set(collection.kernels) == {"scale/split@1"}
    (problem,) = collection.problems
    assert problem.file == root / "stray"
    assert "unknown op 'stray': the folder has no op.py" in problem.message


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda text: text.replace('name = "scale"', 'name = "scales"'), "defines op 'scales', but its folder is called 'scale'"),
        (lambda text: text.replace("@define_op\n", ""), "defines 0 ops; exactly one class"),
        (lambda text: text.replace("    schema =", "    scheme ="), "lacks schema"),
        (lambda text: text.replace("    def flops", "    def flop"), "flops"),
        (lambda text: "raise ImportError('broken op')", "line 1: ImportError: broken op"),
    ],
)
def test_a_broken_op_is_one_problem(make_root: MakeRoot, edit: Callable[[str], str], expected: str) -> None:
    text = (make_root("spare") / "scale" / "op.py").read_text()
    root = make_root(files={"op.py": edit(text)})
    collection = load(root)
    assert not collection.ops
    (problem,) = collection.problems
    assert problem.file == root / "scale" / "op.py"
    assert expected in problem.message


def test_an_op_in_two_roots_is_a_problem_that_names_both_files(make_root: MakeRoot) -> None:
    first, second = make_root("first"), make_root("second")
    collection = load_collection([first, second], entry_points=False)
    (problem,) = collection.problems
    assert problem.file == second / "scale" / "op.py"
    assert str(first / "scale" / "op.py") in problem.message
    assert collection.roots == (first, second)


def test_a_declaration_outside_a_loader_has_no_side_effect() -> None:
    @kernel("anything", "fast", version=3, role="fused", language="torch", note="n")
    def fast(x: int) -> int:
        return x + 1

    assert (str(fast.id), fast(1), fast.op, fast.info.file) == ("anything/fast@3", 2, None, __file__)


def test_a_name_that_is_no_identifier_is_refused_at_the_decorator() -> None:
    with pytest.raises(KernelDeclarationError, match=r"'scale/Fast@1' is not a kernel id; expected op/name@version"):
        kernel("scale", "Fast", version=1, role="fused", language="torch")


def test_argument_names_follow_the_schema() -> None:
    schema = "(Tensor(a!) q, Tensor? w=None, int[2] sizes=[1, 2], *, float eps=1e-06, str layout='neox') -> ()"
    assert argument_names(schema) == ("q", "w", "sizes", "eps", "layout")
