"""The digest of a kernel's code: what compiles to something counts, what does not is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fusebench.registry.dispatching.code_digest import DIGITS, code_digest

FILES = {
    "scale/op.py": '"""The op."""\nSIZES = (1, 2)\nUNUSED = 3\n',
    "scale/fused.py": '''"""A kernel."""
from typing import TYPE_CHECKING
import triton
from fusebench import kernel
from .op import SIZES, UNUSED
from .._shared.rows import launch, other
from .._shared import tiles
if TYPE_CHECKING:
    from .op import Arguments
WARPS = 4
LOST = 5

@kernel("scale", "mine", version=1, role="fused", language="torch", note="old")
def mine(x, *, factor=2.0):
    """Doc."""
    from .late import later
    launch(x, SIZES, WARPS, later, tiles.WIDTH)  # a comment

@kernel("scale", "mine", version=2, role="fused", language="torch")
def mine_v2(x, *, factor=2.0):
    other(x)

@mine.supports
def _(params):
    return True
''',
    "scale/late.py": "later = 1\n",
    "_shared/tiles.py": "WIDTH = 8\n",
    "_shared/rows.py": """from .deep import WIDE as W
SOURCE = "rows.cu"
def launch(*a):
    return W, SOURCE, "TALL"
def other(x):
    pass
assert True
""",
    "_shared/deep.py": "WIDE = 1\nTHIN = 2\n",
    "_shared/rows.cu": '#include "row.cuh"\nint a; // one\n',
    "_shared/row.cuh": "/* two */ int b;\n",
    "_shared/unused.cu": "int c;\n",
}  # fmt: skip


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., str]:
    """`edited(file, old, new)`: the digest of `mine@1` after one replacement."""

    def digest(file: str = "", old: str = "", new: str = "") -> str:
        for name, text in FILES.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            assert name != file or old in text
            path.write_text(text.replace(old, new) if name == file else text)
        return code_digest("scale/mine@1", [tmp_path])

    return digest


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("scale/fused.py", "# a comment", "# another"),
        ("scale/fused.py", "Doc.", "Other words."),
        ("scale/fused.py", 'note="old"', 'note="new"'),
        ("scale/fused.py", "LOST = 5", "LOST = 6"),
        ("scale/fused.py", "other(x)", "other(2 * x)"),
        ("scale/fused.py", "return True", "return False"),
        ("scale/op.py", "UNUSED = 3", "UNUSED = 4"),
        ("_shared/rows.py", "    pass", "    return x"),
        ("_shared/deep.py", "THIN = 2", "THIN = 3"),
        ("_shared/rows.cu", "// one", "// two\n\n"),
        ("_shared/row.cuh", "/* two */", ""),
        ("_shared/unused.cu", "int c;", "int d;"),
        ("_shared/row.cuh", "int b;", "#ifndef LOST\nint b;\n#endif"),
        ("_shared/row.cuh", "int b;", "int b;\n#ifdef LOST\n#if A\nint d;\n#endif\n#endif"),
        ("_shared/row.cuh", "int b;", "# ifdef LOST\nint d;\n# else // LOST\nint b;\n# endif"),
    ],
)
def test_what_compiles_to_nothing_changes_no_digest(edited: Callable[..., str], file: str, old: str, new: str) -> None:
    assert edited(file, old, new) == edited() != ""


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("scale/fused.py", "factor=2.0):\n    \"\"\"Doc", "factor=3.0):\n    \"\"\"Doc"),
        ("scale/fused.py", "WARPS = 4", "WARPS = 8"),
        ("scale/op.py", "SIZES = (1, 2)", "SIZES = (1, 4)"),
        ("scale/late.py", "later = 1", "later = 2"),
        ("_shared/tiles.py", "WIDTH = 8", "WIDTH = 16"),
        ("_shared/rows.py", "return W", "return 2 * W"),
        ("_shared/rows.py", "assert True", "assert 1"),
        ("_shared/deep.py", "WIDE = 1", "WIDE = 2"),
        ("_shared/rows.cu", "int a;", "long a;"),
        ("_shared/row.cuh", "int b;", "long b;"),
        ("_shared/row.cuh", "int b;", "#ifdef LOST\nint b;\n#endif"),
        ("_shared/row.cuh", "int b;", "#ifndef __CUDACC_RTC__\nint b;\n#endif"),
        ("_shared/row.cuh", "int b;", "#define LOST\n#ifndef LOST\nint b;\n#endif"),
        ("_shared/row.cuh", "int b;", "#ifndef TALL\nint b;\n#endif"),
        ("_shared/row.cuh", "int b;", "#if LOST\nint b;\n#endif"),
        ("_shared/row.cuh", "int b;", "#ifndef LOST\nint b;\n#elif A\n#endif"),
        ("_shared/row.cuh", "int b;", "#ifndef LOST\nint b;"),
    ],
)  # fmt: skip
def test_a_change_of_what_the_kernel_uses_changes_its_digest(edited: Callable[..., str], file: str, old: str, new: str) -> None:
    assert edited(file, old, new) != edited()


def test_a_kernel_that_no_file_declares_has_none_and_a_choice_has_its_kernels(edited: Callable[..., str], tmp_path: Path) -> None:
    mine = edited()
    assert len(mine) == DIGITS
    assert code_digest("scale/mine__wide@1", [tmp_path]) == mine
    assert code_digest("scale/mine@2", [tmp_path]) != mine
    assert code_digest("scale/mine@3", [tmp_path]) == ""
    assert code_digest("scale/mine@1", [tmp_path / "none", tmp_path]) == mine
