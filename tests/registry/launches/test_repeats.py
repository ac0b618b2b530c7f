"""A function written for a layout repeats the recorded call, and any other call misses. The GPU's calls are stand-ins."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusebench.registry.launches import driver_launch, repeats
from fusebench.registry.launches.driver_launch import Geometry, Packed, UnknownLaunchError
from fusebench.registry.launches.replay import Replay
from helpers import replay_bench
from helpers.replay_bench import STREAM, Doubling, Driver, repeated, warm, way

doubling = replay_bench.doubling


def test_a_repeated_call_launches_the_same_on_new_addresses_and_a_new_output(doubling: Doubling) -> None:
    kernel = warm(doubling, torch.zeros(8, 4), factor=3.0)
    x = torch.zeros(8, 4)
    first, second = kernel.call((x,), {"factor": 3.0}), kernel.call((x,), {"factor": 3.0})
    assert doubling.calls == 1
    assert doubling.launched[-2:] == [(x.data_ptr(), y.data_ptr(), 32, 3.0, STREAM) for y in (first, second)]
    assert first.data_ptr() != second.data_ptr()
    assert (first.shape, first.stride(), first.dtype) == (x.shape, x.stride(), x.dtype)


class _Mode(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += "empty" in str(function)
        return function(*args, **(kwargs or {}))


OTHER_CALLS: dict[str, Callable[[torch.Tensor], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "shape": lambda x: ((torch.zeros(8, 5),), {"factor": 3.0}),
    "strides": lambda x: ((torch.zeros(4, 8).t(),), {"factor": 3.0}),
    "dtype": lambda x: ((x.half(),), {"factor": 3.0}),
    "device": lambda x: ((x.to("meta"),), {"factor": 3.0}),
    "type": lambda x: ((torch.nn.Parameter(x),), {"factor": 3.0}),
    "negated view": lambda x: ((torch._neg_view(x),), {"factor": 3.0}),
    "another option": lambda x: ((x,), {"factor": 4.0}),
    "an option's type": lambda x: ((x,), {"factor": 3}),
    "an option as a tensor": lambda x: ((x,), {"factor": torch.ones(5)}),
    "no option": lambda x: ((x,), {}),
    "another keyword": lambda x: ((x,), {"faktor": 3.0}),
    "one keyword more": lambda x: ((x,), {"factor": 3.0, "other": None}),
    "one argument more": lambda x: ((x, None), {"factor": 3.0}),
    "no argument": lambda x: ((), {"x": x, "factor": 3.0}),
    "no tensor": lambda x: ((None,), {"factor": 3.0}),
}


@pytest.mark.parametrize("change", OTHER_CALLS)
def test_another_call_is_never_repeated(change: str, doubling: Doubling) -> None:
    x = torch.zeros(8, 4)
    kernel = warm(doubling, x, factor=3.0)
    args, kwargs = OTHER_CALLS[change](x)
    assert not repeated(kernel, *args, **kwargs)


def test_an_absent_tensor_is_not_a_given_one(doubling: Doubling) -> None:
    x, other = torch.zeros(8, 4), torch.zeros(8, 4)
    without, given = warm(doubling, x, None), warm(Doubling(), x, other)
    assert not repeated(without, x, other)
    assert not repeated(given, x, None)
    assert repeated(given, other, x)


def test_the_state_of_autograd_and_of_modes_is_part_of_the_call(doubling: Doubling) -> None:
    x = torch.zeros(8, 4)
    kernel = warm(doubling, x)
    with torch.inference_mode():
        assert not repeated(kernel, x)
    with _Mode() as mode:
        for _ in range(3):
            kernel.call((x,), {})
        assert not repeated(kernel, x)
    assert mode.seen == 3, "a mode sees every allocation"
    torch.func.vmap(lambda one: (kernel.call((x,), {}), one)[1])(torch.zeros(2))
    with torch.inference_mode():
        for _ in range(2):
            kernel.call((x,), {})
        assert repeated(kernel, x)
        assert kernel.call((x,), {}).is_inference()
    assert not kernel.call((x,), {}).is_inference()
    assert doubling.calls == 1


def test_an_address_off_the_alignment_runs_the_kernels_own_code(doubling: Doubling) -> None:
    kernel = warm(doubling, torch.zeros(8, 4))
    off = torch.zeros(33)[1:].view(8, 4)
    assert way(kernel, off) == "plain"
    kernel.call((off,), {})
    assert doubling.calls == 2


def test_another_current_device_takes_the_plain_path(doubling: Doubling) -> None:
    current = [None]
    repeats.device_calls()["current_device"] = lambda: current[0]  # type: ignore[index]
    kernel = warm(doubling, torch.zeros(8, 4))
    current[0] = 1  # type: ignore[call-overload]
    assert way(kernel, torch.zeros(8, 4)) == "plain"


def test_a_profilers_hook_takes_the_plain_path(doubling: Doubling) -> None:
    chain, leave = SimpleNamespace(calls=[]), SimpleNamespace(calls=[])
    doubling.hooks = runtime = SimpleNamespace(launch_enter_hook=chain, launch_exit_hook=leave)
    x = torch.zeros(8, 4)
    kernel = warm(doubling, x)
    leave.calls.append(print)
    assert way(kernel, x) == "plain"
    leave.calls.clear()
    assert repeated(kernel, x)
    runtime.launch_enter_hook = print
    assert way(kernel, x) == "plain"


def test_a_kernel_called_in_ever_new_ways_keeps_few_functions(doubling: Doubling) -> None:
    kernel = Replay(doubling)
    x = torch.zeros(8, 4)
    for factor in range(3 * repeats.MOST_PER_SHAPE):
        for _ in range(3):
            kernel.call((x,), {"factor": factor})
    assert sum(map(len, kernel.repeats._by_shape.values())) == repeats.MOST_PER_SHAPE
    assert [values[3] for values in doubling.launched[-2:]] == [factor, factor]


def test_a_kernels_own_error_is_shown_alone(doubling: Doubling) -> None:
    def refusing(x: torch.Tensor) -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused") as error:
        Replay(refusing).call((torch.zeros(2),), {})
    assert error.value.__context__ is None


def test_no_tensor_is_kept_alive(doubling: Doubling) -> None:
    x = torch.zeros(8, 4)
    kernel = warm(doubling, x)
    seen = weakref.ref(x)
    del x
    gc.collect()
    assert seen() is None
    assert repeated(kernel, torch.zeros(8, 4))


def test_a_torch_without_such_guards_repeats_by_the_plain_path_and_says_so(doubling: Doubling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    repeats.warn_once.cache_clear()
    kernel = Replay(doubling)
    kernel.call((torch.zeros(8, 4),), {})
    with pytest.warns(RuntimeWarning, match="has no guards of the known form") as warned:
        kernel.call((torch.zeros(8, 4),), {})
    kernel.call((torch.zeros(8, 4),), {})
    assert (doubling.calls, len(doubling.launched), len(warned)) == (1, 2, 1)
    assert not repeated(kernel, torch.zeros(8, 4))


def test_a_refused_form_is_launched_by_triton_and_said_once(doubling: Doubling) -> None:
    def packing(values: Any, device_index: Any) -> Packed:
        raise UnknownLaunchError("triton: found 3.10.0, expected 3.6 to 3.9")

    doubling.packing = packing
    repeats.warn_once.cache_clear()
    x = torch.zeros(8, 4)
    with pytest.warns(RuntimeWarning, match=r"cost the host more.*found 3\.10\.0") as warned:
        kernel = warm(doubling, x)
    kernel.call((torch.zeros(2, 2),), {})
    assert len(warned) == 1
    launched = len(doubling.launched)
    kernel.call((x,), {})
    assert len(doubling.launched) == launched + 1


def test_a_known_form_is_launched_by_the_driver(doubling: Doubling, monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses that the launch takes, in its own order, and nothing through Triton's launcher."""
    driver = Driver((ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32))
    monkeypatch.setattr(driver_launch, "driver", lambda: SimpleNamespace(cuLaunchKernelEx=driver.call))
    doubling.packing = lambda values, index: Packed(
        "k", 1, Geometry((1, 1, 1), 32, 0), (int(values[0]), int(values[1]), b"\x20\0\0\0"), 0, None
    )
    x = torch.zeros(8, 4)
    kernel = warm(doubling, x)
    plain = len(doubling.launched)
    y = kernel.call((x,), {})
    assert driver.seen[-1]["values"] == [x.data_ptr(), y.data_ptr(), 32]
    assert driver.seen[-1]["stream"] == STREAM
    assert len(doubling.launched) == plain
