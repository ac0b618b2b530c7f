"""What every kernel of every op must do, asked of whatever the collection holds: an op that is added is asked too.

The calls are made from the shipped edge cases, each shrunk to a few tokens.  Arguments that no kernel may take must be refused by
fused kernels and by the split kernels in Triton; the chains in torch operations are torch's to judge.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from fusebench.config import find_project
from fusebench.errors import KernelArgumentError
from fusebench.registry import Collection, Kernel, Op, dispatch
from fusebench.registry.launching import interpreting
from fusebench.registry.signature import positional_names
from fusebench.schema import Case, Language, Role
from fusebench.suites import load_suite

ROOT = Path(__file__).parents[2]
TOKENS = 4


@pytest.fixture(scope="module")
def edges(collection: Collection) -> dict[str, list[Case]]:
    """The shipped edge cases of each op."""
    project = find_project(ROOT)
    names = sorted(path.stem for folder in project.suites for path in folder.glob("edges*.toml"))
    cases = {case.key: case for name in names for case in load_suite(name, project, collection.ops).cases}
    return {op: [case for case in cases.values() if case.op == op] for op in collection.ops}


class Asked(NamedTuple):
    kernel: Kernel
    op: Op
    cases: list[Case]


@pytest.fixture
def asked(collection: Collection, edges: dict[str, list[Case]], each_kernel: str) -> Asked:
    """The kernel that is asked, with its op's edge cases."""
    kernel = collection.kernel(each_kernel)
    assert edges[kernel.id.op], f"no edge case of {kernel.id.op}: suites/edges_….toml"
    return Asked(kernel, collection.op(kernel.id.op), edges[kernel.id.op])


@functools.cache
def drawn(op: Op, params: Any, device: torch.device) -> dict[str, torch.Tensor]:
    """The buffers of a case, which the tests of all kernels and arguments share: to draw them took a third of their time."""
    return dict(op.buffers(params, device=device, generator=torch.Generator(device=device).manual_seed(0)))


