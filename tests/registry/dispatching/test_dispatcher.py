"""Dispatch: the best supported kernel, the split chain otherwise, and a reason for every fallback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fusebench.errors import KernelArgumentError, UnknownNameError, UsageError
from fusebench.registry import Collection, dispatch, load_collection
from fusebench.registry.kernel import reason_not_runnable

MakeRoot = Callable[..., Path]

FAST = """
from fusebench import kernel

@kernel("scale", "fast", version=1, role="compiled", language="torch")
def old(x, *, factor=2.0):
    x.mul_(factor).add_(1000)

@kernel("scale", "fast", version=2, role="compiled", language="torch", note="in place")
def fast(x, *, factor=2.0):
    x.mul_(factor)

@fast.supports
def _(params):
    return params.size % 4 == 0 or f"size {params.size} is no multiple of 4"

@old.supports
def _(params):
    return params.size > 100 or f"size {params.size} is at most 100"

@kernel("scale", "another", version=9, role="compiled", language="torch")
def another(x, *, factor=2.0):
    return (x * factor + 5,)

@another.supports
def _(params):
    return params.size == 7 or "size is not 7"

@kernel("scale", "device_only", version=1, role="peer", language="torch", requires=("no_such_parent.child",))
def device_only(x, *, factor=2.0):
    raise AssertionError("must not be chosen")
"""


@pytest.fixture
def collection(make_root: MakeRoot) -> Collection:
    loaded = load_collection([make_root(files={"fast.py": FAST})], entry_points=False)
    assert not loaded.problems
    return loaded


def test_the_newest_supported_version_of_the_preferred_name_runs_in_place(collection: Collection) -> None:
    scale = dispatch("scale", prefer="compiled", collection=collection)
    x = torch.ones(8)
    (returned,) = scale(x, factor=3.0)
    assert returned is x
    assert x.tolist() == [3.0] * 8
    assert scale.explain(x).kernel == "scale/fast@2"
    assert scale.explain(x).reason == ""
    assert scale.fallbacks == []


def test_versions_and_names_are_tried_in_the_ops_order(collection: Collection) -> None:
    scale = dispatch("scale", prefer="compiled", collection=collection)
    assert scale.explain(torch.ones(101)).kernel == "scale/fast@1"
    seven = scale.explain(torch.ones(7))
    assert (seven.kernel, seven.fallback) == ("scale/another@9", False)
    assert [kernel for kernel, _ in seven.declined] == ["scale/fast@2", "scale/fast@1"]


def test_an_unsupported_shape_falls_back_to_the_split_chain_with_every_reason(collection: Collection) -> None:
    scale = dispatch("scale", prefer="compiled", collection=collection)
    x = torch.ones(6)
    (returned,) = scale(x)
    assert returned is x, "the split chain returns new tensors, which are copied into the argument"
    assert x.tolist() == [2.0] * 6
    (fallback,) = scale.fallbacks
    assert fallback.kernel == "scale/split@1"
    assert fallback.declined == (
        ("scale/fast@2", "size 6 is no multiple of 4"),
        ("scale/fast@1", "size 6 is at most 100"),
        ("scale/another@9", "size is not 7"),
    )
    assert "scale/fast@2: size 6 is no multiple of 4" in fallback.reason


def test_each_distinct_fallback_is_listed_once(collection: Collection) -> None:
    scale = dispatch("scale", prefer="compiled", collection=collection)
    for size in (6, 6, 9, 8):
        scale(torch.ones(size))
    assert [selection.kernel for selection in scale.fallbacks] == ["scale/split@1"] * 2


def test_a_role_that_nobody_fills_falls_back_and_says_so(collection: Collection) -> None:
    scale = dispatch("scale", prefer="fused", collection=collection)
    assert scale.explain(torch.ones(4)).reason == "no kernel of the preferred role is declared"


def test_a_kernel_whose_library_is_absent_is_passed_over_with_the_reason(collection: Collection) -> None:
    scale = dispatch("scale", prefer="peer", collection=collection)
    assert "not installed: no_such_parent.child" in scale.explain(torch.ones(4)).reason


def test_a_predicate_that_raises_or_answers_nothing_is_a_recorded_reason(make_root: MakeRoot) -> None:
    faulty = FAST.replace('params.size % 4 == 0 or f"size {params.size} is no multiple of 4"', "params.no_such_key")
    faulty = faulty.replace('params.size > 100 or f"size {params.size} is at most 100"', "None")
    scale = dispatch("scale", prefer="compiled", collection=load_collection([make_root(files={"fast.py": faulty})], entry_points=False))
    reasons = dict(scale.explain(torch.ones(8)).declined)
    assert "raised AttributeError" in reasons["scale/fast@2"]
    assert "declines this case without a reason" in reasons["scale/fast@1"]


def test_arguments_that_no_kernel_takes_are_refused(collection: Collection) -> None:
    with pytest.raises(KernelArgumentError, match="argument x: found 2 dimensions"):
        dispatch("scale", collection=collection)(torch.ones(2, 2))


def test_unknown_names_are_refused_with_what_is_known(collection: Collection) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown op 'scales'; did you mean 'scale'\?"):
        dispatch("scales", collection=collection)
    with pytest.raises(UsageError, match="prefer='fast' is not a role; expected one of split, fused, compiled, peer"):
        dispatch("scale", prefer="fast", collection=collection)


def test_apply_copies_what_a_kernel_returns_into_the_overwritten_arguments(collection: Collection) -> None:
    op = collection.op("scale")

    def overwrites(x: torch.Tensor, factor: float) -> None:
        x.mul_(factor)

    for returned in (lambda x, factor: (x * factor,), lambda x, factor: x * factor, overwrites):
        x = torch.ones(3)  # a tensor that is not in a tuple must not be taken apart
        (output,) = op.apply(returned, (), {"x": x, "factor": 4.0})
        assert output is x
        assert x.tolist() == [4.0] * 3
    with pytest.raises(ValueError):
        op.apply(lambda x, factor: (x, x), (torch.ones(2),), {"factor": 1.0})


@pytest.mark.parametrize(
    ("language", "device", "interpreter", "expected"),
    [
        ("torch", "cpu", False, None),
        ("triton", "cuda", False, None),
        ("cuda", "cuda", False, None),
        ("triton", "cpu", False, "needs a GPU"),
        ("triton", "cpu", True, None),
        ("cuda", "cpu", True, "needs a GPU"),
    ],
)
def test_where_a_language_runs(make_root: MakeRoot, language: str, device: str, interpreter: bool, expected: str | None) -> None:
    source = FAST.replace('language="torch", note="in place"', f'language="{language}"')
    collection = load_collection([make_root(files={"fast.py": source})], entry_points=False)
    reason = reason_not_runnable(collection.kernel("scale/fast@2"), device, interpreter=interpreter)
    assert (reason is None) if expected is None else (reason is not None and expected in reason)
