"""A recorded launch reaches the driver as Triton would make it, and a launch of an unknown form is refused. The driver is a stand-in."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from fusebench.registry.launches import driver_launch
from fusebench.registry.launches.driver_launch import Geometry, Packed, UnknownLaunchError
from helpers.replay_bench import Driver

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
