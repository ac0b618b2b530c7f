"""A function written for a layout repeats the recorded call, and any other call misses. The GPU's calls are stand-ins."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusebench.registry.launches import driver_launch, repeats, replay
from fusebench.registry.launches.driver_launch import Geometry, Packed, UnknownLaunchError
from fusebench.registry.launches.replay import Replay, current_recorder

STREAM = 77


class Doubling:
    """A kernel's function, y = factor * x, whose launches are recorded; its own calls and the repeated launches are counted."""

    def __init__(self) -> None:
        self.calls = 0
        self.launched: list[tuple[int, ...]] = []
        self.hooks: Any = None
        self.packing: Any = None

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None, *, factor: float = 2.0) -> torch.Tensor:
        self.calls += 1
        y = torch.empty(x.shape, dtype=x.dtype)
        recorder = current_recorder()
        if recorder is not None:
            recorder.note(self.run, [x, y, x.numel(), factor], self.packing, self.hooks)
        return y

    def run(self, *values: Any, stream: int) -> None:
        self.launched.append((*values, stream))


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> Doubling:
    """Replayed on a CPU, as on a GPU."""
    calls = {"empty": torch._C._dynamo.guards._empty_strided_cpu, "raw_stream": lambda index: STREAM}
    monkeypatch.setattr(replay, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(repeats, "device_calls", lambda: calls)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    return Doubling()


def way(kernel: Replay, *args: Any, **kwargs: Any) -> str:
    """How a call goes: `repeated` by a written function, or as plain after a `miss` or a match that must be `plain`."""
    call = kernel.repeats.before(lambda args, kwargs, write: "miss" if write else "plain")
    returned = call(args, kwargs)
    return returned if isinstance(returned, str) else "repeated"


def repeated(kernel: Replay, *args: Any, **kwargs: Any) -> bool:
    return way(kernel, *args, **kwargs) == "repeated"


def warm(doubling: Doubling, *args: Any, **kwargs: Any) -> Replay:
    """Recorded by the first call, written by the second."""
    kernel = Replay(doubling)
    for _ in range(2):
        kernel.call(args, kwargs)
    assert doubling.calls == 1
    assert repeated(kernel, *args, **kwargs)
    return kernel


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


# The launch itself.


class Driver:
    """Stands for `cuLaunchKernelEx`: reads what the real one would read."""

    def __init__(self, kinds: tuple[type, ...], status: int = 0) -> None:
        self.seen: list[dict[str, Any]] = []
        self._kinds = kinds
        self.status = status
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.call = prototype(self._launch)

    def _launch(self, config: int, function: int, arguments: int, extra: int | None) -> int:
        *sizes, stream, attributes, count = driver_launch.CONFIG.unpack(ctypes.string_at(config, driver_launch.CONFIG.size))
        pointers = (ctypes.c_void_p * len(self._kinds)).from_address(arguments)
        values = [kind.from_address(pointer).value for kind, pointer in zip(self._kinds, pointers, strict=True)]
        found = {"grid": tuple(sizes[:3]), "block": tuple(sizes[3:6]), "shared": sizes[6], "stream": stream, "function": function}
        if count:
            found["attribute"] = driver_launch.ATTRIBUTE.unpack(ctypes.string_at(attributes, driver_launch.ATTRIBUTE.size))
        self.seen.append(found | {"values": values})
        return self.status


PACKED = Packed("k", 2**40, Geometry((5, 2, 1), 128, 1024), (1, b"\x03\0\0\0", 0, 1), 0, None)
KINDS = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64)


def test_the_driver_gets_the_geometry_the_stream_and_every_argument() -> None:
    driver = Driver(KINDS)
    launch = driver_launch.launcher(PACKED, driver.call)
    launch(2**45, 2**46, 2**47 + 16)
    launch(9, 1, 2)
    first, second = driver.seen
    assert first["values"] == [2**47 + 16, 3, 2**46, 2**47 + 16]
    assert (second["stream"], second["values"]) == (9, [2, 3, 1, 2])
    assert (first["grid"], first["block"], first["shared"]) == ((5, 2, 1), (128, 1, 1), 1024)
    assert (first["stream"], first["function"]) == (2**45, 2**40)
    assert "attribute" not in first


def test_a_dependent_launch_says_so_to_the_driver() -> None:
    driver = Driver(KINDS)
    driver_launch.launcher(PACKED._replace(geometry=Geometry((1, 1, 1), 32, 0, dependent=True)), driver.call)(0, 1, 2)
    assert driver.seen[0]["attribute"] == (driver_launch.PROGRAMMATIC_STREAM_SERIALIZATION, 1)


def test_threads_that_launch_at_once_do_not_mix_their_arguments() -> None:
    """Every call of the driver lets the other threads run before it reads its arguments."""
    driver = Driver(KINDS)
    together = threading.Barrier(4, timeout=10)
    inner = driver.call

    def slow(*arguments: Any) -> int:
        together.wait()
        return int(inner(*arguments))

    launch = driver_launch.launcher(PACKED, slow)
    threads = [threading.Thread(target=launch, args=(number, number, 10 * number)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one["stream"] for one in driver.seen) == [1, 2, 3, 4]
    assert all(one["values"] == [10 * one["stream"], 3, one["stream"], 10 * one["stream"]] for one in driver.seen)


def fake_driver(status: int) -> Any:
    def text(code: Any, found: Any) -> int:
        found._obj.value = b"CUDA_ERROR_ILLEGAL_ADDRESS"
        return 0

    entered: list[int] = []
    return SimpleNamespace(
        cuGetErrorName=text,
        cuGetErrorString=text,
        cuDevicePrimaryCtxRetain=lambda context, index: entered.append(index.value),
        cuCtxSetCurrent=lambda context: entered.append(-1),
        entered=entered,
    )


def test_a_refused_launch_is_an_error_with_the_drivers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_launch, "driver", lambda: fake_driver(700))
    with pytest.raises(RuntimeError, match=r"launch of k: CUDA_ERROR_ILLEGAL_ADDRESS \(700\)"):
        driver_launch.launcher(PACKED, Driver(KINDS, status=700).call)(0, 1, 2)


