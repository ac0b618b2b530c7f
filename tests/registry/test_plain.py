"""Plain functions: `@benchmark` in a file makes one op and its kernels, which the accuracy gate and the timers take as any other."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.accuracy.gate import check_kernel
from fusebench.registry import Collection, Op, load_collection
from fusebench.schema import Role

Load = Callable[[str], Collection]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(source: str) -> Collection:
        file = tmp_path / "My-functions.py"
        file.write_text("import torch\nfrom fusebench import benchmark\n" + textwrap.dedent(source))
        return load_collection([file], entry_points=False, operators=False)

    return load


def op_of(collection: Collection) -> Op:
    assert not collection.problems, collection.problems
    (op,) = collection.ops.values()
    return op


def passes(collection: Collection, name: str, **sizes: Any) -> bool:
    op = op_of(collection)
    split = collection.kernel(f"{op.name}/{op.split_reference}")
    params, kernel = op.parse_params(sizes), collection.kernel(f"{op.name}/{name}@1")
    return check_kernel(kernel, op, params, split=split, device=torch.device("cpu"), seed=1).passed


ADDITION = """
@benchmark(inputs=lambda tokens=8: (torch.randn(tokens, 64), torch.randn(64)))
def eager(x, bias):
    return x + bias

@benchmark
def swapped(x, bias):
    return bias + x

@benchmark
def wrong(x, bias):
    return x * bias
"""


def test_the_functions_of_a_file_are_one_op_whose_first_function_is_the_split_chain(load: Load) -> None:
    collection = load(ADDITION)
    op = op_of(collection)
    assert {str(one.id): one.role for one in collection.kernels.values()} == {
        "my_functions/eager@1": Role.SPLIT,
        "my_functions/swapped@1": Role.FUSED,
        "my_functions/wrong@1": Role.FUSED,
    }
    assert op.baselines == ("eager@1",)
    assert op.shape(op.Params(tokens=16)) == "tokens=16"
    assert op.minimum_bytes(op.Params(tokens=16)) == 4 * (16 * 64 + 64 + 16 * 64), "inputs and output, once each"
    assert (passes(collection, "eager"), passes(collection, "swapped"), passes(collection, "wrong")) == (True, True, False)


def test_inputs_follow_the_generator_and_the_magnitude(load: Load) -> None:
    op = op_of(load(ADDITION))
    made = [
        op.buffers(op.Params(), device=torch.device("cpu"), generator=torch.Generator().manual_seed(seed), magnitude=magnitude)
        for seed, magnitude in ((1, 1.0), (1, 1000.0), (2, 1.0))
    ]
    torch.testing.assert_close(made[1]["x"], made[0]["x"] * 1000)
    assert not torch.equal(made[0]["x"], made[2]["x"])


def test_arguments_keep_their_strides_and_values_that_are_no_tensors(load: Load) -> None:
    collection = load("""
    @benchmark(inputs=lambda: {"x": torch.randn(6, 4).t(), "scale": 3})
    def eager(x, scale):
        assert x.stride() == (1, 4) and scale == 3
        return x * scale
    """)
    assert passes(collection, "eager")


def test_functions_may_overwrite_their_arguments(load: Load) -> None:
    collection = load("""
    @benchmark(inputs=lambda: torch.randn(8, 32), overwrites=["x"])
    def eager(x):
        x.mul_(2)

    @benchmark
    def returns_new(x):
        return x + x

    @benchmark
    def wrong(x):
        x.mul_(3)
    """)
    assert op_of(collection).in_place
    assert [passes(collection, name) for name in ("eager", "returns_new", "wrong")] == [True, True, False]


def test_a_reference_and_several_outputs(load: Load) -> None:
    collection = load("""
    def exact(x):
        assert x.dtype is torch.float64
        return x.amin(-1), x.amax(-1)

    @benchmark(inputs=lambda: torch.randn(8, 32), reference=exact, outputs=["least", "most"])
    def eager(x):
        assert x.dtype is torch.float32
        return x.amin(-1), x.amax(-1)

    @benchmark
    def swapped(x):
        return x.amax(-1), x.amin(-1)
    """)
    assert [passes(collection, name) for name in ("eager", "swapped")] == [True, False]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", "no function is marked; put `@fusebench.benchmark` before"),
        ("@benchmark\ndef f(x):\n    return x\n", "the first marked function, f, lacks inputs"),
        (ADDITION + "@benchmark(inputs=lambda: 1)\ndef more(x):\n    return x\n", "eager and more both give inputs"),
        ("@benchmark(inputs=lambda tokens: 1)\ndef f(x):\n    return x\n", "parameter 'tokens' needs a default"),
        ("@benchmark(inputs=lambda: 1, overwrites=['y'])\ndef f(x):\n    return x\n", "overwrites names 'y'; its parameters are x"),
        ("raise RuntimeError('broken')\n", "line 3: RuntimeError: broken"),
    ],
)
def test_a_file_that_cannot_work_is_one_problem(load: Load, source: str, expected: str) -> None:
    (problem,) = load(source).problems
    assert expected in problem.message


def test_what_goes_wrong_later_says_what_to_give(load: Load) -> None:
    few = "@benchmark(inputs=lambda: (torch.ones(1),))\ndef f(x, y):\n    return x\n"
    with pytest.raises(Exception, match="inputs gives 1 arguments, but f takes 2: x, y"):
        passes(load(few), "f")
    several = "@benchmark(inputs=lambda: torch.ones(4, 4))\ndef f(x):\n    return x, x\n"
    with pytest.raises(Exception, match="returns 2 tensors, expected 1: output"):
        passes(load(several), "f")
    single = "@benchmark(inputs=lambda: torch.ones(4, 4))\ndef f(x):\n    assert x.dtype is torch.float32\n    return x\n"
    with pytest.raises(Exception, match=r"f does not take float64 tensors .*give a function that does"):
        passes(load(single), "f")
    hidden = "@benchmark(inputs=lambda: torch.ones(4, 4))\ndef f(x):\n    assert x.device.type != 'meta'\n    return x\n"
    op = op_of(load(hidden))
    with pytest.raises(Exception, match="the size of the outputs of f cannot be told"):
        op.minimum_bytes(op.Params())
