"""Which files a kernel is made of: what it imports counts, what stands beside it does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusebench.registry import load_collection
from fusebench.registry.sources import changed_files, files_it_may_read, root_differences, roots_from, source_digests

TOY = Path(__file__).parents[1] / "toy_project" / "kernels"
KERNEL = """from fusebench import kernel
from . import _tiles
from .._shared.rows import width


@kernel("scale", "mine", version=1, role="fused", language="torch")
def mine(x, *, factor=2.0):
    from .late import nothing
    x.mul_(factor)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    shutil.copytree(TOY, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "_shared").mkdir()
    (folder / "_shared" / "rows.py").write_text("from .deep import width\n")
    (folder / "_shared" / "deep.py").write_text("width = 1\n")
    (folder / "_shared" / "unused.py").write_text("")
    (folder / "_shared" / "rows.cuh").write_text("")
    (folder / "scale" / "_tiles.py").write_text("")
    (folder / "scale" / "late.py").write_text("nothing = None\n")
    (folder / "scale" / "mine.py").write_text(KERNEL)
    return folder


def digests(root: Path) -> dict[str, str]:
    collection = load_collection([root], entry_points=False)
    assert collection.problems == []
    return source_digests(collection.kernels["scale/mine@1"], [root])


def test_a_kernel_is_its_file_its_op_what_these_import_and_what_is_no_python_beside(root: Path) -> None:
    assert set(digests(root)) == {
        "scale/mine.py", "scale/op.py", "scale/_tiles.py", "scale/late.py", "_shared/rows.py", "_shared/deep.py", "_shared/rows.cuh",
    }  # fmt: skip


@pytest.mark.parametrize("file", ["_shared/deep.py", "scale/late.py", "_shared/rows.cuh", "scale/mine.py"])
def test_a_change_in_any_of_them_is_a_change_of_the_kernel(root: Path, file: str) -> None:
    before = digests(root)
    with (root / file).open("a") as stream:
        stream.write("\n")
    assert changed_files(digests(root), before) == (file,)


def test_a_change_in_a_file_that_it_does_not_import_is_none(root: Path) -> None:
    before = digests(root)
    (root / "_shared" / "unused.py").write_text("changed = True\n")
    (root / "scale" / "split.py").write_text((root / "scale" / "split.py").read_text() + "\n")
    assert changed_files(digests(root), before) == ()


def test_two_copies_of_a_folder_are_made_of_the_same_files(root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    assert digests(copy) == digests(root)


def test_a_kernel_lies_in_one_of_the_roots_or_in_none(root: Path, tmp_path: Path) -> None:
    kernel = load_collection([root], entry_points=False).kernels["scale/mine@1"]
    assert roots_from(kernel, (tmp_path / "other", root)) == (root, tmp_path / "other")
    assert roots_from(kernel, (tmp_path / "other",)) == ()


@pytest.mark.parametrize(("file", "counts"), [
    ("_shared/unused.py", True), ("data/table.json", True), ("README.md", True), (".hidden", True), ("scale/split.py", True),
    ("__pycache__/x.pyc", False), ("scale/.op.py.swp", False), (".ipynb_checkpoints/op.py", False), (".DS_Store", False),
])  # fmt: skip
def test_any_file_of_a_folder_is_a_difference_but_for_what_tools_leave_behind(root: Path, tmp_path: Path, file: str, counts: bool) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    assert root_differences([copy], [root]).none
    (copy / file).parent.mkdir(exist_ok=True)
    with (copy / file).open("a") as stream:
        stream.write("more")
    assert root_differences([copy], [root]).files == (((0, file),) if counts else ())
    assert root_differences([root], [copy]).none is not counts, "a file that only base has"


def test_a_folder_of_both_revisions_stands_for_itself_and_one_more_is_a_difference(root: Path, tmp_path: Path) -> None:
    copy, other = shutil.copytree(root, tmp_path / "copy"), shutil.copytree(root, tmp_path / "other")
    (copy / "around").symlink_to(copy, target_is_directory=True)
    assert root_differences([root, other], [copy, other]).none
    assert not root_differences([root, other], [copy]).none
    assert not root_differences([root], [copy, other]).none


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("", {"data/table.json"}),
        ("import_module('torch.nn')", {"data/table.json"}),
        ("import_module('.late', __package__)", {"data/table.json", "scale/split.py"}),
        ("importlib.import_module(name)", {"data/table.json", "scale/split.py"}),
        ("exec(text)", {"data/table.json", "scale/split.py"}),
    ],
)
def test_a_kernel_may_read_any_data_and_any_python_where_it_imports_by_name(root: Path, tmp_path: Path, body: str, read: set[str]) -> None:
    (root / "scale" / "late.py").write_text(f"nothing = None\n\n\ndef loaded(name, text):\n    {body or 'pass'}\n")
    kernel = load_collection([root], entry_points=False).kernels["scale/mine@1"]
    copy = shutil.copytree(root, tmp_path / "copy")
    (root / "data").mkdir()
    (root / "data" / "table.json").write_text("{}")
    (root / "scale" / "dispatch").mkdir()
    (root / "scale" / "dispatch" / "nvidia_h200.triton-3.6.json").write_text("{}")  # read by dispatch, and by no kernel
    (copy / "scale" / "split.py").write_text("")
    assert {name for _, name in files_it_may_read(kernel, [root], root_differences([root], [copy]))} == read