def test_a_new_thread_enters_the_devices_context(monkeypatch: pytest.MonkeyPatch) -> None:
    library = fake_driver(0)
    monkeypatch.setattr(driver_launch, "driver", lambda: library)
    answers = [driver_launch.INVALID_CONTEXT, 0]
    driver_launch.launcher(PACKED._replace(device_index=3), lambda *arguments: answers.pop(0))(0, 1, 2)
    assert library.entered == [3, -1]
    assert not answers


# What Triton's kernels are known to be.

PTX = """
.visible .entry scaled(
	.param .u64 .ptr .global .align 1 scaled_param_0,
	.param .u32 scaled_param_1,
	.param .f32 scaled_param_2,
	.param .u64 .ptr .global .align 1 scaled_param_3,
	.param .u64 .ptr .global .align 1 scaled_param_4
)
.reqntid 128
{ ret; }
"""


def compiled(**metadata: Any) -> Any:
    usual = {"target": SimpleNamespace(backend="cuda", warp_size=32), "num_warps": 4, "shared": 64, "num_ctas": 1, "launch_pdl": False}
    return SimpleNamespace(
        name="scaled",
        function=123,
        metadata=SimpleNamespace(**(usual | metadata)),
        src=SimpleNamespace(signature={"x": "*bf16", "n": "i32", "one": "constexpr", "eps": "fp32", "D": "constexpr"}),
        asm={"ptx": PTX},
    )


VALUES = [driver_launch.Address(0), 7, 1, 0.5, 128]


def test_a_triton_kernel_is_packed_with_its_scratch_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = driver_launch.packed_triton(compiled(), (6,), VALUES, 2)
    assert packed.geometry == Geometry((6, 1, 1), 128, 64)
    assert packed.arguments == (0, b"\x07\0\0\0", b"\0\0\0\x3f", bytes(8), bytes(8))
    assert (packed.function, packed.device_index) == (123, 2)
    assert driver_launch.packed_triton(compiled(launch_pdl=True), (6,), VALUES, 2).geometry.dependent


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"num_ctas": 2}, "num_ctas: found 2"),
        ({"cluster_dims": [2, 1, 1]}, "cluster_dims"),
        ({"global_scratch_size": 64}, "global_scratch_size: found 64"),
        ({"profile_scratch_size": 1}, "profile_scratch_size"),
        ({"launch_cooperative_grid": True}, "launch_cooperative_grid"),
        ({"instrumentation_mode": "gsan"}, "instrumentation_mode: found gsan"),
        ({"target": SimpleNamespace(backend="hip", warp_size=64)}, "backend: found hip, expected cuda"),
    ],
)
def test_an_unknown_form_of_launch_is_refused_with_the_reason(metadata: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownLaunchError, match=said):
        driver_launch.packed_triton(compiled(**metadata), (6,), VALUES, 0)


@pytest.mark.parametrize("change", ["parameter", "type", "count", "grid", "version"])
def test_a_kernel_with_unknown_parameters_is_refused(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    kernel, values, grid = compiled(), list(VALUES), (6,)
    if change == "parameter":  # a version of Triton with a third hidden pointer
        kernel.asm["ptx"] = PTX.replace("_param_4\n", "_param_4,\n\t.param .u64 scaled_param_5\n")
    if change == "type":
        kernel.src.signature["n"] = "u1"
    if change == "count":
        values.pop()
    if change == "grid":
        grid = (0,)
    if change == "version":
        monkeypatch.setattr(triton, "__version__", "3.10.0")
    with pytest.raises(UnknownLaunchError, match="expected"):
        driver_launch.packed_triton(kernel, grid, values, 0)


def test_a_cuda_kernel_is_packed_by_what_the_driver_says_of_it() -> None:
    sizes = [8, 8, 4, 8]
    kernel = SimpleNamespace(handle=11, arguments_info=[SimpleNamespace(size=size) for size in sizes])
    values = [driver_launch.Address(1), numpy.int64(-2), numpy.float32(0.5), 0]
    packed = driver_launch.packed_cuda(kernel, "k", PACKED.geometry, values, 1)
    assert packed.arguments == (1, b"\xfe" + b"\xff" * 7, b"\0\0\0\x3f", bytes(8))
    assert packed.function == 11
    for info in ([*kernel.arguments_info, SimpleNamespace(size=8)], kernel.arguments_info[:3]):
        with pytest.raises(UnknownLaunchError, match="sizes of the arguments"):
            driver_launch.packed_cuda(SimpleNamespace(handle=11, arguments_info=info), "k", PACKED.geometry, values, 1)
    with pytest.raises(UnknownLaunchError, match="does not describe the arguments of k"):
        driver_launch.packed_cuda(SimpleNamespace(handle=11), "k", PACKED.geometry, values, 1)


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
