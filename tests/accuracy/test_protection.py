"""Inputs that no kernel may write, calls that are wrong now and then, and contracts that say nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from fusebench.accuracy.memory import place
from fusebench.accuracy.repetition import Repetition
from fusebench.accuracy.write_protection import protects, write_protected
from fusebench.errors import KernelDeclarationError
from fusebench.registry import kernel
from fusebench.schema import Bitwise, Close

CPU = torch.device("cpu")
needs_protection = pytest.mark.skipif(not protects(), reason="pages are protected on 64-bit Linux")


def scratch_restored(toys: Any) -> Any:
    """Uses the weight as a workspace, and puts its values back before it returns."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        kept = weight.clone()
        weight.mul_(2.0)
        output = toys.fused(x, weight / 2)
        weight.copy_(kept)
        return output

    return function


@needs_protection
def test_an_input_used_as_a_workspace_is_caught_although_it_is_restored(toys: Any) -> None:
    accuracy = toys.check(toys.rms_scale, scratch_restored(toys), seed=1)
    assert not accuracy.passed
    assert "buffer 'weight': written during the call, first at byte 0: inputs are no workspace" in accuracy.reason


def test_an_input_used_as_a_workspace_and_left_changed_is_caught(toys: Any) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        output = toys.fused(x, weight)
        weight.zero_()
        return output  # type: ignore[no-any-return]

    assert "buffer 'weight'" in toys.check(toys.rms_scale, function, seed=1).reason


