"""Which files a kernel is made of: what it imports counts, what stands beside it does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusebench.registry import load_collection
from fusebench.registry.sources import changed_files, roots_from, source_digests

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