def arguments_of(op: Op, params: Any, device: torch.device) -> dict[str, Any]:
    """A call on copies of the buffers, which it may write."""
    return dict(op.arguments(params, copy.deepcopy(drawn(op, params, device))))


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`'s values in every second element of memory."""
    wide = tensor.new_zeros((*tensor.shape, 2))
    wide[..., 0] = tensor
    return wide[..., 0]


DEFECTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of another dtype": lambda tensor: tensor.to(torch.float64 if tensor.is_floating_point() else torch.float32),
    "of too many dimensions": lambda tensor: tensor[None, None, None, None, None],
    "an element too short": lambda tensor: tensor[..., :-1],
    "with gaps": spread,
    "elsewhere": lambda tensor: tensor.to("meta"),
}


def must_refuse(kernel: Kernel) -> bool:
    return kernel.role is Role.FUSED or (kernel.role is Role.SPLIT and kernel.language is Language.TRITON)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the Triton functions launched from now on."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    launched: list[str] = []

    def recording(run: Callable[..., Any]) -> Callable[..., Any]:
        def record(self: Any, *args: Any, **kwargs: Any) -> Any:
            launched.append(self.fn.__name__)
            return run(self, *args, **kwargs)

        return record

    for kind in (InterpretedFunction, JITFunction):
        monkeypatch.setattr(kind, "run", recording(kind.run))
    return launched


def good_call(asked: Asked, argument: str, device: torch.device) -> dict[str, Any]:
    """A call that the kernel takes, in which `argument` is a tensor of more than one element along its last dimension."""
    for case in asked.cases:
        params = asked.op.shrink(asked.op.parse_params(case.params), TOKENS)
        value = asked.op.arguments(params, drawn(asked.op, params, device))[argument]
        if isinstance(value, torch.Tensor) and value.shape[-1] > 1 and asked.kernel.reason_unsupported(params) is None:
            return arguments_of(asked.op, params, device)
    raise AssertionError(f"no edge case of {asked.op.name} has a tensor {argument!r}")


def gaps_allowed(asked: Asked, argument: str, device: torch.device) -> bool:
    """Whether the op's own cases hand over `argument` with gaps between the elements of its last dimension."""
    params = (asked.op.shrink(asked.op.parse_params(case.params), TOKENS) for case in asked.cases)
    tensors = (asked.op.arguments(each, drawn(asked.op, each, device))[argument] for each in params)
    return any(tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) > 1 for tensor in tensors)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_bad_tensor_is_refused_by_name_before_anything_is_launched_or_written(
    asked: Asked, device: torch.device, launches: list[str], defect: str
) -> None:
    if not must_refuse(asked.kernel):
        pytest.skip(f"{asked.kernel.role} in {asked.kernel.language}: torch's operations judge their arguments")
    arguments = positional_names(asked.op.schema)
    refused = []
    for argument in arguments:
        if defect == "with gaps" and gaps_allowed(asked, argument, device):
            continue
        call = good_call(asked, argument, device)
        call[argument] = DEFECTS[defect](call[argument])
        before = {name: value.clone() for name, value in call.items() if isinstance(value, torch.Tensor)}
        # Beside the tensor that the others are compared with, it is they who are elsewhere; which one that is, is the op's choice.
        named = "|".join(arguments) if defect == "elsewhere" else argument
        for _ in range(2):  # the second time from what is remembered
            with pytest.raises(KernelArgumentError, match=rf"argument ({named}): found .*; accepted is "):
                asked.kernel(**call)
        assert not launches, (argument, launches)
        for name, value in before.items():
            assert value.is_meta or torch.equal(call[name], value), (argument, name)
        refused.append(argument)
    assert len(refused) >= len(arguments) - 1


def test_a_launch_would_be_seen(collection: Collection, edges: Any, device: torch.device, launches: list[str], each_op: str) -> None:
    """The recorder of the tests here on calls that do launch."""
    op = collection.op(each_op)
    kernel = collection.kernel(f"{each_op}/split_triton@1")
    kernel(**arguments_of(op, op.shrink(op.parse_params(edges[each_op][0].params), 1), device))
    assert launches


def empty_call(asked: Asked, device: torch.device) -> dict[str, Any]:
    """A call on no tokens: whatever grows with the tokens has none of them."""
    op = asked.op
    for case in asked.cases:
        params = op.parse_params(case.params)
        two, four = (arguments_of(op, op.shrink(params, tokens), device) for tokens in (2, TOKENS))
        grows = {
            name: [dim for dim, (few, many) in enumerate(zip(two[name].shape, four[name].shape, strict=True)) if few != many]
            for name in positional_names(op.schema)
            if isinstance(two[name], torch.Tensor) and isinstance(four[name], torch.Tensor)
        }
        if any(grows.values()) and all(len(dims) <= 1 for dims in grows.values()):
            return two | {name: two[name].narrow(dims[0], 0, 0) for name, dims in grows.items() if dims}
    raise AssertionError(f"no edge case of {op.name} grows with its tokens alone")


def test_no_tokens_are_no_launch_and_empty_outputs(collection: Collection, asked: Asked, device: torch.device, launches: list[str]) -> None:
    kernel, op, _ = asked
    if kernel.role is Role.COMPILED:
        pytest.skip("torch.compile of a chain that is asked here itself")
    if kernel.language is Language.CUDA and device.type != "cuda":
        pytest.skip("CUDA C++ needs a GPU")
    call = empty_call(asked, device)
    due = op.apply(collection.kernel(f"{op.name}/{op.split_reference}"), (), call)
    outputs = op.apply(kernel, (), call)
    pairs = list(zip(*((value if isinstance(value, tuple) else (value,)) for value in (outputs, due)), strict=True))
    assert pairs
    for output, expected in pairs:
        assert output.numel() == 0
        assert (output.shape, output.dtype, output.device) == (expected.shape, expected.dtype, expected.device)
    assert not launches


@pytest.fixture
def declined(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """`declined(op)`: every fused kernel of the op declines every case; their ids come back."""

    def plant(op: str) -> list[str]:
        fused = [kernel for kernel in collection.kernels_of(op) if kernel.role is Role.FUSED]
        for kernel in fused:
            monkeypatch.setattr(kernel, "_supports", lambda params: "planted")
        return [str(kernel.id) for kernel in fused]

    return plant


def test_where_every_fused_kernel_declines_dispatch_runs_the_split_chain_and_says_why(
    collection: Collection, edges: Any, device: torch.device, declined: Any, each_op: str
) -> None:
    op = collection.op(each_op)
    params = op.shrink(op.parse_params(edges[each_op][0].params), TOKENS)
    fused = declined(each_op)
    calls = [arguments_of(op, params, device) for _ in range(2)]
    chosen = dispatch(each_op, collection=collection)
    outputs = chosen(**calls[0])
    due = op.apply(collection.kernel(f"{each_op}/{op.split_reference}"), (), calls[1])
    torch.testing.assert_close(outputs, due, rtol=0, atol=0)
    (fallback,) = chosen.fallbacks
    assert fallback.kernel == f"{each_op}/{op.split_reference}"
    assert {kernel for kernel, _ in fallback.declined} == set(fused)
    if device.type == "cuda":
        assert {reason for _, reason in fallback.declined} == {"planted"}
    assert all(reason in fallback.reason for _, reason in fallback.declined)


def described(op: Op, cases: list[Case]) -> Iterator[tuple[Case, Any]]:
    return ((case, op.parse_params(case.params)) for case in cases)


def test_whatever_a_kernel_declines_it_declines_with_a_reason(asked: Asked) -> None:
    for case, params in described(asked.op, asked.cases):
        reason = asked.kernel.reason_unsupported(params)
        assert reason is None or (reason and "without a reason" not in reason and "raised" not in reason), (case.key, reason)


def test_the_split_reference_takes_every_case(collection: Collection, edges: Any, each_op: str) -> None:
    """What dispatch falls back to, and what errors are measured by, may decline nothing."""
    op = collection.op(each_op)
    split = collection.kernel(f"{each_op}/{op.split_reference}")
    assert edges[each_op]
    assert [case.key for case, params in described(op, edges[each_op]) if split.reason_unsupported(params) is not None] == []


def test_strides_change_no_bit(asked: Asked, device: torch.device) -> None:
    """Views of packed projections, wider rows and chunked modulations against dense copies of the same values."""
    kernel, op, cases = asked
    if kernel.language is Language.TORCH:
        pytest.skip("torch's operations may add up a strided row in another order")
    if kernel.language is Language.CUDA and device.type != "cuda":
        pytest.skip("CUDA C++ needs a GPU")
    tried = 0
    for _, given in described(op, cases):
        params = op.shrink(given, 2)
        call = arguments_of(op, params, device)
        tensors = {name: value for name, value in call.items() if isinstance(value, torch.Tensor)}
        if all(value.is_contiguous() for value in tensors.values()) or kernel.reason_unsupported(params) is not None:
            continue
        dense = call | {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
        torch.testing.assert_close(op.apply(kernel, (), call), op.apply(kernel, (), dense), rtol=0, atol=0)
        tried += 1
        if interpreting() and tried == 3:  # milliseconds for each program
            break
    assert tried, f"no edge case of {op.name} has strided arguments"


def test_calls_write_copies(collection: Collection, edges: Any, device: torch.device, each_op: str) -> None:
    """Views of one buffer stay views of one, and what a call writes reaches no other call."""
    op = collection.op(each_op)
    for case in edges[each_op]:
        params = op.shrink(op.parse_params(case.params), TOKENS)
        seen, call, other = dict(op.arguments(params, drawn(op, params, device))), *(arguments_of(op, params, device) for _ in range(2))
        tensors = [name for name, value in seen.items() if isinstance(value, torch.Tensor)]
        for name in tensors:
            assert call[name].stride() == seen[name].stride()
            shared = [there for there in tensors if seen[there].untyped_storage().data_ptr() == seen[name].untyped_storage().data_ptr()]
            assert [t for t in tensors if call[t].untyped_storage().data_ptr() == call[name].untyped_storage().data_ptr()] == shared
        before = {name: other[name].clone() for name in tensors}
        for name in tensors:
            call[name].zero_()
        assert all(torch.equal(other[name], before[name]) and torch.equal(seen[name], before[name]) for name in tensors)


def test_every_kernel_was_asked(collection: Collection) -> None:
    """The lists that the tests above are made from are not empty."""
    for op in collection.ops:
        asked = [str(kernel.id) for kernel in collection.kernels_of(op) if must_refuse(kernel)]
        assert len(asked) >= 3, asked