@needs_protection
def test_an_in_place_kernel_may_write_its_outputs_and_nothing_else(toys: Any) -> None:
    def scratch(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> None:
        weight.add_(0.0)
        toys.packed_fused(q, k, weight)

    assert toys.check(toys.packed, toys.packed_fused, seed=1).passed
    assert "buffer 'weight': written during the call" in toys.check(toys.packed, scratch, seed=1).reason


@needs_protection
def test_memory_is_writable_after_the_block_and_beside_it() -> None:
    placed = place({"a": torch.ones(5000), "b": torch.ones(3)}, device=CPU)
    a, b = placed.buffers["a"], placed.buffers["b"]
    with placed.read_only([b]) as found:
        b.fill_(2.0)
        assert float(a.sum()) == 5000
    assert found == []
    a.fill_(3.0)
    with placed.read_only() as found:
        a[4000:] = 1.0
        b.zero_()
    assert [text.split(",")[0] for text in found] == ["buffer 'a': written during the call", "buffer 'b': written during the call"]
    assert float(a[4000]) == 1.0


def test_nothing_to_protect_is_no_fault() -> None:
    with write_protected({}) as written:
        pass
    assert written == {}


def wrong_once_in_fifty(toys: Any, *, in_place: bool = False) -> Any:
    """Right but for every fiftieth call; 49 calls are hidden in the draws, which find nothing."""
    calls = [0]

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        output = toys.fused(x, weight)
        if calls[0] % 50 == 0:
            output.view(torch.int16)[3, 5] ^= 1
        return output  # type: ignore[no-any-return]

    return function


def test_a_call_that_is_wrong_once_in_fifty_is_found_by_repetition(toys: Any) -> None:
    assert toys.check(toys.rms_scale, wrong_once_in_fifty(toys), seed=1).passed, "the draws alone make too few calls"
    accuracy = toys.check(toys.rms_scale, wrong_once_in_fifty(toys), seed=1, repetition=Repetition(seconds=60))
    assert not accuracy.passed
    assert re.search(r"output 'y': call 4\d on the same inputs differs from a right one: \[3, 5\] is", accuracy.reason)


def test_a_kernel_is_repeated_once_and_not_in_every_case(toys: Any) -> None:
    counted: list[int] = []

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        counted[-1] += 1
        return toys.fused(x, weight)  # type: ignore[no-any-return]

    repetition = Repetition(seconds=60)
    for _ in range(3):
        counted.append(0)
        assert toys.check(toys.rms_scale, function, seed=1, repetition=repetition).passed
    assert counted[0] == 228, "1 - 0.98^228 = 0.99"
    assert counted[1] == counted[2] < 20


def test_repetition_ends_with_its_time(toys: Any) -> None:
    accuracy = toys.check(toys.rms_scale, wrong_once_in_fifty(toys), seed=1, repetition=Repetition(seconds=0.0))
    assert accuracy.passed


def test_an_in_place_kernel_is_repeated_on_its_inputs_not_on_its_outputs(toys: Any) -> None:
    assert toys.check(toys.packed, toys.packed_fused, seed=1, repetition=Repetition(calls=30, seconds=60)).passed


@pytest.mark.parametrize(
    ("factor", "message"),
    [(1e9, r"promises Close\(1e\+09\).*op rms_scale allows at most 2 x"), (2.01, "at most 2 x"), (float("nan"), "positive and finite")],
)
def test_a_factor_above_the_ops_is_refused(toys: Any, factor: float, message: str) -> None:
    with pytest.raises(KernelDeclarationError, match=message):
        toys.check(toys.rms_scale, toys.fused, contract=Close(factor))
    promising = toys.kernel(toys.rms_scale, "promising", toys.fused)
    promising.promises(lambda params: Close(factor))
    with pytest.raises(KernelDeclarationError, match=message):
        promising.contract_for(toys.Params())


def test_an_op_may_allow_more(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(toys.rms_scale), "largest_factor", 4.0)
    assert toys.check(toys.rms_scale, toys.fused, contract=Close(3.0)).passed


def test_no_kernel_may_promise_to_equal_itself(toys: Any) -> None:
    with pytest.raises(KernelDeclarationError, match="rms_scale/mine@1 promises to equal itself bit for bit"):
        kernel("rms_scale", "mine", version=1, role="fused", language="torch", contract=Bitwise("rms_scale/mine@1"))
    promising = toys.kernel(toys.rms_scale, "mine", toys.fused)
    promising.promises(lambda params: Bitwise("rms_scale/mine@1"))
    with pytest.raises(KernelDeclarationError, match="promises to equal itself"):
        promising.contract_for(toys.Params())


def test_two_kernels_cannot_vouch_for_each_other(toys: Any) -> None:
    contract = Bitwise("rms_scale/other@1")
    other = toys.kernel(toys.rms_scale, "other", toys.fused, contract=Bitwise("rms_scale/candidate@1"))
    candidate = toys.kernel(toys.rms_scale, "candidate", toys.fused, contract=contract)
    others = {str(one.id): one for one in (other, candidate)}
    with pytest.raises(KernelDeclarationError, match="equal each other bit for bit: rms_scale/candidate@1, rms_scale/other@1"):
        toys.check(toys.rms_scale, toys.fused, contract=contract, others=others)


def test_equal_to_a_wrong_kernel_is_wrong(toys: Any) -> None:
    def doubled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return toys.fused(x, weight) * 2  # type: ignore[no-any-return]

    target = toys.kernel(toys.rms_scale, "target", doubled)
    accuracy = toys.check(toys.rms_scale, doubled, contract=Bitwise(str(target.id)), others={str(target.id): target}, seed=1)
    assert not accuracy.passed
    assert "exceeds" in accuracy.reason


def test_equal_to_a_kernel_that_declined_is_wrong(toys: Any) -> None:
    target = toys.kernel(toys.rms_scale, "target", toys.fused)
    target.supports(lambda params: "96 rows are too many")
    accuracy = toys.check(toys.rms_scale, toys.fused, contract=Bitwise(str(target.id)), others={str(target.id): target}, seed=1)
    assert not accuracy.passed
    assert "rms_scale/target@1 bit for bit, which declines this case: 96 rows are too many" in accuracy.reason
    assert accuracy.draws == 0
