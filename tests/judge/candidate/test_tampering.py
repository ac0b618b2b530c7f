"""What a kernel replaces in its own process is named, and an honest process has nothing to be named."""

from __future__ import annotations

import builtins
import gc
import os
import sys
import time
from collections.abc import Callable

import pytest
import torch

from fusebench.judge.candidate import calling
from fusebench.judge.candidate.tampering import Tampering


def found_after(tamper: Callable[[], object]) -> str:
    """What is found once `tamper` has run, in a fork: an audit hook stays for ever."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        tampering = Tampering()
        tamper()
        os.write(writing, tampering.found().encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as stream:
        return stream.read()


def a_hook_that_is_gone() -> None:
    sys.setprofile(lambda *event: None)
    sys.setprofile(None)


def other_code() -> None:
    calling.Caller._time_on_host.__code__ = (lambda self, placed, like: ([], 0.0)).__code__  # type: ignore[method-assign]


def a_shadowed_method() -> None:
    torch.Tensor.view = lambda self, *shape: self  # type: ignore[assignment,method-assign]


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (lambda: setattr(time, "perf_counter_ns", lambda: 0), "time.perf_counter_ns"),
        (lambda: setattr(torch, "allclose", lambda *tensors: True), "torch.allclose"),
        (lambda: setattr(torch.Tensor, "double", torch.Tensor.float), "torch.Tensor.double"),
        (a_shadowed_method, "torch.Tensor.view"),
        (other_code, "Caller._time_on_host"),
        (lambda: setattr(builtins, "isinstance", lambda *pair: True), "builtins.isinstance"),
        (a_hook_that_is_gone, "sys.setprofile"),
        (lambda: sys.settrace(lambda *event: None), "trace"),
        (lambda: gc.callbacks.append(lambda *phase: None), "gc.callbacks"),
    ],
)
def test_a_replacement_is_named(tamper: Callable[[], object], named: str) -> None:
    assert named in found_after(tamper)


def test_an_honest_process_is_clean() -> None:
    assert found_after(lambda: torch.nn.functional.layer_norm(torch.ones(2, 8), (8,))) == ""


def test_what_torch_replaces_of_its_own_is_no_tampering() -> None:
    """Torch's compiler, once imported, wraps `torch.manual_seed`: a kernel that compiles is honest."""

    def compiler() -> None:
        torch.manual_seed = torch._disable_dynamo(torch.manual_seed)  # what its import does, which takes seconds

    assert found_after(compiler) == ""
