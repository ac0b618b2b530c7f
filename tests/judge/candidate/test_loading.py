"""A candidate's file: what is refused, with the next step, and what its name cannot shadow."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusebench.judge.candidate.loading import RefusedError, load_candidate, load_op
from fusebench.schema.evaluation import EvaluationStatus

ROOTS = (Path(__file__).parents[2] / "toy_project" / "kernels",)
ONE = '@kernel("{op}", "{name}", version=1, role="fused", language="torch")\ndef {name}(x, *, factor=2.0): ...\n'
IMPORT = "from fusebench import kernel\n"
FIRST, SECOND, OTHER = ONE.format(op="scale", name="a"), ONE.format(op="scale", name="b"), ONE.format(op="other", name="a")


def load(source: str, name: str = "mine.py") -> str:
    return str(load_candidate(load_op(ROOTS, "scale"), Path("/nowhere", name), source.encode()).kernel.id)


def test_a_file_is_a_module_of_the_ops_folder() -> None:
    assert load(IMPORT + "from .op import Params\n" + FIRST) == "scale/a@1"


@pytest.mark.parametrize("name", ["op.py", "split.py", "two words-1.py"])
def test_no_name_of_a_file_shadows_a_module_of_the_project(name: str) -> None:
    assert load(IMPORT + "from .op import Params\n" + FIRST, name) == "scale/a@1"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", 'mine.py declares no kernel, expected exactly one; decorate one function with @kernel("scale", ...)'),
        (IMPORT + FIRST + SECOND, "mine.py declares 2 kernels (scale/a@1, scale/b@1), expected exactly one; leave one of them in the file"),
        (IMPORT + FIRST + FIRST, "mine.py declares 2 kernels (scale/a@1, scale/a@1), expected exactly one"),
        (IMPORT + OTHER, "mine.py declares other/a@1, expected a kernel of 'scale'; pass --op other, or correct the declaration"),
        (
            IMPORT + FIRST.replace("x, *, factor=2.0", "call"),
            "kernel scale/a@1 takes (call), expected (call: Arguments), or the arguments spelled out, (x, *, factor): "
            "got an unexpected keyword argument 'factor'",
        ),
        ("def f(:", "mine.py: line 1: SyntaxError"),
        ("x = '\0'", "mine.py: SyntaxError: source code string cannot contain null bytes"),
        ("raise SystemExit(0)", "mine.py calls sys.exit(0) while it is imported"),
        ("import nowhere_to_be_found", "mine.py cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_file_without_exactly_one_kernel_of_the_op_is_invalid(source: str, said: str) -> None:
    with pytest.raises(RefusedError) as refused:
        load(source)
    assert refused.value.status is EvaluationStatus.INVALID
    assert said in str(refused.value)
