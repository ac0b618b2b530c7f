"""Roots merge by op: kernels added from another folder, relative imports across folders, and clashes refused with both files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fusebench.registry import Collection, load_collection
from fusebench.registry.collection import adds_to_ops
from fusebench.registry.sources import roots_from, source_digests
from fusebench.schema import KernelId

MakeRoot = Callable[..., Path]

MINE = """
from fusebench import kernel
from .op import Params
from .._shared.amounts import EXTRA
from .split import split

@kernel("scale", "mine", version=1, role="compiled", language="torch")
def mine(x, *, factor=2.0):
    return (split(x, factor=factor)[0] + EXTRA,)

@mine.supports
def _(params):
    return isinstance(params, Params) or "other Params"
"""


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / name.replace("__", "/", 1) if not name.startswith("_shared") else root / "_shared" / name.removeprefix("_shared_")
        file = file.with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.lstrip("\n"))
    return root


@pytest.fixture
def base(make_root: MakeRoot) -> Path:
    return write(make_root("base"), _shared_amounts="EXTRA = 1\n")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write(tmp_path / "own", scale__mine=MINE)


def load(*roots: Path, **options: object) -> Collection:
    return load_collection(roots, entry_points=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("own_first", [True, False])
def test_a_folder_without_an_op_adds_kernels_to_another_roots_op(own: Path, base: Path, own_first: bool) -> None:
    collection = load(own, base) if own_first else load(base, own)
    assert not collection.problems
    assert list(collection.kernels) == ["scale/split@1", "scale/mine@1"], "the defining root's kernels come first"
    mine = collection.kernel("scale/mine@1")
    assert mine(torch.ones(2))[0].tolist() == [3.0, 3.0]
    assert mine.op is collection.ops["scale"]
    assert mine.reason_unsupported(collection.ops["scale"].Params(size=4)) is None, "`from .op import Params` is the op's own class"


def test_nothing_is_executed_twice_and_nothing_is_declared_twice(own: Path, base: Path) -> None:
    marks = own.parent / "marks"
    write(base, _shared_amounts=f"open({str(marks)!r}, 'a').write('x')\nEXTRA = 1\n")
    assert not load(own, base).problems
    assert marks.read_text() == "x"


def test_two_sets_of_roots_stay_apart(own: Path, base: Path, make_root: MakeRoot) -> None:
    other = write(make_root("other"), _shared_amounts="EXTRA = 100\n")
    one, two = load(own, base), load(own, other)
    x = torch.zeros(1)
    assert [each.kernel("scale/mine@1")(x)[0].item() for each in (one, two, one)] == [1.0, 100.0, 1.0]


def test_a_files_own_root_comes_first(own: Path, base: Path) -> None:
    write(own, _shared_amounts="EXTRA = 5\n")
    assert load(own, base).kernel("scale/mine@1")(torch.zeros(1))[0].item() == 5.0


def test_a_process_that_calls_one_kernel_finds_it_in_the_adding_root(own: Path, base: Path) -> None:
    write(base, scale__slow_import="raise AssertionError('not needed')\n")
    collection = load(own, base, kernel=KernelId("scale", "mine", 1), only={"scale"})
    assert "scale/mine@1" in collection.kernels
    assert not collection.problems


def test_the_same_kernel_in_two_roots_is_refused_with_both_files(own: Path, base: Path) -> None:
    write(base, scale__mine=MINE)
    loaded = load(own, base)
    files = [base / "scale" / "mine.py", own / "scale" / "mine.py"]
    assert [problem.file for problem in loaded.problems] == files
    for problem, other in zip(loaded.problems, reversed(files), strict=True):
        assert f"duplicate kernel id scale/mine@1: also declared in {other}, and none of them is used" in problem.message
    assert "scale/mine@1" not in loaded.kernels


def test_a_module_that_several_other_roots_hold_is_refused_with_both_folders(own: Path, base: Path, tmp_path: Path) -> None:
    third = write(tmp_path / "third", _shared_amounts="EXTRA = 2\n")
    (problem,) = load(own, base, third).problems
    assert problem.file == own / "scale" / "mine.py"
    assert f"'_shared.amounts' is in several other folders of kernels: {base} and {third}" in problem.message


def test_an_op_that_no_root_defines_is_unknown_and_the_nearest_is_offered(base: Path, tmp_path: Path) -> None:
    (problem,) = load(write(tmp_path / "own", scales__mine=MINE), base).problems
    assert "unknown op 'scales'" in problem.message
    assert "rename the folder to 'scale', or add op.py" in problem.message


def test_kernels_of_an_op_that_failed_to_load_say_where(own: Path, base: Path) -> None:
    write(base, scale__op="raise RuntimeError('broken')\n")
    first, second = load(own, base).problems
    assert first.file == base / "scale" / "op.py"
    assert f"see {base / 'scale' / 'op.py'}" in second.message


def test_sources_of_the_op_count_for_an_added_kernel(own: Path, base: Path) -> None:
    kernel = load(own, base).kernel("scale/mine@1")

    def digests() -> dict[str, str]:
        return source_digests(kernel, roots_from(kernel, (base, own)))

    before = digests()
    assert set(before) == {"scale/mine.py"} | {
        f"{path} (of another folder of kernels)" for path in ("scale/op.py", "scale/split.py", "_shared/amounts.py")
    }
    write(base, _shared_amounts="EXTRA = 2\n")
    after = digests()
    assert [path for path in after if after[path] != before[path]] == ["_shared/amounts.py (of another folder of kernels)"]


def test_a_root_is_known_to_add_to_ops_of_another(own: Path, base: Path) -> None:
    assert (adds_to_ops(own), adds_to_ops(base)) == (True, False)
